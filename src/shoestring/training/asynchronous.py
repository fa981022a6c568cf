"""Asynchronous steps: workers compute gradients of shared weights, and each is applied as soon as it arrives.

A step has as many shares as there are workers, each an equal part of its rows. The shares of all steps are given out in
order, to whichever worker is free; a step is done when as many gradients were applied as all steps so far have shares.
So a slow worker holds nobody up. A step after which the weights are read gives out no share of the next one, and waits
for all: nothing is under way when weights are scored or saved, and no share is lost or applied twice. The share of a
worker that ended is given to another.

A gradient is *stale* by the updates between the reading of its weights and its own.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import NamedTuple

import torch
from torch import Tensor

from shoestring.core.errors import Fault
from shoestring.core.train_section import Train
from shoestring.parallel.shared_weights import UNREAD, SharedWeights
from shoestring.training.learner import Learner
from shoestring.training.loop import Report, Requests, Sum
from shoestring.training.passes import Tally
from shoestring.training.schedule import Schedule, learning_rate


class Share(NamedTuple):
    """A part of the rows of a step."""

    step: int
    number: int


class Gradient(NamedTuple):
    """What a worker says of a share whose gradient lies in shared memory."""

    nats: float
    predictions: int


def may_apply(applied: int, others: Sequence[int], most: int | None) -> bool:
    """Whether a gradient may be applied now, so that those under way can still be applied with at most `most` updates
    in between: in the order of the versions that they have read."""
    if most is None:
        return True
    return all(applied + 1 + place - version <= most for place, version in enumerate(sorted(others)))


@torch.no_grad()
def compensate(gradient: Tensor, weights: Tensor, weights_read: Tensor, strength: float, predictions: int) -> None:
    """Correct the gradient of a summed loss for what the weights moved since they were read.

    To first order the gradient g of the mean loss becomes g + H (w − w_read). The outer product of the gradient with
    itself stands for H, of which the diagonal is kept: g + λ g² (w − w_read) (DC-ASGD, arXiv 1609.08326).
    """
    gradient.addcmul_(gradient * gradient, weights - weights_read, value=strength / max(1, predictions))


class AsyncStep(NamedTuple):
    """A step whose shares may be given out."""

    number: int
    dealer: Dealer
    ended: float | None = None

    def read(self) -> Report:
        return self.dealer.finish(self.number)


class Dealer:
    """Gives shares to workers, and applies what they return."""

    looks_ahead = True

    def __init__(
        self,
        learner: Learner,
        shared: SharedWeights,
        lines: Mapping[int, Connection],
        settings: Train,
        max_staleness: int | None,
        lost: Callable[[int, int], object] = lambda *_: None,
        compensation: float | None = None,
    ):
        """`lost` gets the number of a worker that ended, and the step; `compensation` is for stale gradients."""
        self._learner, self._shared, self._lines, self._settings = learner, shared, dict(lines), settings
        self.workers, self._most, self._lost = len(lines), max_staleness, lost
        self._gradients = [
            [(learner.parameters[name], tensor) for name, tensor in tensors.items()] for tensors in shared.gradients
        ]
        self._compensation = compensation
        self._waiting: deque[Share] = deque()
        self._under_way: dict[int, Share] = {}
        self._arrived: dict[int, Gradient] = {}
        self._applied: int | None = None
        """Gradients of all steps so far; None: no step was begun."""
        self._schedule = Schedule(total=1)
        self._sum = Sum(0.0, 0)
        self._norms: list[float] = []
        self.staleness: Counter[int] = Counter()
        """How many gradients were stale by so many updates."""
        self.left: list[int] = []
        """Workers that ended."""

    def begin(self, step: int, schedule: Schedule, requests: Requests) -> AsyncStep:  # noqa: ARG002
        if self._applied is None or not (self._waiting or self._under_way):
            self._applied = step * self.workers
            self._shared.put_weights(self._learner.optimizer.masters)  # they may have been restored
        self._schedule = schedule
        self._waiting += [Share(step, number) for number in range(self.workers)]
        self._deal()
        return AsyncStep(step, self)

    def meets(self, step: int, schedule: Schedule) -> bool:  # noqa: ARG002
        return False

    def halve(self) -> int:
        raise AssertionError("a worker halves its own micro-batch")

    def finish(self, step: int) -> Report:
        """Apply gradients until the step is done: as many as it has shares, of this step or another."""
        assert self._applied is not None, "the step was begun"
        while self._applied < (step + 1) * self.workers:
            worker = self._next()
            if worker is None:
                self._listen()
            else:
                self._apply(worker)
            self._deal()
        found = Report(self._sum, self._rate(step), sum(self._norms) / len(self._norms))
        self._sum, self._norms = Sum(0.0, 0), []
        return found

    def _deal(self) -> None:
        for worker, line in self._lines.items():
            if self._waiting and worker not in self._under_way:
                self._under_way[worker] = share = self._waiting.popleft()
                self._shared.read[worker] = UNREAD
                try:
                    line.send(share)
                except OSError:
                    continue  # its end is noticed when it is listened to

    def _listen(self) -> None:
        """Wait until a worker has told something, or has ended."""
        for line in wait(list(self._lines.values())):
            worker = next(number for number, each in self._lines.items() if each is line)
            try:
                told = self._lines[worker].recv()
            except (EOFError, OSError):
                self._forget(worker)
                continue
            if isinstance(told, str):
                raise Fault(f"worker {worker}: {told}")
            self._arrived[worker] = Gradient(*told)

    def _forget(self, worker: int) -> None:
        """A worker has ended, and another gets its share."""
        del self._lines[worker]
        self.left.append(worker)
        if (share := self._under_way.pop(worker, None)) is not None:
            self._waiting.appendleft(share)
        self._lost(worker, share.step if share else 0)
        if not self._lines:
            raise Fault("all workers have ended; the last checkpoint is good, and the same command resumes")

    def _next(self) -> int | None:
        """The worker whose gradient is to be applied: the oldest that has arrived. None: a slower one would then be too
        stale, or none has arrived."""
        version = self._shared.version
        read = {worker: int(self._shared.read[worker]) for worker in self._under_way}
        read = {worker: version if was == UNREAD else was for worker, was in read.items()}
        worker = min(self._arrived, key=lambda each: read[each], default=None)
        if worker is None or not may_apply(version, [was for each, was in read.items() if each != worker], self._most):
            return None
        return worker

    def _apply(self, worker: int) -> None:
        """Update the weights with the gradient of a worker."""
        assert self._applied is not None, "a step was begun"
        shared, version = self._shared, self._shared.version
        told, share = self._arrived.pop(worker), self._under_way.pop(worker)
        if self._compensation is not None:
            for name, gradient in shared.gradients[worker].items():
                read = shared.weights_read[worker][name]
                compensate(gradient, shared.weights[name], read, self._compensation, told.predictions)
        for parameter, gradient in self._gradients[worker]:
            parameter.grad = gradient.to(parameter.device)  # a copy only from the host's memory to a GPU
        nats = torch.tensor(told.nats, dtype=torch.float64, device=self._learner.device)
        tally = Tally(nats, told.predictions)
        with shared.changing():
            update = self._learner.update(tally, self._rate(self._applied // self.workers))
            shared.put_weights(self._learner.optimizer.masters)
        norm = float(update.norm)
        if not (math.isfinite(told.nats) and math.isfinite(norm)):
            raise Fault(
                f"step {share.step}: the loss or the gradient is not finite; the update was not made, and the last "
                f"checkpoint is good. A smaller train.lr, a longer train.warmup or a smaller train.clip may help"
            )
        self._applied += 1
        self.staleness[version - int(shared.read[worker])] += 1
        self._sum = Sum(self._sum.nats + told.nats, self._sum.predictions + told.predictions)
        self._norms.append(norm)

    def _rate(self, step: int) -> float:
        return learning_rate(self._settings, self._schedule.progress(step + 0.5), self._schedule.warmup)


def counts(staleness: Mapping[int, int]) -> tuple[int, ...]:
    """How many gradients were stale by 0, 1, 2, … updates."""
    return tuple(staleness.get(number, 0) for number in range(max(staleness, default=-1) + 1))


def add_counts(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    return tuple(a + b for a, b in itertools.zip_longest(one, other, fillvalue=0))
