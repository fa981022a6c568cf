"""In which order the runs of a sweep are run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from shoestring.core.recipe import Recipe
from shoestring.core.records import Plan
from shoestring.core.results import Forecast, Outcome
from shoestring.core.run_folder import RunFolder
from shoestring.core.sections import number
from shoestring.core.sweep_folder import SweepRun
from shoestring.core.units import Seconds
from shoestring.core.warmup import least_steps
from shoestring.report.forecast import rough_forecast
from shoestring.studies.sweep.driver import Job, Result
from shoestring.studies.sweep.halving import (
    Mark,
    Method,
    Next,
    cost,
    forecast_rungs,
    judged,
    kept_of,
    ladder_for,
    next_at_once,
    next_by_rung,
    next_if_time_is_left,
)
from shoestring.studies.sweep.pace import Pace
from shoestring.studies.sweep.states import counted_steps
from shoestring.studies.sweep.survey import Survey
from shoestring.track import read_lines
from shoestring.track.curve import Curve


class InOrder:
    """Every run to its end, in the order of the index; one for which there is no time is passed over."""

    def __init__(self, found: Survey, now: Callable[[], float] | None = None):
        """`now` counts seconds from the beginning of the sweep; default: from this call."""
        began = time.monotonic()
        self._found = found
        self._waiting = list(found.to_do)
        self._count, self._ended = len(self._waiting), 0
        expected = {run.name: found.seconds(run).expected for run in self._waiting}
        self._pace = Pace(expected, found.slots.at_once, now or (lambda: time.monotonic() - began))

    @property
    def left(self) -> list[SweepRun]:
        """Runs that were not started."""
        return self._waiting

    def next(self, active: Sequence[str], left: float | None) -> Job | None:
        self._waiting = [run for run in self._waiting if run.name not in active]
        for run in self._waiting:
            if left is None or self._pace.seconds(run.name) <= left:
                self._waiting.remove(run)
                self._pace.started(run.name)
                return Job(run=run)
        return None

    def ended(self, run: SweepRun, result: Result) -> str:
        self._ended += 1
        if result.event != "stopped":  # one that another driver has started waits here too
            self._waiting = [each for each in self._waiting if each.name != run.name]
        self._pace.ended(run.name, result.event == "ended")
        count = f"[{self._ended}/{self._count}] {run.name}"
        if (line := _unfinished(result)) is not None:
            return f"{count}{line}"
        return f"{count}{_finished(self._found, run, result)}{self._outlook()}"

    def _outlook(self) -> str:
        """When the others will have ended, by what those before them took."""
        if self._ended == self._count:
            return ""
        by = f"by {self._pace.factor - 1:+.0%}" if abs(self._pace.factor - 1) >= 0.005 else "as forecast"
        left, total = (Seconds(each).short() for each in (self._pace.left(), self._pace.total()))
        return f"; about {left} left, {total} in all ({by})"


def _unfinished(result: Result) -> str | None:
    """How a run ended that is not done; None: it is."""
    if result.event == "failed":
        return f": failed: {result.why.splitlines()[0]}"
    if result.event == "stopped":
        return f": stopped after {Seconds(result.seconds).short()}, saved"
    return None


def _finished(found: Survey, run: SweepRun, result: Result) -> str:
    outcome = Outcome.read(RunFolder(found.folder.run_path(run)).done)
    return f": held-out loss {outcome.loss:.4f} in {Seconds(result.seconds).short()}"


class Halving:
    """Runs go from rung to rung, and the best of each rung go on."""

    def __init__(self, found: Survey, method: Method, start: float):
        """`start` is what a new process takes until its first step, in seconds."""
        self._found, self._method, self._start = found, method, start
        self._recipes = {planned.name: planned.recipe for planned in found.grid.runs}
        self._runs = {run.name: run for run in found.index.runs if found.problem(run) is None}
        every = max((recipe.evaluate.every for recipe in self._recipes.values()), default=0.0)
        seconds = [found.forecasts[name].seconds.expected for name in self._runs if name in found.forecasts]
        self.ladder = ladder_for(seconds, found.slots.at_once, found.limit, every, start)
        self._marks = {name: self._look(run) for name, run in self._runs.items()}
        self._dropped: set[str] = set()
        """Runs that failed, or came no further."""

    @property
    def left(self) -> list[SweepRun]:
        """Runs that were never started."""
        return [run for name, run in self._runs.items() if not self._marks[name] and name not in self._dropped]

    def sentence(self) -> str:
        """How the runs are chosen, and how long that takes beside all of them."""
        to_do = [self._found.forecasts[name].seconds.expected for name in self._runs if name in self._found.forecasts]
        at_once = self._found.slots.at_once
        halved, whole = (cost(to_do, ladder, at_once, self._start) for ladder in (self.ladder, (1.0,)))
        if len(self.ladder) == 1:
            return "all runs go to their end: the time is enough"
        counts = [len(self._runs)]
        for _ in self.ladder[1:]:
            counts.append(kept_of(counts[-1]))
        steps = ", ".join(f"{count} to {share:.0%}" for count, share in zip(counts, self.ladder))
        how = (
            "the forecast of their held-out loss" if self._method == "forecast" else "their held-out loss so far (ASHA)"
        )
        part = f", {halved / whole:.0%} of that of all runs" if whole else ""
        return f"halving by {how}: {steps}; about {Seconds(halved).short()} in all{part}"

    def next(self, active: Sequence[str], left: float | None) -> Job | None:
        names, marks = [name for name in self._runs if name not in self._dropped], judged(self._marks, self._method)
        decide = next_by_rung if self._method == "forecast" else next_at_once
        found = decide(names, marks, active, self.ladder)
        if found is None and not active and left is not None:
            found = next_if_time_is_left(names, marks, active, self.ladder)
        if found is None or (left is not None and self._seconds(found) > left):
            return None
        share = self.ladder[found.rung]
        options = () if share == 1 else ("--until", f"{self._place(found.name, share):.9f}")
        by_forecast = found.rung > 0 and forecast_rungs(self._marks, self._method)[found.rung - 1]
        how = f" (by {'forecasts, then' if by_forecast else 'their'} held-out loss)" if found.reason else ""
        return Job(run=self._runs[found.name], options=options, reason=f"{found.reason}{how}")

    def _seconds(self, found: Next) -> float:
        """From where a run is to a rung."""
        before = len(self._marks[found.name])
        part = self.ladder[found.rung] - (self.ladder[before - 1] if before else 0.0)
        whole = self._found.forecasts[found.name].seconds.expected
        return self._start + part * max(0.0, whole - self._start)

    def _place(self, name: str, share: float) -> float:
        """The share, rounded up to a whole step, or to a whole epoch of an HMM."""
        made = self._found.forecasts[name].plan
        steps = None if made is None else counted_steps(made, self._recipes[name])
        return min(1.0, math.ceil(share * steps - 1e-9) / steps) if steps else share

    def ended(self, run: SweepRun, result: Result) -> str:
        before, now = self._marks[run.name], self._look(run)
        self._marks[run.name] = now
        if result.event == "failed" or len(now) <= len(before):
            self._dropped.add(run.name)
        if result.event == "stopped" and len(now) > len(before):
            took, share, mark = Seconds(result.seconds).short(), self.ladder[len(now) - 1], now[-1]
            expected = "" if mark.forecast is None else f", expected to end at {mark.forecast:.4f}"
            return f"{run.name}: {share:.0%} in {took}, held-out loss {mark.loss:.4f}{expected}"
        return f"{run.name}{_unfinished(result) or _finished(self._found, run, result)}"

    def _look(self, run: SweepRun) -> tuple[Mark, ...]:
        own = RunFolder(self._found.folder.run_path(run))
        return marks_of(own, self._recipes[run.name], self.ladder) if own.plan.is_file() else ()


def marks_of(own: RunFolder, recipe: Recipe, ladder: Sequence[float]) -> tuple[Mark, ...]:
    """How a run did at the rungs that it has reached, from its metrics alone."""
    lines, outcome = read_lines(own.metrics), Outcome.read_if_there(own.done)
    steps = counted_steps(Plan.read(own.plan), recipe) or 0
    if recipe.kind != "hmm":  # whose epochs are counted otherwise
        steps = next((line["total"] for line in reversed(lines) if "total" in line), steps)
    curve, found = Curve.of(lines), []
    for share in ladder:
        last = math.ceil(share * steps - 1e-9)
        known = curve.until(last)
        if share == 1 or not known.heldout or not any(line.step >= last for line in curve.heldout):
            break
        expected = _forecast(known, own, recipe, steps)
        ends = (None, None) if expected is None else (expected.loss, expected.low)
        found.append(Mark(known.heldout[-1].loss, *ends))
    if outcome is None:
        return tuple(found)
    whole = Mark(outcome.loss, outcome.loss)
    return (*found, *[whole] * (len(ladder) - len(found)))


def _forecast(known: Curve, own: RunFolder, recipe: Recipe, steps: int) -> Forecast | None:
    """The held-out loss that a network is expected to end with; None: too little is known, or an HMM is fitted."""
    if recipe.kind == "hmm" or known.turn is not None:
        return None
    from shoestring.runs.watch import rate_path  # imports torch
    from shoestring.training.schedule import Schedule, Warmup

    train = own.read_recipe().train
    warmup = Warmup.planned(steps, number(train.warmup), least_steps(recipe))
    return rough_forecast(known, rate_path(known, Schedule(total=steps, warmup=warmup, cooldown=train.cooling), train))
