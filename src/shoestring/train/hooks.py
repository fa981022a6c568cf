"""What happens after a step: metrics, evaluation, pace, checkpoints. The loop knows nothing about any of them."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType

from shoestring.core.clock import Clock
from shoestring.core.errors import Fault
from shoestring.core.units import Seconds
from shoestring.track import LineFile
from shoestring.train.checkpoint import State
from shoestring.train.loop import Report, Wishes
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

    def due(self, step: int, total: int) -> bool:
        return step in self._steps or step == total

    def __call__(self, state: State, report: Report) -> State:
        if not self.due(state.step, state.course.total):
            return state
        started = time.perf_counter()
        scores = self._score()
        self._pace.took_overhead(time.perf_counter() - started, "evaluation")
        loss = scores["heldout_loss"]
        if not math.isfinite(loss):
            raise Fault(f"step {state.step}: the held-out loss is not finite; the last checkpoint is good")
        self._metrics.add(step=state.step, **scores)
        if state.best_loss is None or loss < state.best_loss:
            return replace(state, best_step=state.step, best_loss=loss)
        return state


class KeepPace:
    """Shortens the course when the machine is slower than planned, lengthens it when time would be left; says so."""

    def __init__(
        self, pace: Pace, wishes: Wishes, metrics: LineFile, say: Callable[[str], None], most: int | None = None
    ):
        """`most` are the steps that it may be lengthened to; None: it may not."""
        self._pace, self._wishes, self._metrics, self._say = pace, wishes, metrics, say
        self._most = most

    def __call__(self, state: State, report: Report) -> State:
        self._pace.took_step(report.seconds)
        left = state.course.total - state.step
        fits = self._pace.must_shorten_to(left)
        if fits is not None:
            self._wishes.total = state.step + fits
        elif self._most is not None and (more := self._pace.may_lengthen_to(left)) is not None:
            self._wishes.total = max(state.course.total, min(self._most, state.step + more))
        wanted = self._wishes.total if self._wishes.alone else report.agreed.total
        total = max(wanted, report.begun)
        longer = bool(left) and wanted > state.course.total
        return self._change(state, total) if wanted and (longer or total < state.course.total) else state

    def _change(self, state: State, total: int) -> State:
        pace, was = Seconds(self._pace.seconds_per_step or 0.0).short(), state.course.total
        steps = f"{total} of {was} steps fit the budget" if total < was else f"{total} steps fit the budget, not {was}"
        reason = f"at step {state.step} a step took {pace}, so {steps}"
        how, speed, rate = ("shortened", "slower", "faster") if total < was else ("lengthened", "faster", "slower")
        self._metrics.add(step=state.step, event=how, total=total, was=was)
        self._say(f"{speed} than planned: {reason}; the learning rate now falls {rate}, to end with the run")
        more = total > state.step
        course = state.course.ending(state.step, total) if more else replace(state.course, total=total)
        state = replace(state, course=course)
        return replace(state, shortened=reason) if total < was else replace(state, lengthened=reason)


@contextmanager
def listening(wishes: Wishes) -> Iterator[None]:
    """Take SIGTERM, SIGUSR1 and Ctrl-C as a wish to stop after the step, saved; a second Ctrl-C ends at once."""

    def note(number: int, _frame: FrameType | None) -> None:
        wishes.stops.add(signal.Signals(number).name)
        if number == signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)

    kept = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


class Save:
    """A checkpoint every so many seconds, at each new best, at the end, and when the session is to stop."""

    def __init__(
        self,
        save: Callable[[State, bool], None],
        wishes: Wishes,
        pace: Pace,
        every: float,
        limit: Callable[[], bool] = lambda: False,
    ):
        """`save` takes the state, and whether to wait until it is on disk; `limit` says that the time is up."""
        self._save, self._wishes, self._pace = save, wishes, pace
        self._every, self._limit = every, limit
        self._last = time.monotonic()
        self._stop: str | None = None
        self._wanted = False

    def due(self, step: int, total: int) -> bool:
        return self._wanted or step == total

    def __call__(self, state: State, report: Report) -> State:
        self._listen(report)
        last = state.step >= state.course.total
        settled = report.begun == state.step  # the weights are those after this step
        if settled and (self._wanted or last or state.step == state.best_step):
            started = time.perf_counter()
            self._save(state, last or self._stop is not None)
            self._pace.took_overhead(time.perf_counter() - started, "checkpoint")
            self._last, self._wanted, self._wishes.save = time.monotonic(), False, False
            if self._stop is not None and not last:
                said = f"stopped by {self._stop} after step {state.step}, saved"
                raise Fault(f"{said}; the same command goes on from there")
        return state

    def _listen(self, report: Report) -> None:
        """What this process wishes goes to all, and what they agreed on is wanted here."""
        self._wishes.save = time.monotonic() - self._last >= self._every
        if self._limit():
            self._wishes.stops.add("the time limit")
        heard = self._wishes.agreed() if self._wishes.alone else report.agreed
        self._stop = self._stop or heard.stop
        self._wanted = self._wanted or heard.save or heard.stop is not None
