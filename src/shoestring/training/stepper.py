"""The steps of a network: step s reads the rows that the source's `order` gives, and updates the weights once."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from shoestring.core.errors import Fault
from shoestring.core.seeds import derive
from shoestring.core.train_section import Train
from shoestring.data.pack.order import RowIndex
from shoestring.datasets.source import TokenSource
from shoestring.models.batch import Batch
from shoestring.training.learner import Learner
from shoestring.training.loop import Consensus, Report, Requests, Sum
from shoestring.training.passes import Tally, Update, half
from shoestring.training.schedule import Schedule, learning_rate


class NetworkStep(NamedTuple):
    """A step that was given to the device."""

    number: int
    which: RowIndex
    """Rows of all processes."""
    rows: Batch
    """Rows of this process."""
    lr: float
    numbers: Tensor
    """The numbers of `Update`, the requests last; on the host as soon as `done`."""
    done: torch.cuda.Event | None
    ended: float | None
    stepper: Stepper

    def values(self) -> list[float]:
        """The numbers; waits for this step, but for none after it."""
        if self.done is not None:
            self.done.synchronize()
        found: list[float] = self.numbers.tolist()
        return found

    def read(self) -> Report:
        nats, predictions, norm, unfitted, skipped, *requests = self.values()
        loss = Sum(nats, round(predictions))
        if not (unfitted or skipped):
            self._check_finite(loss, norm)
        return Report(loss, self.lr, norm, bool(unfitted), Consensus.of(requests), skipped=bool(skipped))

    def _check_finite(self, loss: Sum, norm: float) -> None:
        rows = self.which.rows.tolist()
        if not loss.predictions:
            raise Fault(
                f"step {self.number}: nothing is predicted. Rows: {_some(rows)}. A larger train.batch helps; where "
                f'prompts fill rows, data.packing = "best_fit" puts each into one row with its completion'
            )
        if math.isfinite(loss.nats) and math.isfinite(norm):
            return
        what = f"gradient is not finite, though the loss is {loss.mean:.4f}"
        if not math.isfinite(loss.nats):
            what, rows = "loss is not finite", self._not_finite() or rows
        wider = "" if self.stepper.learner.loss_scale is None else ', or train.precision = "bf16" or "fp32",'
        raise Fault(
            f"step {self.number}: the {what}; the update was not made, and the last checkpoint is good. "
            f"Rows: {_some(rows)}. A smaller train.lr, a longer train.warmup or a smaller train.clip{wider} may help"
        )

    def _not_finite(self) -> list[int]:
        """The rows with a loss that is not finite, found by scoring the batch again with the unchanged weights."""
        learner = self.stepper.learner
        if learner.group.world > 1:
            return []
        wrong = ~learner.score(self.rows, self.stepper.per_device).isfinite() & self.rows.predicted().cpu()
        return [int(self.which.rows[i]) for i in wrong.any(dim=1).nonzero().flatten().tolist()]


class Stepper:
    """Steps of a learner on a source."""

    looks_ahead = True
    even = True
    """Whether the processes have equal shares of a batch."""

    def __init__(
        self, learner: Learner, source: TokenSource, settings: Train, *, batch: int, per_device: int, seed: int
    ):
        self.learner, self.source, self._settings = learner, source, settings
        self._batch, self.per_device, self._seed = batch, per_device, seed
        self.before = 0
        """Steps of another run, which this one continues: its rows follow theirs."""
        self.slowness = 1.0
        """The factor by which its passes take longer than they must."""
        self.least_seconds = 0.0
        """Of the passes over all rows of a step; those over a share of them take that share of it."""

    def begin(self, step: int, schedule: Schedule, requests: Requests) -> NetworkStep:
        index, rows, tally = self.take_rows(step)
        others = requests.numbers(self.learner.group.rank)
        return self.update(step, index, rows, tally, self.rate(step, schedule), others)

    def take_rows(self, step: int) -> tuple[RowIndex, Batch, Tally]:
        """The rows of a step, those of this process, and their loss, whose gradient is added."""
        learner, group = self.learner, self.learner.group
        index = self.source.order(self._seed, self.before + step, self._batch)
        _seed_everything(derive(self._seed, "torch", self.before + step, group.rank), learner.device)
        rows = self.source.batch(index.share(group.rank, group.world, self.even))
        begun = time.perf_counter()
        tally = learner.accumulate(rows, self.per_device)
        slow_down(self.slowness, begun, learner.device, self.least_seconds / group.world)
        return index, rows, tally

    def rate(self, step: int, schedule: Schedule) -> float:
        """The learning rate of a step."""
        return learning_rate(self._settings, schedule.progress(step + 0.5), schedule.warmup)

    def update(
        self, step: int, index: RowIndex, rows: Batch, tally: Tally, lr: float, others: Sequence[float | Tensor]
    ) -> NetworkStep:
        """The update that ends a step."""
        numbers, done = _to_host(self.learner.update(tally, lr, others))
        return NetworkStep(step, index, rows, lr, numbers, done, time.perf_counter() if done is None else None, self)

    def meets(self, step: int, schedule: Schedule) -> bool:  # noqa: ARG002
        return False

    def halve(self) -> int:
        """Halve the micro-batch; the batch and its order stay."""
        self.per_device = half(min(self.per_device, self._batch // self.learner.group.world))
        self.learner.optimizer.refused.zero_()
        self.learner.forget()
        return self.per_device


def _seed_everything(seed: int, device: torch.device) -> None:
    """As `torch.manual_seed`, which takes a tenth of a small step on a CPU."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def slow_down(factor: float, begun: float, device: torch.device, least: float = 0.0) -> None:
    """Wait until what began at `begun` has taken `factor` times as long, or as `least` seconds."""
    if factor > 1 or least > 0:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken = time.perf_counter() - begun
        time.sleep(max(factor * max(taken, least) - taken, 0.0))


def _to_host(update: Update) -> tuple[Tensor, torch.cuda.Event | None]:
    """The numbers of an update, and the event after which they are on the host."""
    numbers = torch.cat([number.double().view(-1) for number in update])
    if numbers.device.type != "cuda":
        return numbers, None
    here = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
    here.copy_(numbers, non_blocking=True)
    done = torch.cuda.Event()
    done.record()
    return here, done


def _some(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return f"{shown} and {len(numbers) - 8} more" if len(numbers) > 8 else shown
