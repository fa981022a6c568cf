"""The loop. A *step* is one update with the effective batch; step s reads the rows that the source's `order` names.

A step is given to the device while the one before is still running there; then that one's numbers are read and the
hooks run with the new `State`, each returning the state to go on with. So the device never waits for the host. After a
step at which a hook is due, which looks at the weights, nothing is given to the device until the hooks have run.

What depends on a clock or a signal is a wish: it travels with a step's numbers, added up over the processes, and comes
back to all of them with that step, so that all do the same.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoestring.core.errors import Fault
from shoestring.core.recipe import Train
from shoestring.core.seeds import derive
from shoestring.models import Batch
from shoestring.train.checkpoint import State
from shoestring.train.course import Course, learning_rate
from shoestring.train.learner import Learner, SomeRows, Update, half


class TokenSource(Protocol):
    """Anything that gives row i."""

    def order(self, seed: int, step: int, batch: int) -> NDArray[np.int64]:
        """The numbers of the rows that a step reads: a pure function of its arguments."""
        ...

    def rows(self, indices: NDArray[np.int64]) -> SomeRows:
        """Rows by number, (n, length + 1), as a batch where they are packed; tensors may lie on any device."""
        ...


class Sum(NamedTuple):
    """A loss over many predictions, not divided yet."""

    nats: float
    predictions: int

    @property
    def mean(self) -> float:
        return self.nats / self.predictions


STOPS = ("SIGTERM", "SIGINT", "SIGUSR1", "the time limit")
"""What can end a session before its run is finished."""


class Agreed(NamedTuple):
    """The wishes that all processes know of."""

    total: int = 0
    save: bool = False
    stop: str | None = None


NOTHING = Agreed()


@dataclass
class Wishes:
    """What the first process wants of all, and who wants to stop."""

    total: int = 0
    """Steps of a course that was made shorter or longer; 0: as it is."""
    save: bool = False
    stops: set[str] = field(default_factory=set)
    alone: bool = True
    """Whether there is one process only, which need not ask."""

    def numbers(self, rank: int) -> list[float]:
        first = rank == 0
        return [self.total * first, self.save * first, *(name in self.stops for name in STOPS)]

    def agreed(self) -> Agreed:
        """As all know of them, where there is only one process."""
        return Agreed(self.total, self.save, next((name for name in STOPS if name in self.stops), None))


@dataclass(frozen=True, kw_only=True)
class Report:
    """What the step that was just taken has to tell."""

    loss: Sum
    lr: float
    grad_norm: float
    seconds: float
    begun: int = 0
    """Steps that were given to the device: one more than were taken, where no hook is due."""
    agreed: Agreed = NOTHING


class Hook(Protocol):
    """Runs after every step."""

    def due(self, step: int, total: int) -> bool:
        """Whether it wants the weights as they are after this step; a plain function never does."""
        ...

    def __call__(self, state: State, report: Report) -> State: ...


AnyHook = Hook | Callable[[State, Report], State]


class Taken(NamedTuple):
    """A step that was given to the device."""

    number: int
    indices: NDArray[np.int64]
    """Of all processes."""
    rows: Batch
    """Of this one."""
    lr: float
    numbers: Tensor
    """What `Update` has, the wishes last; on the host as soon as `done`."""
    done: torch.cuda.Event | None
    finished: float | None
    """When it was done, where that is known at once; another step may have been taken since."""

    def read(self) -> Numbers:
        """Waits for this step, and for none after it."""
        if self.done is not None:
            self.done.synchronize()
        nats, predictions, norm, unfitted, total, save, *stops = self.numbers.tolist()
        stop = next((name for name, wanted in zip(STOPS, stops, strict=True) if wanted), None)
        return Numbers(Sum(nats, round(predictions)), norm, bool(unfitted), Agreed(int(total), bool(save), stop))


class Numbers(NamedTuple):
    """What came of a step, on the host."""

    loss: Sum
    norm: float
    unfitted: bool
    agreed: Agreed


class Loop:
    """Steps of a learner on a source."""

    def __init__(
        self,
        learner: Learner,
        source: TokenSource,
        settings: Train,
        hooks: Sequence[AnyHook],
        *,
        batch: int,
        per_device: int,
        seed: int,
        wishes: Wishes | None = None,
        halved: Callable[[int, int], None] | None = None,
    ):
        """`halved` hears of every step that did not fit the memory, and how many rows it is tried with next."""
        self._wishes = wishes or Wishes()
        self._wishes.alone = learner.team.world == 1
        self._learner, self._source, self._settings, self._hooks = learner, source, settings, hooks
        self._batch, self.per_device, self._seed, self._halved = batch, per_device, seed, halved
        self._settled_at = time.perf_counter()

    def run(self, state: State) -> State:
        """Take steps from where `state` stands to the end of its course."""
        ahead: Taken | None = None
        self._settled_at = time.perf_counter()
        while state.step < state.course.total:
            taken = ahead or self._take(state.step, state.course)
            ahead = None if self._is_due(state) else self._take(state.step + 1, state.course)
            found = taken.read()
            if found.unfitted:
                self._halve(taken.number)
                ahead = None  # it was refused as well
                continue
            self._refuse_what_is_not_finite(taken, found)
            state = self._settle(taken, found, state, begun=taken.number + (1 if ahead is None else 2))
        return state

    def _is_due(self, state: State) -> bool:
        """Whether somebody looks at the weights after the step that `state` is before."""
        step, total = state.step + 1, state.course.total
        return step >= total or any(hook.due(step, total) for hook in self._hooks if hasattr(hook, "due"))

    def _take(self, step: int, course: Course) -> Taken:
        """Give the step after `step` others to the device."""
        learner, team = self._learner, self._learner.team
        indices = self._source.order(self._seed, step, self._batch)
        own = np.split(indices, team.world)[team.rank]
        _seed_everything(derive(self._seed, "torch", step, team.rank), learner.device)
        rows = Batch.of(self._source.rows(own))
        lr = learning_rate(self._settings, course.progress(step + 0.5))
        tally = learner.accumulate(rows, self.per_device)
        numbers, done = _on_its_way(learner.update(tally, lr, self._wishes.numbers(team.rank)))
        return Taken(step, indices, rows, lr, numbers, done, time.perf_counter() if done is None else None)

    def _settle(self, taken: Taken, found: Numbers, state: State, begun: int) -> State:
        """The state after a step that is through."""
        now = time.perf_counter() if taken.finished is None else taken.finished
        report = Report(
            loss=found.loss,
            lr=taken.lr,
            grad_norm=found.norm,
            seconds=now - self._settled_at,
            begun=begun,
            agreed=found.agreed,
        )
        state = replace(state, step=taken.number + 1)
        for hook in self._hooks:
            state = hook(state, report)
        waited = begun == taken.number + 1  # the device had nothing to do while the hooks ran
        self._settled_at = time.perf_counter() if waited else now
        return state

    def _halve(self, step: int) -> None:
        """Go on with half as many rows at a time: the batch and its order stay."""
        self.per_device = half(min(self.per_device, self._batch // self._learner.team.world))
        self._learner.optimizer.refused.zero_()
        self._learner.forget()
        if self._halved is not None:
            self._halved(step, self.per_device)

    def _refuse_what_is_not_finite(self, taken: Taken, found: Numbers) -> None:
        if not found.loss.predictions:
            raise Fault(f"step {taken.number}: nothing is predicted. Rows: {_some(taken.indices.tolist())}")
        if not math.isfinite(found.loss.nats):
            raise _not_finite(self._learner, taken, self.per_device)
        if not math.isfinite(found.norm):
            said = f"gradient is not finite, though the loss is {found.loss.mean:.4f}"
            raise _fault(taken.number, said, taken.indices.tolist())


def _seed_everything(seed: int, device: torch.device) -> None:
    """As `torch.manual_seed`, which takes a tenth of a small step where there is no GPU."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def _on_its_way(update: Update) -> tuple[Tensor, torch.cuda.Event | None]:
    """The numbers of an update, and when they will be here."""
    numbers = torch.cat([number.double().view(-1) for number in update])
    if numbers.device.type != "cuda":
        return numbers, None
    here = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
    here.copy_(numbers, non_blocking=True)
    done = torch.cuda.Event()
    done.record()
    return here, done


def _not_finite(learner: Learner, taken: Taken, per_device: int) -> Fault:
    """Name the rows that did it, by scoring the batch again with the weights as they still are."""
    rows = taken.rows
    if learner.team.world > 1:
        return _fault(taken.number, "loss is not finite", taken.indices.tolist())
    wrong = ~learner.score(rows, per_device).isfinite() & rows.predicted().cpu()
    bad = wrong.any(dim=1).nonzero().flatten().tolist()
    return _fault(taken.number, "loss is not finite", [int(taken.indices[i]) for i in bad] or taken.indices.tolist())


def _fault(step: int, what: str, rows: list[int]) -> Fault:
    return Fault(
        f"step {step}: the {what}; the update was not made, and the last checkpoint is good. Rows: {_some(rows)}. "
        f"A smaller train.lr, a longer train.warmup or a smaller train.clip may help"
    )


def _some(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return f"{shown} and {len(numbers) - 8} more" if len(numbers) > 8 else shown
