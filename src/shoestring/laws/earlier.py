"""The held-out loss that a run will end with, by earlier runs on the same data.

Small runs that learn the same text have much the same curve. What a run has shown after a fifth of its steps says
little about its end, since its loss may rest where tokens are counted; runs that have been there say more. A curve is
ln loss at places x: the logarithm of the sum S of the learning rates, by the peak rate, times the rows of a step. The
curve of run r is taken to be a sum of normal variables, each with its own covariance:

    m(x) - c_r G + a_r + p_r(x) + w_r(x)

m is one curve for all runs: an unknown level and slope, which bends (an integrated Wiener process). G is how far the
rate has come down (see `curve`), and c what that gains: much the same for all runs. The distance of a run from m has a
part that stays, a, and one that passes, p (a Matérn process): at the steepest place of its curve a run that is late is
far above the others, and later it is not. Both are alike where size, rate and batch are (`Setting`), except for a part
that every run has alone, as its seed. w grows from the place where this run is now, wanders and bends, for every run
alone.

So the end of a run is a conditional normal distribution, given its curve so far and the whole earlier ones: linear
algebra with some hundred points, computed, not drawn. How far runs on this data differ is not known before: the
deviations from m are taken with each of `SCALES`, weighted by how well each explains all the curves.

Training losses are known at more places than held-out ones. Their means over bins count as held-out losses, moved by
the distance between both at the evaluations around them.

Without an earlier run, a loss is taken to fall as losses usually do. That is wide, but says something where the law of
the curve itself does not yet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoestring.laws.curve import ANNEALING, Expected, Floats, Path

BIN = 0.3
"""Units of x over which training losses are averaged."""
BEFORE, BEYOND, SHORT = 0.8, 0.3, 0.5
"""Units of x before the place of this run, and after its end, from which curves count; and before it, by which an
earlier run may be too short."""
LEVEL, SLOPE, BENDS = 3.0, (-0.25, 1.0), (0.15, 0.04)
"""Standard deviation of the level of m; mean and standard deviation of its slope; and the standard deviations of the
change of a slope per unit of x, of m and of a run alone."""
DECAY, DECAY_APART = (ANNEALING[0], 0.2), 0.16
"""Mean and standard deviation of c for all runs, and the standard deviation by setting."""
APART, PASSING, PASSES = (0.2, 0.04), (0.05, 0.05), 0.7
"""Standard deviations of a and p by setting, and of the parts that a run has alone; units of x in which p passes."""
GROWTH, WANDER, MISFIT = 0.04, 0.03, 0.004
"""Standard deviation of the slope of w and of its wandering per unit of x, and that of each point."""
NEAR = (0.5, 1.5, 0.75)
"""Distances of the logarithms of parameters, rate and rows at which two runs are alike to exp(-1/2)."""
SCALES, USUAL_SCALE = (0.25, 0.5, 1.0, 2.0, 4.0), 2.0
"""Of the standard deviations by setting and of a run alone; and the usual one, from which each octave is as rare as a
standard deviation."""
FALLING, STEEPNESS, FALLING_APART = 0.1, 0.5, 0.35
"""The fall of ln loss per unit of x that is ahead, without the gain of a decay: this much, and this share of the latest
fall; and its standard deviation."""
LATEST, STEEPEST = 0.35, 0.6
"""Units of x of the latest fall, and the fall that counts at most."""
FALLING_SETTINGS, FALLING_DECAY = 0.06, 3.0
"""The standard deviation of that answer at all times, and how many times as large as elsewhere that of the decay's gain
is: networks and update rules differ in both."""
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

    def apart(self, other: Setting) -> float:
        """The squared distance in units of `NEAR`."""
        return sum((math.log(one / another) / near) ** 2 for one, another, near in zip(self, other, NEAR))


class Shape(NamedTuple):
    """The curve of a run: its held-out losses, and its training losses as such."""

    places: Floats
    """x: ln of S, times the rows of a step; in order."""
    losses: Floats
    """In logarithms."""
    fallen: Floats
    """How far the learning rate had come down, G."""
    errors: Floats
    """Standard deviations of the losses by the noise of batches."""
    setting: Setting


class Lines(NamedTuple):
    """Losses after some steps."""

    steps: Floats
    losses: Floats


def shape_of(heldout: Lines, training: Lines, path: Path, parameters: float, rows: float) -> Shape | None:
    """The shape of a curve; None without held-out losses, or without a learning rate. There may be no training loss."""
    peak = float(path.rates.max(initial=0.0))
    if not all(value > 0 for value in (peak, parameters, rows)):
        return None
    heldout, training = (_with_logarithm(lines, path) for lines in (heldout, training))
    if not len(heldout.steps):
        return None
    places = np.log(path.at(heldout.steps).sums * rows)
    steps, losses, errors = heldout.steps, heldout.losses, np.zeros(len(places))
    if len(training.steps):
        bins = _binned(training, np.log(path.at(training.steps).sums * rows))
        apart = heldout.losses - np.interp(places, bins.places, bins.losses)
        steps = np.concatenate((steps, bins.steps))
        losses = np.concatenate((losses, bins.losses + np.interp(bins.places, places, apart)))
        errors = np.concatenate((errors, bins.errors))
    order = np.argsort(steps, kind="stable")
    found = path.at(steps[order])
    setting = Setting(parameters, peak, rows)
    return Shape(np.log(found.sums * rows), losses[order], found.fallen, errors[order], setting)


def _with_logarithm(lines: Lines, path: Path) -> Lines:
    """The lines after which S and the loss have one, and that of the loss."""
    kept = (path.at(lines.steps).sums > 0) & np.isfinite(lines.losses) & (lines.losses > 0)
    return Lines(lines.steps[kept], np.log(lines.losses[kept]))


class _Bins(NamedTuple):
    steps: Floats
    places: Floats
    losses: Floats
    errors: Floats


def _binned(lines: Lines, places: Floats) -> _Bins:
    """Means over lines that are near."""
    _, at, counts = np.unique(np.floor(places / BIN), return_inverse=True, return_counts=True)
    steps, means, losses = (np.bincount(at, values) / counts for values in (lines.steps, places, lines.losses))
    noise = float(np.median(np.abs(np.diff(lines.losses)))) / (0.6745 * math.sqrt(2)) if len(places) > 1 else 0.0
    return _Bins(steps, means, losses, noise / np.sqrt(counts))


def by_earlier(shape: Shape, path: Path, earlier: Sequence[Shape]) -> Normal | None:
    """The loss at the end of the path of a run that has this shape so far, by earlier ones; None: none came near."""
    earlier = [each for each in earlier if each.places[-1] > shape.places[-1] - SHORT]
    if not earlier:
        return None
    now, end = float(shape.places[-1]), path.at(path.steps[-1:])
    last = math.log(end.sums[0] * shape.setting.rows)
    shapes = [_between(each, now - BEFORE, last + BEYOND) for each in (shape, *earlier)]
    losses, errors = (np.concatenate(parts) for parts in zip(*((each.losses, each.errors) for each in shapes)))
    places = np.concatenate([*(each.places for each in shapes), [last]])  # the end of this run is the last point
    fallen = np.concatenate([*(each.fallen for each in shapes), end.fallen])
    runs = np.append(np.repeat(np.arange(len(shapes)), [len(each.places) for each in shapes]), 0)
    expected = SLOPE[0] * (places - now) - DECAY[0] * fallen
    common, own = _covariances(places - now, fallen, runs, [each.setting for each in shapes])
    noise = np.diag(errors**2 + MISFIT**2)
    found = np.array([_conditional(common + scale**2 * own, noise, losses, expected) for scale in SCALES])
    means, variances, evidence = found.T
    evidence -= 0.5 * np.log2(np.array(SCALES) / USUAL_SCALE) ** 2
    weights = np.exp(evidence - evidence.max())
    weights /= weights.sum()
    mean = float(weights @ means)
    return Normal(mean, math.sqrt(float(weights @ (variances + (means - mean) ** 2))))


def _between(shape: Shape, first: float, last: float) -> Shape:
    kept = (shape.places >= first) & (shape.places <= last)
    return Shape(shape.places[kept], shape.losses[kept], shape.fallen[kept], shape.errors[kept], shape.setting)


def _covariances(
    away: Floats, fallen: Floats, runs: NDArray[np.int64], settings: Sequence[Setting]
) -> tuple[Floats, Floats]:
    """Of m and the common part of c at points so far from now; and of all that is by setting, or of one run alone."""
    both, came_down, since = np.outer(away, away), np.outer(fallen, fallen), away + BEFORE
    least, most = np.minimum.outer(since, since), np.maximum.outer(since, since)
    bends = np.maximum(least, 0.0) ** 2 * (3 * most - least) / 6
    common = LEVEL**2 + SLOPE[1] ** 2 * both + BENDS[0] ** 2 * bends + DECAY[1] ** 2 * came_down
    alike = np.exp([[-0.5 * one.apart(other) for other in settings] for one in settings])[np.ix_(runs, runs)]
    distance = np.abs(np.subtract.outer(away, away)) / PASSES
    passing = (1 + distance) * np.exp(-distance)
    by_setting = alike * (APART[0] ** 2 + PASSING[0] ** 2 * passing + DECAY_APART**2 * came_down)
    wanders = np.where(both > 0, np.minimum.outer(np.abs(away), np.abs(away)), 0.0)
    grows = GROWTH**2 * both + BENDS[1] ** 2 * bends + WANDER**2 * wanders
    alone = np.equal.outer(runs, runs) * (APART[1] ** 2 + PASSING[1] ** 2 * passing + grows)
    return common, by_setting + alone


def _conditional(covariance: Floats, noise: Floats, losses: Floats, expected: Floats) -> tuple[float, float, float]:
    """Mean and variance of the last point given all others, and the logarithm of how likely these are."""
    root = np.linalg.cholesky(covariance[:-1, :-1] + noise)
    known, along = np.linalg.solve(root, np.stack((losses - expected[:-1], covariance[:-1, -1]), axis=1)).T
    evidence = -0.5 * float(known @ known) - float(np.log(np.diagonal(root)).sum())
    return float(expected[-1] + along @ known), float(covariance[-1, -1] - along @ along), evidence


def by_falling(shape: Shape, path: Path) -> Normal:
    """The loss at the end of the path of a run that has this shape so far, by how losses usually fall."""
    end, now = path.at(path.steps[-1:]), float(shape.places[-1])
    losses = shape.losses + ANNEALING[0] * shape.fallen  # as if the rate had never come down
    ahead = max(0.0, math.log(end.sums[0] * shape.setting.rows) - now)
    before = max(float(shape.places[0]), now - LATEST)
    steep = (
        (float(np.interp(before, shape.places, losses)) - float(losses[-1])) / (now - before) if now > before else 0.0
    )
    falling = FALLING + STEEPNESS * min(max(steep, 0.0), STEEPEST)
    mean = float(losses[-1]) - falling * ahead - ANNEALING[0] * float(end.fallen[0])
    decay = FALLING_DECAY * ANNEALING[1] * float(end.fallen[0] - shape.fallen[-1])
    return Normal(mean, math.hypot(FALLING_SETTINGS, FALLING_APART * ahead, decay))


def combined(parts: Sequence[Normal]) -> Normal:
    """What several of them say together, if their errors are their own."""
    precisions = [part.deviation**-2 for part in parts]
    mean = sum(part.mean * precision for part, precision in zip(parts, precisions)) / sum(precisions)
    return Normal(mean, sum(precisions) ** -0.5)
