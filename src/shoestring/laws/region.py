"""The 95 % region of a fit: the laws that the points do not rule out. Those at its edge are found.

At the points a law is a vector of ln predictions. Noise moves the fitted vector, by a known spread along each direction
in which the coefficients can move it. The region holds every law whose predictions are no farther from the fitted ones
than Student's t allows, so the range of any quantity over the region is its profile interval. It needs no normal
estimates, follows curved valleys, ends at bounds, and is as wide as it must be where the points hardly tell
coefficients apart.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from shoestring.core.seeds import derive
from shoestring.laws.descent import Centred, Flags, Floats, descend, evaluate, reweighting, solved
from shoestring.laws.noise import FittedNoise, draw_noise
from shoestring.laws.points import Groups

_ROUNDS = 4  # of moving a law to the edge
_SLACK = 1.05  # a law that ends farther out than this is not of the region
_THIN = 1e-6  # least width, relative to that across
_LARGE = 1e3  # degrees of freedom where no direction tells them
_SIMULATED = 400  # fits, to compare two penalties
_REWEIGHTED = 40  # passes of such a fit
_PART = 50  # of them at once
_SQUARES = 8.0  # standard deviations beyond which no residual lies
_ABSOLUTE = 1e-3  # standard deviations below which a penalty counts as absolute
_STEP = 3.0  # largest change of the distance in a round


class Region(NamedTuple):
    """The ln predictions with whose residuals the squares exceed the least ones by no more than noise explains."""

    directions: Floats  # [n, k] orthonormal: where a change of the coefficients moves the predictions
    widths: Floats  # [k] half-widths along them
    across: float  # half-width in all other directions, into which a curved surface bends
    left: Floats  # [n] residuals in these directions: bending towards the points costs less than away from them

    def distance(self, moves: Floats) -> Floats:
        """[R] how far out moves [R, n] of the predictions are; 1 at the edge."""
        along = moves @ self.directions
        bent = moves - along @ self.directions.T
        more = (bent * (bent + 2 * self.left)).sum(1) / self.across**2
        return np.asarray(np.sqrt(np.maximum(((along / self.widths) ** 2).sum(1) + more, 0)))


def fit_region(noise: FittedNoise, variances: Floats, laws: int, level: float = 0.95) -> Region:
    """The region whose ranges over `laws` laws at its edge are intervals of `level`.

    `variances` [k] are those of the fit over those of least squares. The farthest of some laws at random places of the
    edge is less far out than the edge; the region is larger by what is missing on average.
    """
    student = np.array([student_quantile(level, freedom) for freedom in noise.freedom])
    more = student * np.sqrt(variances) / (1 - shortfall(laws, len(student)))
    across = noise.total * float(more.max(initial=student_quantile(level, _LARGE)))
    return Region(noise.directions, np.maximum(more * noise.deviations, _THIN * across), across, noise.left)


def student_quantile(level: float, freedom: float) -> float:
    """The number between whose negative and itself Student's t has the probability `level`; `freedom` is 1 or more.

    With t = sqrt(freedom) tan(angle), the density of the angle is a power of its cosine.
    """
    freedom = min(max(freedom, 1.0), 1e4)
    angle = np.linspace(0, np.pi / 2, 20_001)
    density = np.cos(angle) ** (freedom - 1)
    share = np.concatenate(([0.0], np.cumsum(density[1:] + density[:-1])))
    return float(np.sqrt(freedom) * np.tan(np.interp(level * share[-1], share, angle)))


def shortfall(laws: int, dimensions: int) -> float:
    """By how much the farthest of random places on a sphere is short of its radius, on average along an axis.

    The cap within x of the pole has a share c x^((d - 1) / 2) of the sphere; the least x of many has a Weibull's mean.
    """
    if dimensions < 2:
        return 0.0
    power = (dimensions - 1) / 2
    log_share = math.lgamma(dimensions / 2) - math.lgamma(power) - math.log(math.pi) / 2
    log_share += math.log(2) * (power - 1) - math.log(power)
    mean = math.gamma(1 + 1 / power) * math.exp(-(math.log(laws) + log_share) / power)
    return min(mean, 0.5)


def edge_of(centred: Centred, fitted: Floats, region: Region, laws: int, seed: int) -> tuple[Floats, Flags]:
    """Centred rows [laws, 5] of laws at the edge, and which of them are in the region.

    Each starts as a random move of the predictions, and becomes the law nearest to it. Then the move to that law is
    made longer or shorter until it ends at the edge, or where no law is farther out. `fitted` is a centred row.
    """
    base = evaluate(centred._replace(y=np.zeros_like(centred.u)), fitted[None]).residuals
    generator = np.random.default_rng(derive(seed, "region"))
    size, moves = len(centred.u), np.zeros((laws, len(centred.u)))
    if region.across > 0:
        along = generator.standard_normal((laws, len(region.widths))) * region.widths
        bent = generator.standard_normal((laws, size)) * region.across
        bent -= bent @ region.directions @ region.directions.T
        moves = (along @ region.directions.T + bent) / np.linalg.norm(along / region.widths, axis=1, keepdims=True)
    rows = np.repeat(fitted[None], laws, 0)
    far = np.zeros(laws)
    for _ in range(_ROUNDS):
        rows = descend(centred._replace(y=base + moves), np.ones((1, size)), rows, np.inf).rows
        moves = evaluate(centred._replace(y=np.zeros(size)), rows).residuals - base
        far = region.distance(moves) if region.across > 0 else np.zeros(laws)
        moves *= np.clip(1 / np.maximum(far, 1e-12), 1 / _STEP, _STEP)[:, None]
    return rows, far < _SLACK


def inefficiency(noise: FittedNoise, groups: Groups, delta: float, seed: int) -> Floats:
    """[k] the variance of a fit with Huber's penalty over that of least squares, along each direction.

    Both are simulated, for normal noise and predictions that are linear in the coefficients. With few groups the ratio
    is below that of large data, which is pi / 2 at most.
    """
    if delta >= _SQUARES * noise.total:
        return np.ones(len(noise.deviations))
    drawn = draw_noise(noise.noise, groups, None, _SIMULATED, seed, "inefficiency")
    least, delta = drawn @ noise.directions, max(delta, _ABSOLUTE * noise.total)
    parts = [slice(first, first + _PART) for first in range(0, len(drawn), _PART)]
    found = np.concatenate([_reweighted(noise.directions, drawn[part], least[part], delta) for part in parts])
    return np.asarray((found**2).sum(0) / (least**2).sum(0))


def _reweighted(directions: Floats, drawn: Floats, found: Floats, delta: float) -> Floats:
    """Fits [R, k] of combinations of the directions to each row drawn [R, n] with Huber's penalty, from `found`."""
    count = directions.shape[1]
    pairs = (directions[:, :, None] * directions[:, None, :]).reshape(len(directions), -1)
    for _ in range(_REWEIGHTED):
        weights = reweighting(np.abs(drawn - found @ directions.T), delta)
        right = (weights * drawn) @ directions
        found = solved((weights @ pairs).reshape(-1, count, count), right)
    return found
