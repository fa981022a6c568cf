"""What happens after a step: metrics, evaluation, pace, checkpoints. The loop knows nothing about any of them."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from types import FrameType

from shoestring.core.clock import Clock
from shoestring.core.errors import Fault
from shoestring.core.units import Seconds
from shoestring.track import LineFile
from shoestring.train.checkpoint import Checkpoints, State
from shoestring.train.learner import Learner
from shoestring.train.loop import Report
from shoestring.train.pace import Pace


class Log:
    """A metrics line every `every` steps: the mean loss since the last line. Timings go to a file of their own."""

    def __init__(self, metrics: LineFile, timings: LineFile, clock: Clock, every: int, tokens_per_step: int):
        self._metrics, self._timings, self._clock = metrics, timings, clock
        self._every, self._tokens = every, tokens_per_step
        self._since, self._steps = 0.0, 0

    def __call__(self, state: State, report: Report) -> State:
        nats, count = state.window_nats + report.loss.nats, state.window_count + report.loss.predictions
        self._since += report.seconds
        self._steps += 1
        if state.step % self._every and state.step != state.course.total:
            return replace(state, window_nats=nats, window_count=count)
        tokens = state.step * self._tokens
        self._metrics.add(step=state.step, tokens=tokens, loss=nats / count, lr=report.lr, grad_norm=report.grad_norm)
        rate = self._steps * self._tokens / self._since
        self._timings.add(step=state.step, elapsed=self._clock.elapsed(), tokens_per_second=rate)
        self._since, self._steps = 0.0, 0
        return replace(state, window_nats=0.0, window_count=0)


class Evaluate:
    """Held-out scores at fixed fractions of the planned steps and after the last one."""

    def __init__(
        self, score: Callable[[], dict[str, float]], metrics: LineFile, pace: Pace, planned: int, every: float
    ):
        self._score, self._metrics, self._pace = score, metrics, pace
        self._steps = {math.ceil(planned * every * k) for k in range(1, math.ceil(1 / every) + 1)}

    def __call__(self, state: State, report: Report) -> State:
        if state.step not in self._steps and state.step != state.course.total:
            return state
        started = time.perf_counter()
        scores = self._score()
        self._pace.took_overhead(time.perf_counter() - started)
        loss = scores["heldout_loss"]
        if not math.isfinite(loss):
            raise Fault(f"step {state.step}: the held-out loss is not finite; the last checkpoint is good")
        self._metrics.add(step=state.step, **scores)
        if state.best_loss is None or loss < state.best_loss:
            return replace(state, best_step=state.step, best_loss=loss)
        return state


class KeepPace:
    """Shortens the course when the machine is slower than planned, and says so."""

    def __init__(self, pace: Pace, metrics: LineFile, say: Callable[[str], None]):
        self._pace, self._metrics, self._say = pace, metrics, say

    def __call__(self, state: State, report: Report) -> State:
        self._pace.took_step(report.seconds)
        left = state.course.total - state.step
        fits = self._pace.must_shorten_to(left)
        if fits is None:
            return state
        total = state.step + fits
        pace = Seconds(self._pace.seconds_per_step or 0.0).short()
        reason = f"at step {state.step} a step took {pace}, so {total} of {state.course.total} steps fit the budget"
        self._metrics.add(step=state.step, event="shortened", total=total, was=state.course.total)
        self._say(f"slower than planned: {reason}; the learning rate now falls faster, to end with the run")
        course = state.course.shortened(state.step, total) if fits else replace(state.course, total=total)
        return replace(state, course=course, shortened=reason)


class Save:
    """A checkpoint every so many seconds, at each new best, at the end, and when a signal asks the run to stop."""

    def __init__(self, checkpoints: Checkpoints, learner: Learner, metrics: LineFile, pace: Pace, every: float):
        self._checkpoints, self._learner, self._metrics, self._pace = checkpoints, learner, metrics, pace
        self._every = every
        self._last = time.monotonic()
        self._signal: int | None = None

    def listen(self) -> None:
        """Take SIGTERM and Ctrl-C as a wish to stop after the step, saved."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._signal = number
        signal.signal(number, signal.SIG_DFL)  # the second one ends the process at once

    def __call__(self, state: State, report: Report) -> State:
        due = time.monotonic() - self._last >= self._every
        if due or self._signal or state.step in (state.course.total, state.best_step):
            started = time.perf_counter()
            self._metrics.sync()
            self._checkpoints.save(self._learner, state)
            self._pace.took_overhead(time.perf_counter() - started)
            self._last = time.monotonic()
        if self._signal:
            name = signal.Signals(self._signal).name
            raise Fault(f"stopped by {name} after step {state.step}, saved; the same command goes on from there")
        return state
