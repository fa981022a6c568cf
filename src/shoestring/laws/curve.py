"""The loss that a run will end with, from the first part of its curve and its schedule.

The law is that of Tissue et al. 2024, "Scaling Law with Learning Rate Annealing": L(s) = L0 + A·S^-α - C·G, where S is
the sum of the learning rates until step s, and G how far the rate has come down, with a delay. Both are by the peak
rate here, so that S is in steps and G at most 1.

The power is written as B·(x^-α - 1)/α with x = S / S now: B is the slope in ln S now, and α = 0 is a straight line
there. For fixed α the law is linear in the loss now, B and C. So the posterior is a mixture of normals, one for each α,
under weak normal priors. It is computed, not drawn: the same curve gives the same interval. Early in a run nothing has
come down yet, and the curve says nothing about C: there the prior decides.

No law holds for the whole curve of a small run, which rests where tokens are counted and falls again. How far this one
is from its law is measured: from earlier places of the curve the fit predicts what is known by now, and its errors
widen the interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

ALPHAS = np.concatenate(([1e-3], np.geomspace(0.05, 1.5, 17)))
EXPONENT = (0.15, 0.25)
"""Mean and standard deviation of α before a curve is seen."""
SLOPE = (0.2, 0.2)
"""The same for B, as a share of the loss now."""
ANNEALING = (0.07, 0.04)
"""The same for C."""
MISFIT = 0.003
"""Relative standard deviation of a bin's loss from the law, for the latest bin."""
FORGOTTEN = 10.0
"""Growth of that deviation with the logarithm of how much larger S is now: early steps are another story."""
BINS = 24
"""Means that a curve is reduced to, evenly spaced in ln S."""
FEWEST_BINS = 6
BACK = (1.6, 2.5, 4.0)
"""How many times smaller S is at the earlier places that the law predicts from."""
DELAY_STEPS, DELAY_SHARE = 1000.0, 0.1
"""Memory of the annealing: steps (λ = 0.999 in the article), but at most that share of a run."""


@dataclass(frozen=True)
class Path:
    """The learning rate of a run from its first step to its last, past and future."""

    steps: Floats
    rates: Floats

    def stretched(self, factor: float) -> Path:
        """The same schedule over `factor` times as many steps."""
        return Path(self.steps * factor, self.rates)

    @cached_property
    def integrals(self) -> tuple[Floats, Floats, Floats]:
        """Steps from 0 on, with S and G after each."""
        steps = np.concatenate(([0.0], self.steps))
        rates = np.concatenate((self.rates[:1], self.rates)) / self.rates.max()
        between = np.diff(steps)
        sums = np.concatenate(([0.0], np.cumsum(between * (rates[1:] + rates[:-1]) / 2)))
        drops = np.maximum(-np.diff(rates), 0.0)
        kept = np.exp(-between / min(DELAY_STEPS, DELAY_SHARE * float(steps[-1])))
        waiting = [0.0]  # what has come down, and does not count yet
        for share, drop in zip(kept.tolist(), drops.tolist()):
            waiting.append(waiting[-1] * share + drop)
        return steps, sums, np.concatenate(([0.0], np.cumsum(drops))) - np.array(waiting)

    def at(self, places: Floats) -> Features:
        """S and G after the steps `places`."""
        steps, sums, fallen = self.integrals
        return Features(np.interp(places, steps, sums), np.interp(places, steps, fallen))


class Features(NamedTuple):
    """What the law is a function of, at some places of a run."""

    sums: Floats
    """S"""
    fallen: Floats
    """G"""


class Expected(NamedTuple):
    """A loss and the ends of its 90 % interval."""

    loss: float
    low: float
    high: float


class _Bins(NamedTuple):
    steps: Floats
    losses: Floats
    errors: Floats
    """Standard error of each mean."""


def _binned(steps: Floats, losses: Floats, sums: Floats) -> _Bins:
    """Means over lines that are near in ln S; the first twentieth of the curve is left out."""
    kept = sums > sums[-1] / 20
    steps, losses, sums = steps[kept], losses[kept], sums[kept]
    edges = np.geomspace(sums[0], sums[-1] * (1 + 1e-9), BINS + 1)
    which = np.searchsorted(edges, sums, side="right")
    labels, at, counts = np.unique(which, return_inverse=True, return_counts=True)
    mean = np.bincount(at, losses) / counts
    noise = float(np.median(np.abs(np.diff(losses)))) / (0.6745 * math.sqrt(2)) if len(losses) > 1 else 0.0
    return _Bins(np.bincount(at, steps) / counts, mean, noise / np.sqrt(counts) * np.ones(len(labels)))


