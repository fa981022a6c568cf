"""The loop. A *step* is one unit of a worker's work: an update of a network with its effective batch, or of an HMM.

A step is given to the device while the one before still runs there, so that the device never waits for the host. Then
the numbers of the earlier step are read, and every hook gets the new `State` and returns the one to continue with. A
hook that is due after a step reads the weights: until it has run, the device gets no further step.

What depends on a clock or a signal is a request. It travels with the numbers of a step, which are summed over the
processes, and returns to all of them with that step. So all processes do the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from shoestring.training.checkpoint import State
from shoestring.training.schedule import Schedule


class Sum(NamedTuple):
    """A loss over many predictions, not divided yet."""

    nats: float
    predictions: int

    @property
    def mean(self) -> float:
        return self.nats / self.predictions


STOPS = ("SIGTERM", "SIGINT", "SIGUSR1", "the time limit", "--until")
"""What can stop a session before its run is finished."""


class Consensus(NamedTuple):
    """The requests that all processes know."""

    total: int = 0
    save: bool = False
    stop: str | None = None
    share: float = 0.0

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Consensus:
        """From `Requests.numbers`, summed over the processes."""
        total, save, share, *stops = numbers
        stop = next((name for name, requested in zip(STOPS, stops) if requested), None)
        return cls(int(total), bool(save), stop, share)


NO_REQUESTS = Consensus()


@dataclass
class Requests:
    """What the first process requests of all, and the reasons to stop of any process."""

    total: int = 0
    """The new length of the schedule, in steps; 0: unchanged."""
    save: bool = False
    share: float = 0.0
    """Of the corpus, prepared meanwhile, that shall be read from the next step on."""
    stops: set[str] = field(default_factory=set)
    alone: bool = True
    """Whether there is only one process."""

    def numbers(self, rank: int) -> list[float]:
        first = rank == 0
        return [self.total * first, self.save * first, self.share * first, *(name in self.stops for name in STOPS)]

    def consensus(self) -> Consensus:
        """The consensus of a single process."""
        return Consensus.of(self.numbers(0))


class Report(NamedTuple):
    """The result of a step, on the host."""

    loss: Sum
    lr: float = 0.0
    grad_norm: float = 0.0
    unfitted: bool = False
    """The memory did not suffice, and nothing was changed."""
    consensus: Consensus = NO_REQUESTS
    finished: bool = False
    """Whether the work is over, however many steps were planned."""
    detail: Any = None
    """What the worker tells its own hooks."""
    skipped: int = 0
    """Steps since the last report whose gradient overflowed in fp16, and whose update was not made; the run continues
    with a smaller loss scale."""
    seconds: float = 0.0
    """Set by the loop, like `begun`."""
    begun: int = 0
    """Steps that were given to the device: one more than were taken, where no hook is due."""
    consolidated: bool = True
    """Whether the workers have met after this step. If not, the loss is not known yet: that of the step in which they
    meet is of all steps since the last time."""

    def settled(self, step: int) -> bool:
        """Whether the weights are those of the run after `step` steps."""
        return self.consolidated and self.begun <= step


class Hook(Protocol):
    """Runs after every step."""

    def due(self, step: int, schedule: Schedule) -> bool:
        """Whether it reads the weights as they are after this step; a plain function never does."""

    def __call__(self, state: State, report: Report) -> State: ...


AnyHook = Hook | Callable[[State, Report], State]


class PendingStep(Protocol):
    """A step that was given to the device."""

    @property
    def number(self) -> int:
        """Steps that were begun before it."""

    @property
    def ended(self) -> float | None:
        """When it was done, if that is known at once; another step may have begun since."""

    def read(self) -> Report:
        """Wait for this step, but for none after it; raises a Fault if its numbers are not finite."""


class Worker(Protocol):
    """What takes the steps of a run."""

    def begin(self, step: int, schedule: Schedule, requests: Requests) -> PendingStep:
        """Start the step that follows `step` earlier ones."""

    def halve(self) -> int:
        """Continue with half the micro-batch, and return its rows; the steps stay the same."""

    @property
    def looks_ahead(self) -> bool:
        """Whether a step may be begun before the hooks of the last one have run."""

    def meets(self, step: int, schedule: Schedule) -> bool:
        """Whether it exchanges weights with others after this step, so that the next one must wait for that."""


class Loop:
    """Steps of a worker, with hooks after each."""

    def __init__(
        self,
        worker: Worker,
        hooks: Sequence[AnyHook],
        requests: Requests | None = None,
        halved: Callable[[int, int], None] | None = None,
    ):
        """`halved` gets the number of every step that did not fit the memory, and the rows of the next micro-batch."""
        self._worker, self._hooks, self._halved = worker, hooks, halved
        self._requests = requests or Requests()
        self._finished_at = time.perf_counter()

    def run(self, state: State) -> State:
        """Take the steps from `state` to the end of its schedule."""
        ahead: PendingStep | None = None
        self._finished_at = time.perf_counter()
        while state.step < state.schedule.total:
            pending = ahead or self._worker.begin(state.step, state.schedule, self._requests)
            ahead = None
            if self._worker.looks_ahead and not self._is_due(state):
                ahead = self._worker.begin(state.step + 1, state.schedule, self._requests)
            result = pending.read()
            if result.unfitted:
                rows = self._worker.halve()
                if self._halved is not None:
                    self._halved(pending.number, rows)
                ahead = None  # refused as well
                continue
            state = self._finish_step(pending, result, state, begun=pending.number + (1 if ahead is None else 2))
        return state

    def _is_due(self, state: State) -> bool:
        """Whether the weights are read or exchanged after the step that follows `state`."""
        step, schedule = state.step + 1, state.schedule
        if step >= schedule.total or self._worker.meets(step, schedule):
            return True
        return any(hook.due(step, schedule) for hook in self._hooks if hasattr(hook, "due"))

    def _finish_step(self, pending: PendingStep, result: Report, state: State, begun: int) -> State:
        """The state after a step, once all hooks have run."""
        now = time.perf_counter() if pending.ended is None else pending.ended
        report = result._replace(seconds=now - self._finished_at, begun=begun)
        state = replace(state, step=pending.number + 1, skipped=state.skipped + result.skipped)
        if result.finished:
            state = replace(state, schedule=replace(state.schedule, total=state.step))
        for hook in self._hooks:
            state = hook(state, report)
        waited = begun == pending.number + 1  # the device had nothing to do while the hooks ran
        self._finished_at = time.perf_counter() if waited else now
        return state
