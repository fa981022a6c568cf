"""Local steps (local SGD, DiLoCo): each worker takes steps of its own, and now and then all average.

θ are the weights of the one model, the same on all workers. Every `sync_every` steps

    Δ = θ − the mean of the workers' weights,   v ← μ v + Δ,   θ ← θ − η (Δ + μ v)

(Nesterov, as torch writes it), and every worker continues from θ with its own optimizer state. With several parts
(streaming), each part of the model is averaged once in `sync_every` steps, one after the other. The last step, and the
last one before a cool-down, average everything. Averages may be spaced by the learning rate (`spacing.py`). Only θ is
scored and saved. The AdamW of a worker sees only a share of the batch, and is corrected for that
(`optimizers/batch_moments.py`).

Between two averages no worker waits for another. Losses and requests wait too, and travel with the average.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shoestring.core.errors import Fault
from shoestring.core.parallel import OUTER_LR, OUTER_MOMENTUM, Parallel
from shoestring.parallel.process_group import ProcessGroup
from shoestring.parallel.quantised import mean_of
from shoestring.training.learner import Learner
from shoestring.training.loop import Consensus, Report, Requests, Sum
from shoestring.training.schedule import Schedule
from shoestring.training.spacing import Spacing
from shoestring.training.stepper import NetworkStep, Stepper


class LocalSettings(NamedTuple):
    """The fields of `[parallel]` that local steps read."""

    every: int
    lr: float
    momentum: float
    bits: int
    parts: int
    batch_moments: bool = True
    by_rate: bool = False
    """Whether averages are spaced by the learning rate."""

    @classmethod
    def of(cls, parallel: Parallel) -> LocalSettings:
        lr = OUTER_LR if parallel.outer_lr is None else parallel.outer_lr
        momentum = OUTER_MOMENTUM if parallel.outer_momentum is None else parallel.outer_momentum
        bits, parts, moments = parallel.difference_bits or 32, parallel.parts or 1, parallel.batch_moments is not False
        return cls(parallel.every, lr, momentum, bits, parts, moments, parallel.sync_spacing == "lr")


def divide(sizes: Sequence[int], parts: int) -> list[int]:
    """The part of each tensor: consecutive tensors, about as many numbers in each part."""
    ends, total = list(itertools.accumulate(sizes)), sum(sizes)
    return [(2 * end - size) * parts // (2 * total) for end, size in zip(ends, sizes, strict=True)]  # by their middles


class Average:
    """θ and its momentum, beside the weights of this worker, which are updated in place."""

    def __init__(self, weights: Mapping[str, Tensor], settings: LocalSettings, group: ProcessGroup):
        self._weights, self.settings, self.group = weights, settings, group
        self.model = {name: tensor.detach().clone() for name, tensor in weights.items()}
        """θ."""
        self.momentum = {name: torch.zeros_like(tensor) for name, tensor in self.model.items()}
        which = divide([tensor.numel() for tensor in self.model.values()], settings.parts)
        self._names = [
            [n for n, p in zip(self.model, which, strict=True) if p == part] for part in range(settings.parts)
        ]
        self.count = 0
        """Averages so far."""
        self.sent_bytes = 0
        """Of the differences that this worker gave to averages."""

    @torch.no_grad()
    def exchange(self, parts: Sequence[int], numbers: Tensor) -> Exchanged:
        """The mean differences of these parts, and the sums of `numbers`; changes nothing, and may be repeated."""
        names = [name for part in parts for name in self._names[part]]
        differences = [self.model[name] - self._weights[name] for name in names]
        sums, sent = numbers.clone(), 0
        if self.settings.bits < 32 and self.group.world > 1 and names:
            flat, sent = mean_of(torch.cat([each.view(-1) for each in differences]), self.group, self.settings.bits)
            sizes = [each.numel() for each in differences]
            differences = [each.view_as(like) for each, like in zip(flat.split(sizes), differences, strict=True)]
            self.group.all_reduce([sums])
        else:
            self.group.all_reduce([*differences, sums])
            torch._foreach_div_(differences, float(self.group.world))
            sent = sum(each.numel() * each.element_size() for each in differences) if self.group.world > 1 else 0
        return Exchanged(names, differences, sums, sent)

    @torch.no_grad()
    def apply(self, exchanged: Exchanged) -> None:
        """Update θ, and give it to this worker."""
        names, differences, _, sent = exchanged
        if names:
            momentum, model = ([tensors[name] for name in names] for tensors in (self.momentum, self.model))
            torch._foreach_mul_(momentum, self.settings.momentum)
            torch._foreach_add_(momentum, differences)
            torch._foreach_add_(differences, momentum, alpha=self.settings.momentum)
            torch._foreach_add_(model, differences, alpha=-self.settings.lr)
            for name in names:
                self._weights[name].copy_(self.model[name])
        self.count += 1
        self.sent_bytes += sent

    @contextmanager
    def shown(self) -> Iterator[None]:
        """θ in place of the weights of this worker."""
        kept = {} if self.settings.parts == 1 else {name: tensor.clone() for name, tensor in self._weights.items()}
        with torch.no_grad():
            for name, tensor in self._weights.items():
                tensor.copy_(self.model[name])
        try:
            yield
        finally:
            with torch.no_grad():
                for name, tensor in kept.items():
                    self._weights[name].copy_(tensor)


class Exchanged(NamedTuple):
    """What an average came to."""

    names: list[str]
    differences: list[Tensor]
    sums: Tensor
    sent: int
    """Bytes of differences from this worker."""


class LocalModel:
    """What the checkpoints of local steps hold: θ, its momentum, and of every worker the state of its optimizer.

    The state of the first worker has the names that it has in any checkpoint, so that other commands find it.
    """

    sharded = True
    """Every worker writes a file."""

    def __init__(self, learner: Learner, average: Average):
        self._learner, self._average = learner, average

    @property
    def group(self) -> ProcessGroup:
        return self._learner.group

    def saved_tensors(self) -> dict[str, Tensor]:
        rank, average = self.group.rank, self._average
        found = {self._own(rank, name): tensor for name, tensor in self._learner.optimizer.tensors().items()}
        if average.settings.parts > 1:
            weights = self._learner.optimizer.masters
            found |= {f"worker/{rank}/model/{name}": tensor.detach() for name, tensor in weights.items()}
        if rank == 0:
            found |= {name: kept for name, kept in self._learner.saved_tensors().items() if name.startswith("model/")}
            found |= {f"model/{name}": tensor for name, tensor in average.model.items()}
            found |= {f"outer/{name}": tensor for name, tensor in average.momentum.items()}
        return found

    @staticmethod
    def _own(rank: int, name: str) -> str:
        return name if rank == 0 else f"worker/{rank}/{name}"

    def placement(self, name: str) -> Tensor | None:  # noqa: ARG002
        return None

    @torch.no_grad()
    def put_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """A worker that was not there when they were saved begins with θ and the optimizer state of the first one."""
        rank, average, optimizer = self.group.rank, self._average, self._learner.optimizer
        own = f"worker/{rank}/"
        mine = {name.removeprefix(own): tensor for name, tensor in tensors.items() if name.startswith(own)}
        first = {name: tensor for name, tensor in tensors.items() if not name.startswith(("worker/", "outer/"))}
        state = first if rank == 0 or not mine else mine
        self._learner.put_tensors(state | {name: t for name, t in tensors.items() if name.startswith("model/")})
        for name, tensor in average.model.items():
            tensor.copy_(tensors[f"model/{name}"])
            if f"outer/{name}" in tensors:
                average.momentum[name].copy_(tensors[f"outer/{name}"])
            if f"model/{name}" in mine:
                optimizer.masters[name].copy_(mine[f"model/{name}"])

    def misfits(self, shapes: Mapping[str, torch.Size]) -> list[str]:
        return self._learner.misfits(shapes)


class _Round(NamedTuple):
    """What this worker did since the last average."""

    nats: float = 0.0
    predictions: float = 0.0
    skipped: float = 0.0
    bad: float = 0.0
    """Steps with a loss or a gradient that is not finite; none after the first changed anything."""

    def plus(self, other: _Round) -> _Round:
        return _Round(*(a + b for a, b in zip(self, other, strict=True)))


class LocalStep(NamedTuple):
    """A step of this worker, and the average after it if one is due."""

    inner: NetworkStep
    parts: list[int]
    requests: Requests
    stepper: LocalStepper

    @property
    def number(self) -> int:
        return self.inner.number

    @property
    def ended(self) -> float | None:
        return None if self.parts else self.inner.ended

    def read(self) -> Report:
        return self.stepper.finish(self)


class LocalStepper(Stepper):
    """Steps of a worker on its share of every batch."""

    even = False

    def __init__(
        self, *args: Any, average: Average, together: Callable[[Callable[[], Exchanged]], Exchanged], **rest: Any
    ):
        """`together` gets the exchange of an average, and calls it until all workers that are left have it."""
        super().__init__(*args, **rest)
        self.learner.summed_over = ProcessGroup(0, 1, self.learner.device)
        self._average, self._together = average, together
        settings = average.settings
        self._spacing = Spacing(settings.every, settings.parts, self._settings if settings.by_rate else None)
        self._round = _Round()

    def meets(self, step: int, schedule: Schedule) -> bool:
        return bool(self._spacing.parts_due(step, schedule))

    def begin(self, step: int, schedule: Schedule, requests: Requests) -> LocalStep:  # type: ignore[override]
        settings, optimizer = self._average.settings, self.learner.optimizer
        optimizer.shares = self.learner.group.world if settings.batch_moments else 1  # workers may have left
        parts = self._spacing.parts_due(step + 1, schedule)
        return LocalStep(super().begin(step, schedule, requests), parts, requests, self)

    def finish(self, step: LocalStep) -> Report:
        """The report of a step; where an average is due, of all steps since the last one, of all workers."""
        nats, predictions, norm, unfitted, skipped, *_ = step.inner.values()
        lr = step.inner.lr
        if unfitted:
            return Report(Sum(0.0, 0), lr, norm, unfitted=True, consolidated=False)
        refused = not skipped and not (math.isfinite(nats) and math.isfinite(norm))
        self._round = self._round.plus(_Round(nats, predictions, skipped, float(refused)))
        if not step.parts:
            return Report(Sum(0.0, 0), lr, norm, consolidated=False)
        group, own = self.learner.group, self._round

        scaled = self.learner.loss_scale is not None

        def exchange() -> Exchanged:
            """Exchange as many numbers as a synchronous step; a bad round has the loss NaN. fp16 adds skipped steps."""
            skips = [own.skipped * (group.rank == 0)] if scaled else []
            nats = math.nan if own.bad else own.nats
            mine = [nats, own.predictions, norm, *step.requests.numbers(group.rank), *skips]
            numbers = torch.tensor(mine, dtype=torch.float64, device=group.device)
            return self._average.exchange(step.parts, numbers)

        exchanged = self._together(exchange)
        nats, predictions, norm, *others = exchanged.sums.tolist()
        skipped = others.pop() if scaled else 0.0
        if not math.isfinite(nats):
            raise Fault(
                f"step {step.number}: since the last average the loss or the gradient of a worker was not finite; "
                f"nothing was averaged, and the last checkpoint is good. A smaller train.lr, a longer train.warmup or "
                f"a smaller train.clip may help"
            )
        self._average.apply(exchanged)
        self._round = _Round()
        loss = Sum(nats, round(predictions))
        return Report(loss, lr, norm / group.world, consensus=Consensus.of(others), skipped=round(skipped))
