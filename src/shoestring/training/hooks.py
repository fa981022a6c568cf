"""Hooks of the loop: metrics, evaluation, deadline, checkpoints."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from operator import attrgetter
from types import FrameType
from typing import Protocol

from shoestring.core.clock import Clock
from shoestring.core.errors import Fault
from shoestring.track import LineFile, read_lines
from shoestring.training.checkpoint import State
from shoestring.training.deadline import Deadline
from shoestring.training.loop import Report, Requests
from shoestring.training.schedule import Schedule


class Log:
    """A metrics line every `every` steps: the mean loss since the last line. Timings go to a separate file.

    A step that was skipped has no norm of the gradient, and after it lines have the number of all that were.
    """

    def __init__(self, metrics: LineFile, timings: LineFile, clock: Clock, every: int, tokens_per_step: int):
        self._metrics, self._timings, self._clock = metrics, timings, clock
        self._every, self._tokens = every, tokens_per_step
        self._since, self._steps = 0.0, 0
        self._last: int | None = None
        """The step of the last report with a loss."""

    def __call__(self, state: State, report: Report) -> State:
        nats, count = state.window_nats + report.loss.nats, state.window_count + report.loss.predictions
        if state.predictions is not None:
            state = replace(state, predictions=state.predictions + report.loss.predictions)
        self._since += report.seconds
        self._steps += 1
        last = state.step - 1 if self._last is None else self._last
        self._last = state.step if report.consolidated else last
        due = state.step // self._every > last // self._every or state.step == state.schedule.total
        if not (due and report.consolidated):
            return replace(state, window_nats=nats, window_count=count)
        tokens = state.step * self._tokens
        numbers = {} if report.skipped else {"grad_norm": report.grad_norm}
        numbers |= {"skipped": state.skipped} if state.skipped else {}
        self._metrics.add(step=state.step, tokens=tokens, loss=nats / count, lr=report.lr, **numbers)
        rate = self._steps * self._tokens / self._since
        self._timings.add(step=state.step, elapsed=self._clock.elapsed(), tokens_per_second=rate)
        self._since, self._steps = 0.0, 0
        return replace(state, window_nats=0.0, window_count=0)


Label = Callable[[State], int]
"""The `step` of a metrics line: the number of the step, or of the epoch."""


class Evenly:
    """Whether a share `every` of the schedule has passed since the last evaluation: due at the same steps as planned,
    and at as many of a schedule that was changed."""

    def __init__(self, every: float, state: State):
        self._every = every
        self._reached = self._number(state.step, state.schedule)

    def _number(self, step: int, schedule: Schedule) -> int:
        return math.floor(schedule.progress(step) / self._every + 1e-9)

    def __call__(self, step: int, schedule: Schedule) -> bool:
        return self._number(step, schedule) > self._reached

    def taken(self, step: int, schedule: Schedule) -> None:
        self._reached = self._number(step, schedule)


PATIENCE = 2
"""So many evaluations in a row that show overfitting end a run."""
_NOISE, _CLEAR = 2.0, 6.0
"""A held-out loss that is this many standard errors above the best one is no noise; or beyond doubt, and one is enough.
The errors are of the loss itself: that of a difference on the same rows is smaller."""


class Wanted(Protocol):
    """When held-out rows are scored, besides at the end."""

    def __call__(self, step: int, schedule: Schedule) -> bool: ...

    def taken(self, step: int, schedule: Schedule) -> None:
        """Note that they were scored after this step."""


@dataclass
class Evaluate:
    """Held-out scores after some steps and after the last one."""

    score: Callable[[], dict[str, float]]
    metrics: LineFile
    deadline: Deadline
    wanted: Wanted
    label: Label = attrgetter("step")

    def __post_init__(self) -> None:
        self._written = {line["step"] for line in read_lines(self.metrics.path) if "heldout_loss" in line}
        self._last = self.deadline.clock.elapsed()

    def due(self, step: int, schedule: Schedule) -> bool:
        return step == schedule.total or (self.wanted(step, schedule) and not self.deadline.too_soon(self._last))

    def __call__(self, state: State, report: Report) -> State:
        nats, count = state.since_nats + report.loss.nats, state.since_count + report.loss.predictions
        state = replace(state, since_nats=nats, since_count=count)
        # a schedule that changes just now makes a step due whose successor is begun
        if not report.settled(state.step) or not self.due(state.step, state.schedule):
            return state
        self.wanted.taken(state.step, state.schedule)
        started = time.perf_counter()
        scores = self.score()
        self.deadline.took_overhead(time.perf_counter() - started, "evaluation")
        self._last = self.deadline.clock.elapsed()
        loss = scores["heldout_loss"]
        for name in (name for name in scores if name.startswith("heldout_loss") and not math.isfinite(scores[name])):
            what = "held-out loss" + name.removeprefix("heldout_loss").replace("/", " of ")
            raise Fault(f"step {state.step}: the {what} is not finite; the last checkpoint is good")
        label = self.label(state)
        if label not in self._written:  # an epoch was scored already if time is up in the next one
            self.metrics.add(step=label, **scores)
            self._written.add(label)
        return _judged(replace(state, since_nats=0.0, since_count=0), loss, scores.get("heldout_error"), nats / count)


def _judged(state: State, loss: float, error: float | None, train: float) -> State:
    """The state after an evaluation: whether it is the best one, or shows that the run overfits."""
    if state.best_loss is None or loss < state.best_loss:
        progress = state.schedule.progress(state.step)
        return replace(state, worse=0, best_step=state.step, best_loss=loss, best_train=train, best_progress=progress)
    above, fell = loss - state.best_loss, state.best_train is not None and train < state.best_train
    if error is None or not fell or above <= _NOISE * error:
        return replace(state, worse=0)
    return replace(state, worse=PATIENCE if above > _CLEAR * error else state.worse + 1)


_NOTABLE = 0.1
"""A schedule that differs by this share from the planned one is worth a line; by twice this share from the one of the
first line, another; and so on."""


@dataclass
class KeepDeadline:
    """Shortens the schedule on a slower machine than planned, lengthens it if time would be left, and reports it."""

    deadline: Deadline
    requests: Requests
    metrics: LineFile
    say: Callable[[str], None]
    planned: int
    """Steps."""
    most: float | None = None
    """Steps that the schedule may be lengthened to; None: it is not lengthened."""
    label: Label = attrgetter("step")
    decays: bool = True
    """Whether there is a learning rate."""
    unit: str = "step"
    quiet: bool = False
    """Whether changes are no news."""
    _said: int | None = field(default=None, init=False)
    """The total in the last line, or at the start of the session."""
    _lines: int = field(default=0, init=False)

    def __call__(self, state: State, report: Report) -> State:
        schedule = state.schedule
        self._said = schedule.total if self._said is None else self._said
        self.deadline.took_step(report.seconds)
        left = schedule.total - state.step
        more = self.most is not None and self.most > schedule.total
        more = more and not report.finished and (left > 0 or self.requests.alone)
        more = more and not state.worse and state.turned is None  # more of what makes it worse
        fits = self.deadline.steps_to_take(left, schedule.progress(state.step), more)
        if fits is not None:
            most = math.inf if self.most is None else max(self.most, schedule.total)
            self.requests.total = int(min(most, state.step + fits))
        requested = self.requests.total if self.requests.alone else report.consensus.total
        total = max(requested, report.begun)
        longer = more and requested > schedule.total
        return self._change(state, total, report.begun) if requested and (longer or total < schedule.total) else state

    def _change(self, state: State, total: int, begun: int) -> State:
        was = state.schedule.total
        self.metrics.add(
            step=self.label(state), event="shortened" if total < was else "lengthened", total=total, was=was
        )
        next_step = max(state.step, begun)
        more = total > next_step
        schedule = state.schedule.ending(next_step, total) if more else replace(state.schedule, total=total)
        why = f"{self.unit} {state.step:,}: {self.deadline.why(self.unit)}"
        if self.quiet:
            self._said = total
        elif abs(math.log(total / (self._said or total))) > _NOTABLE * (1 + self._lines):
            self._said, self._lines = total, self._lines + 1
            effect = "; the learning rate decays over them" if self.decays and more else ""
            self.say(f"{why}; so {self._fitting(total)}{effect}")
        state = replace(state, schedule=schedule, shortened=None, lengthened=None)
        if total == self.planned:
            return state
        return replace(state, shortened=why) if total < self.planned else replace(state, lengthened=why)

    def _fitting(self, total: int) -> str:
        if total == self.most:
            return f"the run has {total:,} {self.unit}s, which is all that its other budgets allow"
        return f"{total:,} {self.unit}s fit the time, planned: {self.planned:,}"


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
    """A checkpoint every `every` seconds, after some steps, at each new best, after a return to it, before a cool-down,
    at the end, and before the session stops."""

    save: Callable[[State, bool], None]
    """Takes the state, and whether to wait until it is on disk."""
    requests: Requests
    deadline: Deadline
    every: Callable[[], float]
    """Seconds."""
    limit: Callable[[], bool] = lambda: False
    """Whether the time is up."""
    enough: Callable[[State], bool] = lambda _: False
    """Whether the session was to go only so far."""
    is_saved: Callable[[int], bool] = lambda _: False
    """Whether a step has a checkpoint in any case."""
    _stop: str | None = field(default=None, init=False)
    _pending: bool = field(default=False, init=False)
    _last: float = field(default_factory=lambda: time.monotonic(), init=False)

    def due(self, step: int, schedule: Schedule) -> bool:
        kept = self.is_saved(step) or schedule.begins_cooldown(step)
        return self._pending or step == schedule.total or kept

    def __call__(self, state: State, report: Report) -> State:
        self._listen(state, report)
        last = state.step >= state.schedule.total
        settled = report.settled(state.step)
        if settled and not last and state.schedule.begins_cooldown(state.step):
            state = replace(state, peak_step=state.step)
        wanted = last or state.step in (state.best_step, state.turned, state.peak_step) or self.is_saved(state.step)
        if settled and (self._pending or wanted):
            started = time.perf_counter()
            self.save(state, last or self._stop is not None)
            self.deadline.took_overhead(time.perf_counter() - started, "checkpoint")
            self._last, self._pending, self.requests.save = time.monotonic(), False, False
            if self._stop is not None and not last:
                said = f"stopped by {self._stop} after step {state.step}, saved"
                raise Stopped(f"{said}; the same command continues from there")
        return state

    def _listen(self, state: State, report: Report) -> None:
        """Send the requests of this process to all, and follow what they agreed on."""
        self.requests.save = time.monotonic() - self._last >= self.every()
        if self.limit():
            self.requests.stops.add("the time limit")
        if self.enough(state):
            self.requests.stops.add("--until")
        agreed = self.requests.consensus() if self.requests.alone else report.consensus
        self._stop = self._stop or agreed.stop
        self._pending = self._pending or agreed.save or agreed.stop is not None
