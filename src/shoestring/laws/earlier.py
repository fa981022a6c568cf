"""The held-out loss that a run will end with, by earlier runs on the same data.

Small runs that learn the same text have much the same curve. What a run has shown after a fifth of its steps says
little about its end, since its loss may rest where tokens are counted; runs that have been there say more. So the curve
of an earlier run is read where this one will end: at the same sum S of the learning rates, by the peak rate, times the
rows of a step. The gain of its decay (C·G, see `curve`) is added first, and the gain of this run's schedule taken off.
Beyond its end a curve is continued by its last slope in ln S.

A part of the distance between both curves so far is taken to remain: it is expected to be small where the runs have
nearly the same size, rate and batch (`Setting.apart`), and is seen within `MISFIT`. Of several earlier runs, those
count most that agree with this one so far and were long enough. How far their answers are apart widens the interval.

Without an earlier run, a loss is taken to fall as losses usually do. That is wide, but says something where the law of
the curve itself does not yet.

All of this is in logarithms of the loss. It is computed, not drawn. The constants were chosen on 52 runs of 300 to 800
steps on five texts (results/log.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from shoestring.laws.curve import ANNEALING, Expected, Floats, Path

APART, BY_SIZE, BY_RATE, BY_ROWS = 0.03, 0.06, 0.1, 0.1
"""Standard deviation of the distance between the curves of two runs: of the same setting, and per unit of the logarithm
of their parameters, their peak rates and their rows per step."""
SMALLER = 0.05
"""How much lower ln loss is per unit of the logarithm of the parameters."""
MISFIT, FORGOTTEN = 0.1, 2.0
"""Standard deviation of that distance at the latest evaluation from the one that remains, and its growth per unit of
ln S before."""
BACK = (0.0, 0.35, 0.7)
"""Units of ln S before the latest evaluation at which two runs are compared."""
AHEAD, SETTINGS, BEYOND = 0.02, 0.02, 0.15
"""Standard deviations of the answer: per unit of ln S that is ahead, at all times, and per unit of ln S by which the
earlier run was too short."""
FALLING, STEEPNESS, FALLING_APART = 0.1, 0.5, 0.35
"""The fall of ln loss per unit of ln S that is ahead, without the gain of a decay: this much, and this share of the
latest fall; and its standard deviation."""
FALLING_SETTINGS, FALLING_DECAY = 0.06, 3.0
"""The standard deviation of that answer at all times, and how many times as large as elsewhere that of the decay's gain
is: networks and update rules differ in both."""
STEEPEST = 0.6
"""Latest fall that counts at most."""
SLOPE_OVER = math.log(2.5)
"""Units of ln S at the end of a curve that its slope is taken from."""
NORMAL_90 = 1.645
"""Standard deviations to either side that hold 90 % of a normal distribution."""


class Normal(NamedTuple):
    """A normal distribution of ln loss."""

    mean: float
    deviation: float

    @property
    def expected(self) -> Expected:
        """The median of the loss, and its 90 % interval."""
        half = NORMAL_90 * self.deviation
        return Expected(*(math.exp(self.mean + sign * half) for sign in (0, -1, 1)))

    @classmethod
    def of(cls, low: float, middle: float, high: float) -> Normal | None:
        """As wide as a 90 % interval is, relative to its middle; None: that is not above 0."""
        width = (high - low) / (2 * NORMAL_90)
        return cls(math.log(middle), width / middle) if middle > 0 and width > 0 else None


class Setting(NamedTuple):
    """What runs on the same data differ in."""

    parameters: float
    rate: float
    """The highest learning rate."""
    rows: float
    """Of a step."""

    def apart(self, other: Setting) -> tuple[float, float]:
        """How much higher ln loss is expected to be than with `other`, and the standard deviation of that."""
        size, rate, rows = (math.log(one / another) for one, another in zip(self, other))
        return -SMALLER * size, math.hypot(APART, BY_SIZE * size, BY_RATE * rate, BY_ROWS * rows)


class Shape(NamedTuple):
    """The held-out losses of a run, as if its learning rate had never come down."""

    places: Floats
    """ln of S, times the rows of a step."""
    losses: Floats
    """In logarithms."""
    fallen: Floats
    """How far the learning rate had come down, G."""
    setting: Setting

    def at(self, place: Floats) -> Floats:
        """The losses at some places; beyond its end by the slope there."""
        beyond = np.maximum(0.0, place - self.places[-1])
        return np.asarray(np.interp(place, self.places, self.losses) + self._slope * beyond)

    @property
    def _slope(self) -> float:
        """Per unit of ln S at the end, by least squares; at most 0."""
        late = self.places >= self.places[-1] - SLOPE_OVER
        away = self.places[late] - self.places[late].mean()
        return min(0.0, float(away @ self.losses[late] / (away @ away))) if late.sum() > 1 else 0.0


def shape_of(steps: Floats, losses: Floats, path: Path, parameters: float, rows: float) -> Shape | None:
    """The shape of a curve of held-out losses; None without such losses, or without a learning rate."""
    peak = float(path.rates.max(initial=0.0))
    if not all(value > 0 for value in (peak, parameters, rows)):
        return None
    found = path.at(steps)
    kept = (found.sums > 0) & np.isfinite(losses) & (losses > 0)
    if not kept.any():
        return None
    places = np.log(found.sums[kept] * rows)
    setting = Setting(parameters, peak, rows)
    return Shape(places, np.log(losses[kept]) + ANNEALING[0] * found.fallen[kept], found.fallen[kept], setting)


def by_earlier(shape: Shape, path: Path, earlier: Sequence[Shape]) -> Normal | None:
    """The loss at the end of the path of a run that has this shape so far, by earlier ones; None: there are none."""
    if not earlier:
        return None
    end = path.at(path.steps[-1:])
    place, fallen = math.log(end.sums[0] * shape.setting.rows), float(end.fallen[0])
    means, variances, evidence = np.array([_by_one(shape, place, fallen, each) for each in earlier]).T
    weights = np.exp(evidence - evidence.max()) / (variances + SETTINGS**2)
    weights /= weights.sum()
    mean = float(weights @ means)
    variance = SETTINGS**2 + float(weights @ (variances + (means - mean) ** 2))
    return Normal(mean - ANNEALING[0] * fallen, math.sqrt(variance))


def _by_one(shape: Shape, end: float, fallen: float, earlier: Shape) -> tuple[float, float, float]:
    """Mean and variance at the end by one earlier run, and the logarithm of how well they agree so far."""
    now = shape.places[-1]
    places = now - np.array(BACK)
    places = places[(places >= shape.places[0]) & (places >= earlier.places[0])]
    higher, spread = shape.setting.apart(earlier.setting)
    apart = shape.at(places) - earlier.at(places) - higher
    precisions = (MISFIT * (1 + FORGOTTEN * (now - places))) ** -2
    precision = float(precisions.sum()) + spread**-2
    remains = float(precisions @ apart) / precision
    evidence = -0.5 * (float(precisions @ apart**2) - remains**2 * precision + math.log(precision * spread**2))
    ahead, beyond = AHEAD * max(0.0, end - now), BEYOND * max(0.0, end - earlier.places[-1])
    decay = ANNEALING[1] * (fallen - float(np.interp(end, earlier.places, earlier.fallen)))
    mean = float(earlier.at(np.array([end]))[0]) + higher + remains
    return mean, 1 / precision + ahead**2 + beyond**2 + decay**2, evidence


def by_falling(shape: Shape, path: Path) -> Normal:
    """The loss at the end of the path of a run that has this shape so far, by how losses usually fall."""
    end = path.at(path.steps[-1:])
    ahead = max(0.0, math.log(end.sums[0] * shape.setting.rows) - float(shape.places[-1]))
    before = np.array([max(shape.places[0], shape.places[-1] - BACK[1])])
    over = float(shape.places[-1] - before[0])
    steep = float(shape.at(before)[0] - shape.losses[-1]) / over if over > 0 else 0.0
    falling = FALLING + STEEPNESS * min(max(steep, 0.0), STEEPEST)
    mean = float(shape.losses[-1]) - falling * ahead - ANNEALING[0] * float(end.fallen[0])
    decay = FALLING_DECAY * ANNEALING[1] * float(end.fallen[0] - shape.fallen[-1])
    return Normal(mean, math.hypot(FALLING_SETTINGS, FALLING_APART * ahead, decay))


def combined(parts: Sequence[Normal]) -> Normal:
    """What several of them say together, if their errors are their own."""
    precisions = [part.deviation**-2 for part in parts]
    mean = sum(part.mean * precision for part, precision in zip(parts, precisions)) / sum(precisions)
    return Normal(mean, sum(precisions) ** -0.5)
