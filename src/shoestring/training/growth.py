"""Batches that grow: once the gradient noise scale is larger, an update takes the rows of 2, 4, … steps.

A step reads as many rows as always, in the same order. Where the batch has grown, only the last of `passes` steps
updates the weights, from the gradients of all. So micro-batch, plan, epochs and resuming are those of steps.

The noise scale (McCandlish et al. 2018, "simple") is the trace of the gradient's covariance divided by its squared
length: in a batch of that size noise and gradient are equally long. Both come from the squared norms
of a part and of the whole. The part is the first pass of a process; where that is a whole update, the first update of
a window takes the rows of two steps.

A decision depends on steps that all runs have read by then, so it is the same however a run was interrupted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shoestring.core.results import Grown
from shoestring.track import LineFile
from shoestring.training.checkpoint import State
from shoestring.training.loop import Report, Requests, Sum
from shoestring.training.passes import Tally
from shoestring.training.schedule import Schedule
from shoestring.training.stepper import NetworkStep, Stepper

WINDOW = 32
"""Steps between decisions; a multiple of all passes."""
LOOKED_AT = 4
"""Windows whose mean decides: those before the last, which may not be read yet."""
FACTOR = 2.0
"""The batch doubles where the noise scale is so many times as large."""


class Noise(NamedTuple):
    """Sums over updates."""

    squares: float = 0.0
    """Squared lengths of the gradient."""
    trace: float = 0.0
    """Traces of its covariance, for one prediction."""
    predictions: float = 0.0
    steps: int = 0
    """That these were of."""

    def plus(self, other: Noise) -> Noise:
        return Noise(
            self.squares + other.squares,
            self.trace + other.trace,
            self.predictions + other.predictions,
            self.steps + other.steps,
        )

    @property
    def scale(self) -> float:
        """The batch in steps where noise and gradient are equally long; infinite if all is noise."""
        if self.squares <= 0:
            return math.inf
        return max(0.0, self.trace) / self.squares * self.steps / self.predictions


def noise_of(part: float, small: float, whole: float, big: float, steps: int) -> Noise:
    """From the squared norms of the mean gradients of `small` and of `big` predictions, which are of so many steps.

    Both estimates are unbiased.
    """
    squares, trace = (big * whole - small * part) / (big - small), (part - whole) / (1 / small - 1 / big)
    return Noise(squares, trace, big, steps)


class Growth:
    """How many steps an update takes, and why."""

    def __init__(self, most: int, divided: bool):
        """`most` doublings; `divided`: a step has several passes or processes, so that parts are at hand."""
        self.most, self.divided = most, divided
        self.passes = 1
        self.noise: float | None = None
        """The scale in steps that the last decision saw."""
        self._decided = -1
        self._windows: dict[int, Noise] = {}

    @property
    def _probe(self) -> int:
        """Steps of the first update of a window: two where there is no other way to have a part."""
        return 2 if self.passes == 1 and not self.divided else self.passes

    def decide(self, step: int) -> bool:
        """At the begin of a step: whether the batch doubles now."""
        window = step // WINDOW
        if step % WINDOW or window <= self._decided:
            return False
        self._decided, first = window, window - 1 - LOOKED_AT
        seen = [self._windows[w] for w in range(first, window - 1) if w in self._windows]
        self._windows = {w: noise for w, noise in self._windows.items() if w > first}
        if len(seen) < LOOKED_AT:
            return False
        self.noise = reduce(Noise.plus, seen).scale
        grows = self.passes < 1 << self.most and self.noise > FACTOR * self.passes
        self.passes *= 2 if grows else 1
        return grows

    def updates(self, step: int, schedule: Schedule) -> bool:
        """Whether the weights are updated after so many steps."""
        if step >= schedule.total or schedule.begins_cooldown(step):
            return True
        within = (step - 1) % WINDOW + 1
        return within >= self._probe and (within - self._probe) % self.passes == 0

    def add(self, step: int, noise: Noise) -> None:
        """Note what was measured in an update that ended with a step."""
        window = step // WINDOW
        self._windows[window] = self._windows.get(window, Noise()).plus(noise)

    def saved(self) -> dict[str, Any]:
        windows = [[window, *noise] for window, noise in sorted(self._windows.items())]
        noise = "inf" if self.noise == math.inf else self.noise
        return {"passes": self.passes, "decided": self._decided, "noise": noise, "windows": windows}

    def put(self, values: dict[str, Any]) -> None:
        self.passes, self._decided = values["passes"], values["decided"]
        self.noise = None if values["noise"] is None else float(values["noise"])
        self._windows = {window: Noise(*noise) for window, *noise in values["windows"]}


class GrowingStep(NamedTuple):
    """A step whose gradient waits for those that follow, or an update from the gradients of some."""

    number: int
    lr: float
    first: int
    """The first step of its update."""
    inner: NetworkStep | None
    """The update, if there is one after this step."""
    done: torch.cuda.Event | None
    ended: float | None
    stepper: GrowingStepper

    def read(self) -> Report:
        if self.done is not None:
            self.done.synchronize()
        if self.inner is None:
            return Report(Sum(0.0, 0), self.lr, consolidated=False)
        return self.stepper.finish(self, self.inner)


class GrowingStepper(Stepper):
    """Steps whose updates take the rows of several, once the gradient noise says so."""

    def __init__(self, *args: Any, most: int, say: Callable[[str], object] = lambda _: None, **rest: Any):
        super().__init__(*args, **rest)
        self.learner.notes_part = True
        self.growth, self._say = Growth(most, self.learner.group.world > 1 or self.per_device < self._batch), say
        self._first: int | None = None
        """The first step since the last update."""
        self._failed = 0
        self._held: Tally | None = None
        """Of the steps since the last update."""

    def begin(self, step: int, schedule: Schedule, requests: Requests) -> GrowingStep:  # type: ignore[override]
        if self.growth.decide(step):
            grown = self.grown()
            noise = "beyond measure" if grown.noise is None else f"{grown.noise:,.0f} rows"
            self._say(f"step {step:,}: updates take {grown.rows:,} rows from here on; the gradient noise is {noise}")
        first = step if self._first is None else self._first
        if self._held is None:
            for earlier in range(first, step):  # a pass did not fit, and all of the update are repeated
                self._hold(self.take_rows(earlier)[2])
        index, rows, tally = self.take_rows(step)
        held, lr = self._hold(tally), self.rate(step, schedule) * math.sqrt(self.growth.passes)
        if not (self.growth.updates(step + 1, schedule) or self._settings.is_saved(step + 1)):
            self._first, done = first, _event(self.learner.device)
            return GrowingStep(step, lr, first, None, done, time.perf_counter() if done is None else None, self)
        part, small = self.learner.part
        requested = requests.numbers(self.learner.group.rank)
        others: list[float | Tensor] = [*requested, part / max(1, small) ** 2, float(small)]
        self._held, self._first = None, None
        inner = self.update(step, index, rows, held, lr, others)
        return GrowingStep(step, lr, first, inner, inner.done, inner.ended, self)

    def _hold(self, tally: Tally) -> Tally:
        before = self._held
        if before is not None:
            fitted = before.fitted and tally.fitted
            tally = Tally(before.nats + tally.nats, before.predictions + tally.predictions, fitted)
        self._held = tally
        return tally

    def finish(self, step: GrowingStep, inner: NetworkStep) -> Report:
        """The report of an update; its part is noted."""
        report = inner.read()
        if report.unfitted:
            self._failed = step.first
        elif not report.skipped:
            *_, part, small = (number / self.learner.group.world for number in inner.values())
            big, steps = float(report.loss.predictions), step.number + 1 - step.first
            if 0 < small < big:
                self.growth.add(step.number, noise_of(part, small, report.grad_norm**2, big, steps))
        return report

    def halve(self) -> int:
        self._first, self._held = self._failed, None
        return super().halve()

    def put(self, values: dict[str, Any]) -> None:
        """Continue as saved."""
        self.growth.put(values)
        self._first, self._held = None, None

    def grown(self) -> Grown:
        """The rows of an update, and the noise scale in rows."""
        noise = self.growth.noise
        rows = None if noise is None or noise == math.inf else noise * self._batch
        return Grown(rows=self.growth.passes * self._batch, noise=rows)


def _event(device: torch.device) -> torch.cuda.Event | None:
    """What is done once the device has done all before it; None for a CPU, where it is done."""
    if device.type != "cuda":
        return None
    done = torch.cuda.Event()
    done.record()
    return done


class NoiseLines:
    """A hook: a metrics line of each window, with the noise scale that it began with and the rows of its updates."""

    def __init__(self, stepper: GrowingStepper, metrics: LineFile):
        self._stepper, self._metrics = stepper, metrics
        self._last: int | None = None
        """The step of the last update."""

    def __call__(self, state: State, report: Report) -> State:
        last, now = state.step - 1 if self._last is None else self._last, state.step
        self._last = now if report.consolidated else last
        # two steps late: by then all runs have begun the window
        if report.consolidated and (now - 2) // WINDOW > (last - 2) // WINDOW:
            grown = self._stepper.grown()
            noise = {} if grown.noise is None else {"gradient_noise": grown.noise}
            self._metrics.add(step=now, update_rows=grown.rows, **noise)
        return state
