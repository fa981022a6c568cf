"""Hooks of the loop: metrics, evaluation, deadline, checkpoints."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from operator import attrgetter
from types import FrameType

from shoestring.core.clock import Clock
from shoestring.core.errors import Fault
from shoestring.core.units import Seconds
from shoestring.track import LineFile, read_lines
from shoestring.training.checkpoint import State
from shoestring.training.loop import Report, Requests
from shoestring.training.schedule import Deadline


class Log:
    """A metrics line every `every` steps: the mean loss since the last line. Timings go to a separate file."""

    def __init__(self, metrics: LineFile, timings: LineFile, clock: Clock, every: int, tokens_per_step: int):
        self._metrics, self._timings, self._clock = metrics, timings, clock
        self._every, self._tokens = every, tokens_per_step
        self._since, self._steps = 0.0, 0

    def __call__(self, state: State, report: Report) -> State:
        nats, count = state.window_nats + report.loss.nats, state.window_count + report.loss.predictions
        self._since += report.seconds
        self._steps += 1
        if state.step % self._every and state.step != state.schedule.total:
            return replace(state, window_nats=nats, window_count=count)
        tokens = state.step * self._tokens
        self._metrics.add(step=state.step, tokens=tokens, loss=nats / count, lr=report.lr, grad_norm=report.grad_norm)
        rate = self._steps * self._tokens / self._since
        self._timings.add(step=state.step, elapsed=self._clock.elapsed(), tokens_per_second=rate)
        self._since, self._steps = 0.0, 0
        return replace(state, window_nats=0.0, window_count=0)


Label = Callable[[State], int]
"""The `step` of a metrics line: the number of the step, or of the epoch."""


def evaluation_steps(planned: int, every: float) -> set[int]:
    """Steps at fixed fractions of the planned ones."""
    return {math.ceil(planned * every * k) for k in range(1, math.ceil(1 / every) + 1)}


@dataclass
class Evaluate:
    """Held-out scores after some steps and after the last one."""

    score: Callable[[], dict[str, float]]
    metrics: LineFile
    deadline: Deadline
    steps: Collection[int]
    label: Label = attrgetter("step")

    def __post_init__(self) -> None:
        self._written = {line["step"] for line in read_lines(self.metrics.path) if "heldout_loss" in line}

    def due(self, step: int, total: int) -> bool:
        return step in self.steps or step == total

    def __call__(self, state: State, report: Report) -> State:
        if not self.due(state.step, state.schedule.total):
            return state
        started = time.perf_counter()
        scores = self.score()
        self.deadline.took_overhead(time.perf_counter() - started, "evaluation")
        loss = scores["heldout_loss"]
        if not math.isfinite(loss):
            raise Fault(f"step {state.step}: the held-out loss is not finite; the last checkpoint is good")
        label = self.label(state)
        if label not in self._written:  # an epoch was scored already if time is up in the next one
            self.metrics.add(step=label, **scores)
            self._written.add(label)
        if state.best_loss is None or loss < state.best_loss:
            return replace(state, best_step=state.step, best_loss=loss)
        return state


@dataclass
class KeepDeadline:
    """Shortens the schedule on a slower machine than planned, lengthens it if time would be left, and reports it."""

    deadline: Deadline
    requests: Requests
    metrics: LineFile
    say: Callable[[str], None]
    most: float | None = None
    """Steps that the schedule may be lengthened to; None: it is not lengthened."""
    label: Label = attrgetter("step")
    decays: bool = True
    """Whether there is a learning rate."""

    def __call__(self, state: State, report: Report) -> State:
        self.deadline.took_step(report.seconds)
        left = state.schedule.total - state.step
        fits = self.deadline.must_shorten_to(left)
        if fits is not None:
            self.requests.total = state.step + fits
        elif self.most is not None:
            more = self.deadline.may_lengthen_to(left, guess=not self.decays)  # a guess may spoil the learning rate
            if more is not None:
                self.requests.total = max(state.schedule.total, int(min(self.most, state.step + more)))
        requested = self.requests.total if self.requests.alone else report.consensus.total
        total = max(requested, report.begun)
        longer = bool(left) and requested > state.schedule.total
        return self._change(state, total) if requested and (longer or total < state.schedule.total) else state

    def _change(self, state: State, total: int) -> State:
        took, was = Seconds(self.deadline.seconds_per_step or 0.0).short(), state.schedule.total
        steps = f"{total} of {was} steps fit the budget" if total < was else f"{total} steps fit the budget, not {was}"
        reason = f"at step {state.step} a step took {took}, so {steps}"
        how, speed, rate = ("shortened", "slower", "faster") if total < was else ("lengthened", "faster", "slower")
        self.metrics.add(step=self.label(state), event=how, total=total, was=was)
        effect = f"; the learning rate now falls {rate}, to end with the run" if self.decays else ""
        self.say(f"{speed} than planned: {reason}{effect}")
        more = total > state.step
        schedule = state.schedule.ending(state.step, total) if more else replace(state.schedule, total=total)
        state = replace(state, schedule=schedule)
        return replace(state, shortened=reason) if total < was else replace(state, lengthened=reason)


@contextmanager
def listening(requests: Requests) -> Iterator[None]:
    """Save and stop after the current step on SIGTERM, SIGUSR1 and Ctrl-C; a second Ctrl-C ends the process at once."""

    def note(number: int, _frame: FrameType | None) -> None:
        requests.stops.add(signal.Signals(number).name)
        if number == signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)

    if threading.current_thread() is not threading.main_thread():  # only that one receives signals
        yield
        return
    kept = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


class Stopped(Fault):
    """The session was requested to stop, and has saved."""


@dataclass
class Save:
    """A checkpoint every `every` seconds, at each new best, at the end, and before the session stops."""

    save: Callable[[State, bool], None]
    """Takes the state, and whether to wait until it is on disk."""
    requests: Requests
    deadline: Deadline
    every: float
    limit: Callable[[], bool] = lambda: False
    """Whether the time is up."""
    _stop: str | None = field(default=None, init=False)
    _pending: bool = field(default=False, init=False)
    _last: float = field(default_factory=lambda: time.monotonic(), init=False)

    def due(self, step: int, total: int) -> bool:
        return self._pending or step == total

    def __call__(self, state: State, report: Report) -> State:
        self._listen(report)
        last = state.step >= state.schedule.total
        settled = report.begun == state.step  # the weights are those after this step
        if settled and (self._pending or last or state.step == state.best_step):
            started = time.perf_counter()
            self.save(state, last or self._stop is not None)
            self.deadline.took_overhead(time.perf_counter() - started, "checkpoint")
            self._last, self._pending, self.requests.save = time.monotonic(), False, False
            if self._stop is not None and not last:
                said = f"stopped by {self._stop} after step {state.step}, saved"
                raise Stopped(f"{said}; the same command continues from there")
        return state

    def _listen(self, report: Report) -> None:
        """Send the requests of this process to all, and follow what they agreed on."""
        self.requests.save = time.monotonic() - self._last >= self.every
        if self.limit():
            self.requests.stops.add("the time limit")
        agreed = self.requests.consensus() if self.requests.alone else report.consensus
        self._stop = self._stop or agreed.stop
        self._pending = self._pending or agreed.save or agreed.stop is not None