class Fit(NamedTuple):
    """A mixture of normal posteriors of (loss now, B, C), one for each α."""

    weights: Floats
    means: Floats
    """[alphas, 3]"""
    covariances: Floats
    """[alphas, 3, 3]"""
    scale: float
    """S now."""
    wander: float
    """Standard deviation of the loss from the law, per unit of ln S."""

    @property
    def mean(self) -> tuple[float, float, float]:
        """The loss now, B and C."""
        now, slope, gained = self.weights @ self.means
        return float(now), float(slope), float(gained)

    @property
    def error(self) -> tuple[float, float, float]:
        """The standard deviations of the same."""
        inside = np.diagonal(self.covariances, axis1=1, axis2=2)
        now, slope, gained = np.sqrt(self.weights @ (inside + (self.means - self.mean) ** 2))
        return float(now), float(slope), float(gained)

    def predict(self, path: Path, step: float, shift: float = 0.0, spread: float = 0.0) -> Expected:
        """The loss after `step`, plus a `shift` whose standard deviation is `spread`."""
        found = path.at(np.array([step]))
        rows = _rows(found, self.scale)[:, 0]
        centers = np.einsum("ak,ak->a", rows, self.means) + shift
        variances = np.einsum("ak,akl,al->a", rows, self.covariances, rows)
        away = self.wander * math.log(max(1.0, found.sums[0] / self.scale))
        deviations = np.sqrt(np.maximum(variances, 0.0) + spread**2 + away**2)
        low, middle, high = (_quantile(self.weights, centers, deviations, share) for share in (0.05, 0.5, 0.95))
        return Expected(middle, low, high)

    def center(self, path: Path, step: float) -> float:
        """The mean of the same, without an interval."""
        rows = _rows(path.at(np.array([step])), self.scale)[:, 0]
        return float(self.weights @ np.einsum("ak,ak->a", rows, self.means))


def _rows(features: Features, scale: float) -> Floats:
    """[alphas, places, 3]: what the loss now, B and C are multiplied with."""
    power = np.expm1(-ALPHAS[:, None] * np.log(features.sums / scale)) / ALPHAS[:, None]
    return np.stack((np.ones_like(power), power, np.broadcast_to(-features.fallen, power.shape)), axis=2)


def fit_curve(steps: Floats, losses: Floats, path: Path) -> Fit | None:
    """Fit the law to training losses; None where there are too few."""
    if len(steps) < FEWEST_BINS or path.rates.max() <= 0:
        return None
    sums = path.at(steps).sums
    fit = _fit(steps, losses, sums, path)
    if fit is None:
        return None
    now, errors = fit.center(path, steps[-1]), []
    for back in BACK:
        known = sums <= sums[-1] / back
        earlier = _fit(steps[known], losses[known], sums[known], path) if known.any() else None
        if earlier is not None:
            errors.append((earlier.center(path, steps[-1]) - now) / math.log(back))
    wander = math.sqrt(sum(error**2 for error in errors) / len(errors)) if errors else SLOPE[1] * now
    return fit._replace(wander=wander)


def _fit(steps: Floats, losses: Floats, sums: Floats, path: Path) -> Fit | None:
    bins = _binned(steps, losses, sums)
    if len(bins.steps) < FEWEST_BINS:
        return None
    features = path.at(bins.steps)
    scale, now = float(features.sums[-1]), float(bins.losses[-1])
    errors = np.hypot(bins.errors, MISFIT * now * (1 + FORGOTTEN * np.log(scale / features.sums)))
    prior_mean = now * np.array([1.0, SLOPE[0], ANNEALING[0]])
    prior = np.diag((now * np.array([0.2, SLOPE[1], ANNEALING[1]])) ** 2)
    rows = _rows(features, scale)  # [alphas, bins, 3]
    gain = rows @ prior  # as [alphas, bins, 3], the prior is symmetric
    spread = gain @ rows.transpose(0, 2, 1) + np.diag(errors**2)
    left = bins.losses - rows @ prior_mean  # [alphas, bins]
    solved = np.linalg.solve(spread, np.concatenate((left[:, :, None], gain), axis=2))
    fitted = gain.transpose(0, 2, 1) @ solved  # [alphas, 3, 1 + 3]
    away = (ALPHAS - EXPONENT[0]) / EXPONENT[1]
    misfit = np.einsum("ab,ab->a", left, solved[:, :, 0])
    evidence = -0.5 * (misfit + np.linalg.slogdet(spread)[1] + away**2)
    weights = np.exp(evidence - evidence.max())
    return Fit(weights / weights.sum(), prior_mean + fitted[:, :, 0], prior - fitted[:, :, 1:], scale, 0.0)


def _quantile(weights: Floats, centers: Floats, deviations: Floats, share: float) -> float:
    """Of a mixture of normals, by bisection."""
    low, high = float((centers - 8 * deviations).min()), float((centers + 8 * deviations).max())
    parts = list(zip((0.5 * weights).tolist(), centers.tolist(), (deviations * math.sqrt(2)).tolist()))
    for _ in range(40):
        middle = (low + high) / 2
        below = sum(half * math.erfc((center - middle) / width) for half, center, width in parts)
        low, high = (middle, high) if below < share else (low, middle)
    return (low + high) / 2
