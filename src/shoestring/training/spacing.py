"""When workers with steps of their own average: every so many steps, or by the learning rate.

Workers drift apart by about the learning rate in every step. So where it is high they should average more often, and
less where it is low (the quadratic synchronization rule, arXiv 2310.14423, takes its square). Here as many averages as
there would be every `every` steps are spaced so that their density is proportional to the square of the rate; but two
of them are never more than `MOST_APART` times `every` steps apart, as evaluations and saving wait for one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

from shoestring.core.parallel import MOST_APART
from shoestring.core.train_section import Train
from shoestring.training.schedule import Schedule, Warmup, learning_rate

POINTS = 1024
"""Of the progress, at which the density is computed."""


class Spacing:
    """The averages of a run; `parts` of the model are averaged in turn."""

    def __init__(self, every: int, parts: int = 1, train: Train | None = None):
        """`train` has the learning rate that spaces them; None: they are `every` steps apart."""
        self.every, self.parts, self._train = every, parts, train
        self._passed: dict[Warmup | None, list[float]] = {}

    def parts_due(self, step: int, schedule: Schedule) -> list[int]:
        """The parts of the model that are averaged after `step` steps."""
        if step >= schedule.total or schedule.begins_cooldown(step):
            return list(range(self.parts))
        if self._train is None:
            behind = [(part + 1) * self.every // self.parts for part in range(self.parts)]
            return [part for part, steps in enumerate(behind) if (step - steps) % self.every == 0]
        before, after = (self._averages(each, schedule) for each in (step - 1, step))
        phases = [(part + 1) / self.parts for part in range(self.parts)]
        return [part for part, phase in enumerate(phases) if math.floor(after - phase) > math.floor(before - phase)]

    def _averages(self, step: int, schedule: Schedule) -> float:
        """Averages that are due in `step` steps, not rounded."""
        assert self._train is not None, "it spaces them"
        if schedule.warmup not in self._passed:
            train, warmup = self._train, schedule.warmup
            self._passed[schedule.warmup] = passed(lambda progress: learning_rate(train, progress, warmup))
        table, place = self._passed[schedule.warmup], schedule.progress(step) * POINTS
        whole = min(int(place), POINTS - 1)
        share = table[whole] + (place - whole) * (table[whole + 1] - table[whole])
        return share * schedule.total / self.every


def passed(rate: Callable[[float], float]) -> list[float]:
    """The share of all averages that are due until each of POINTS + 1 places of the progress.

    The density is λ rate², or 1 / MOST_APART of the mean where that is more; λ is such that they are as many.
    """
    squares = [rate((point + 0.5) / POINTS) ** 2 for point in range(POINTS)]
    least = 1 / MOST_APART

    def density(factor: float) -> list[float]:
        return [max(least, factor * square) for square in squares]

    low, high = 0.0, POINTS / max(sum(squares), 1e-300)
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if math.fsum(density(middle)) < POINTS else (low, middle)
    found = density(high)
    total = math.fsum(found)
    return [0.0, *(each / total for each in itertools.accumulate(found))]
