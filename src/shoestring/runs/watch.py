"""What a run says of itself while it trains: each verdict once, and the loss that it will end with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from shoestring.core.clock import Clock
from shoestring.core.recipe import Recipe
from shoestring.core.results import Forecast
from shoestring.core.run_folder import RunFolder
from shoestring.core.train_section import Train
from shoestring.laws.curve import Path as RatePath
from shoestring.report.forecast import FIRST_AT, Beside, forecast
from shoestring.report.verdicts import clip_and_unit, live_verdicts
from shoestring.runs.earlier_curves import runs_beside
from shoestring.track import LineFile, read_lines
from shoestring.track.curve import Curve
from shoestring.training.checkpoint import State
from shoestring.training.loop import Report
from shoestring.training.schedule import Schedule, learning_rate

LOOK_EVERY = 0.05
"""Share of the schedule between two looks at the metrics. A look takes up to 40 ms; before the first forecast, the runs
beside this one are read, about 150 ms for eight of twelve."""
_FUTURE = 200
"""Places of the rest of a schedule at which its learning rate is asked."""


_HALFWAY = 0.4
"""Share of the schedule after which a run that has learned nothing says so."""


@dataclass(frozen=True)
class Notes:
    """Lines of the timings on what is expected of the run."""

    timings: LineFile
    clock: Clock

    def forecast(self, expected: Forecast) -> None:
        """The loss that the run will end with."""
        self.timings.add(elapsed=self.clock.elapsed(), event="forecast", **asdict(expected))

    def earlier(self, runs: Sequence[str]) -> None:
        """The names of the finished runs by which that is said."""
        self.timings.add(elapsed=self.clock.elapsed(), event="earlier", runs=list(runs))

    def counted(self, loss: float) -> None:
        """The loss of predictions by how often tokens occur."""
        self.timings.add(elapsed=self.clock.elapsed(), event="counted", loss=loss)


class Watch:
    """A hook that reads the metrics now and then, says a verdict when it first holds, and keeps a forecast.

    What holds already when a run is resumed was said before. A process that writes no metrics says nothing.
    """

    def __init__(
        self,
        recipe: Recipe,
        metrics: Path,
        say: Callable[[str], None],
        notes: Notes | None = None,
        counted: Callable[[], float | None] = lambda: None,
        unrecorded: Callable[[], str | None] = lambda: None,
        aside: Callable[[], AbstractContextManager[None]] = nullcontext,
    ):
        """`counted`: the held-out loss of predictions by how often tokens occur, asked for once; `unrecorded`: why
        steps could not be recorded as CUDA graphs; `aside`: what a look at the metrics runs within."""
        self._recipe, self._metrics, self._say, self._notes, self._count = recipe, metrics, say, notes, counted
        self._unrecorded, self._said_unrecorded, self._aside = unrecorded, False, aside
        self._counted: float | None = None
        self._said = {verdict.kind for verdict in live_verdicts(self._curve(), *clip_and_unit(recipe))}
        self._looked, self._halfway = 0.0, False
        self._beside: Beside | None = None
        self.forecast: Forecast | None = None
        """Of the held-out loss at the end, by the schedule as it is; None: not known yet, or an HMM is fitted."""

    def __call__(self, state: State, _: Report) -> State:
        progress = state.schedule.progress(state.step)
        if progress >= self._looked + LOOK_EVERY:
            self._looked = progress
            with self._aside():
                self._look(state, progress)
        return state

    def _curve(self) -> Curve:
        return Curve.of(read_lines(self._metrics))

    def _look(self, state: State, progress: float) -> None:
        curve = self._curve()
        if not self._said_unrecorded and (reason := self._unrecorded()) is not None:
            self._said_unrecorded = True
            self._say(f"steps could not be recorded as CUDA graphs, so each takes longer: {reason}")
        if progress >= _HALFWAY and not self._halfway:
            self._halfway, self._counted = True, self._count()
            if self._counted is not None and self._notes is not None:
                self._notes.counted(self._counted)
        for verdict in live_verdicts(curve, *clip_and_unit(self._recipe), counted=self._counted):
            if verdict.kind not in self._said:
                self._said.add(verdict.kind)
                self._say(verdict.text)
        if self._recipe.kind != "hmm" and progress >= FIRST_AT:
            onward = curve.turn is None  # no law holds across a return to earlier weights
            self.forecast = self._forecast(curve, state.schedule) if onward and curve.heldout else None
            if self.forecast is not None and self._notes is not None:
                self._notes.forecast(self.forecast)

    def _forecast(self, curve: Curve, schedule: Schedule) -> Forecast | None:
        if self._beside is None:
            self._beside = runs_beside(RunFolder(self._metrics.parent), self._recipe)
            if self._notes is not None and self._beside.shapes:
                self._notes.earlier(list(self._beside.shapes))
        return forecast(curve, rate_path(curve, schedule, self._recipe.train), self._beside)


def rate_path(curve: Curve, schedule: Schedule, train: Train) -> RatePath:
    """The learning rates so far, and those to come."""
    past = [(line.step, line.lr) for line in curve.training if line.lr is not None]
    last = past[-1][0] if past else 0
    ahead = np.linspace(last, schedule.total, _FUTURE + 1)[1:] if schedule.total > last else np.empty(0)
    rates = [learning_rate(train, min(1.0, schedule.progress(step - 0.5)), schedule.warmup) for step in ahead]
    steps = np.concatenate(([step for step, _ in past], ahead))
    return RatePath(steps, np.concatenate(([rate for _, rate in past], rates)))
