"""What a run says of itself while it trains: each verdict once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from shoestring.core.recipe import Recipe
from shoestring.report.verdicts import clip_and_unit, live_verdicts
from shoestring.track import read_lines
from shoestring.track.curve import Curve
from shoestring.training.checkpoint import State
from shoestring.training.loop import Report

LOOK_EVERY = 0.02
"""Share of the schedule between two looks at the metrics."""


class Watch:
    """A hook that reads the metrics now and then, and says a verdict when it first holds.

    What holds already when a run is resumed was said before. A process that writes no metrics says nothing.
    """

    def __init__(self, recipe: Recipe, metrics: Path, say: Callable[[str], None]):
        self._settings, self._metrics, self._say = clip_and_unit(recipe), metrics, say
        self._said = {verdict.kind for verdict in live_verdicts(self._curve(), *self._settings)}
        self._looked = 0.0

    def __call__(self, state: State, _: Report) -> State:
        progress = state.schedule.progress(state.step)
        if progress >= self._looked + LOOK_EVERY:
            self._looked = progress
            self._look()
        return state

    def _curve(self) -> Curve:
        return Curve.of(read_lines(self._metrics))

    def _look(self) -> None:
        for verdict in live_verdicts(self._curve(), *self._settings):
            if verdict.kind not in self._said:
                self._said.add(verdict.kind)
                self._say(verdict.text)
