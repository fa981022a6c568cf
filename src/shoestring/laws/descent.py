"""Local minima of the law E + A/N^α + B/D^β, for many weightings of the same points or many starts at once.

Shapes: R problems, n points, 5 coefficients. Coefficients are a row (a, b, e, α, β) in centred form,

    prediction = e + a exp(-α u) + b exp(-β v)

where u and v are ln N and ln D minus their means. Losses are divided by their geometric mean, which keeps a, b and e
near 1 in any units. Bounds: a, b, e ≥ 0 and 0 ≤ α, β ≤ STEEPEST. The coefficients are linear, so an absent term is a
point on the boundary that is reached exactly.
"""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

STEEPEST = 10.0
"""Largest exponent: beyond it a term is a step between two neighbouring sizes, not a law."""
LOWER = np.zeros(5)
UPPER = np.array([np.inf, np.inf, np.inf, STEEPEST, STEEPEST])

_TOLERANCE = 1e-11  # of the objective: a descent ends when a step promises a smaller decrease
_NOISE = 1e-26  # of the weights: squared residuals below it are rounding
_SMALL = 1e-9  # exponents below it are zero
_TINY = 1e-300
_BLOCK = 1 << 17  # numbers per array: many enough to hide the cost of a call


class Centred(NamedTuple):
    """The points in centred form, with the means to undo the centring."""

    u: Floats  # [n]
    v: Floats  # [n]
    y: Floats  # [n] ln loss minus its mean, or [R, n] where each problem has losses of its own
    mean: Floats  # [3] of ln N, ln D, ln loss

    def of(self, problems: Any) -> Centred:
        """The points of some problems; `problems` indexes rows."""
        return self if self.y.ndim == 1 else self._replace(y=self.y[problems])

    def outward(self, rows: Floats) -> Floats:
        """Rows (a, b, e, α, β) as rows (E, A, B, α, β) of the law in N and D."""
        a, b, e, alpha, beta = rows.T
        scale = np.exp(self.mean[2])
        A, B = a * scale * np.exp(alpha * self.mean[0]), b * scale * np.exp(beta * self.mean[1])
        return np.stack((e * scale, A, B, alpha, beta), 1)

    def inward(self, rows: Floats) -> Floats:
        """The reverse of `outward`."""
        E, A, B, alpha, beta = rows.T
        scale = np.exp(-self.mean[2])
        a, b = A * scale * np.exp(-alpha * self.mean[0]), B * scale * np.exp(-beta * self.mean[1])
        return np.stack((a, b, E * scale, alpha, beta), 1)


def centre(params: Floats, tokens: Floats, loss: Floats) -> Centred:
    logs = np.log(np.stack((params, tokens, loss)))
    mean = logs.mean(1)
    u, v, y = logs - mean[:, None]
    return Centred(u, v, y, mean)


def penalties(residuals: Floats, delta: float) -> Floats:
    """Huber's penalty of each residual: r²/2 up to `delta`, straight beyond; `delta` = inf makes them squares."""
    size = np.abs(residuals)
    near = np.minimum(size, delta)
    return near * (size - near / 2)


def reweighting(size: Floats, delta: float) -> Floats:
    """The weights with which squared residuals of this size have the slope of their penalties."""
    return np.minimum(delta / np.maximum(size, _TINY), 1.0)


class Values(NamedTuple):
    """A law at all points, each [R, n]: the two powers / prediction, 1 / prediction, and the log residuals."""

    p: Floats
    q: Floats
    inverse: Floats
    residuals: Floats


def evaluate(points: Centred, rows: Floats) -> Values:
    a, b, e, alpha, beta = rows.T[:, :, None]
    p, q = np.exp(-alpha * points.u), np.exp(-beta * points.v)
    prediction = np.maximum(e + a * p + b * q, 1e-60)  # keeps a row of zeros finite
    inverse = 1 / prediction
    return Values(p * inverse, q * inverse, inverse, np.log(prediction) - points.y)


class Descent(NamedTuple):
    rows: Floats  # [R, 5]
    objective: Floats  # [R] weighted sum of penalties
    converged: Flags  # [R]


def descend(points: Centred, weights: Floats, starts: Floats, delta: float, limit: int = 100) -> Descent:
    """From each row of `starts` [R, 5] to a minimum under its row of `weights` [R, n], or [1, n] for all."""
    block = max(1, _BLOCK // len(points.u))
    parts = [slice(first, first + block) for first in range(0, len(starts), block)]
    with np.errstate(over="ignore"):  # an infinite bound, a rejected step
        pieces = [
            _descend(points.of(part), weights if len(weights) == 1 else weights[part], starts[part], delta, limit)
            for part in parts
        ]
    return Descent(*(np.concatenate(parts) for parts in zip(*pieces)))


def _descend(points: Centred, weights: Floats, starts: Floats, delta: float, limit: int) -> Descent:
    """Newton's method within bounds, damped by the Hessian of the reweighted squares.

    The true Hessian of Huber's penalty depends only on the few points within `delta`. That of the reweighted squares
    depends on all points and never underestimates the penalty. Their mixture descends steadily from far away and ends
    with Newton's steps.
    """
    rows, weights = starts.copy(), np.broadcast_to(weights, (len(starts), len(points.u)))
    final = Descent(rows.copy(), np.full(len(rows), np.inf), np.zeros(len(rows), bool))
    now = evaluate(points, rows)
    objective = np.einsum("rn,rn->r", weights, penalties(now.residuals, delta))
    damping, left = np.ones(len(rows)), np.arange(len(rows))
    floor = _NOISE * weights.sum(1)
    for _ in range(limit):
        trial, promise = _trial(_slopes(points, weights, rows, now, delta, damping))
        there = evaluate(points, trial)
        reached = np.einsum("rn,rn->r", weights, penalties(there.residuals, delta))
        better = reached < objective
        done = promise * (1 + damping) <= _TOLERANCE * objective + floor
        rows[better], objective[better] = trial[better], reached[better]
        damping = np.where(better, damping * 0.15, damping * 6)
        for old, new in zip(now, there, strict=True):
            old[better] = new[better]
        if done.any():
            ended = left[done]
            final.rows[ended], final.objective[ended], final.converged[ended] = rows[done], objective[done], True
            keep = ~done
            rows, objective, damping, left, floor = (x[keep] for x in (rows, objective, damping, left, floor))
            weights, now, points = weights[keep], Values(*(x[keep] for x in now)), points.of(keep)
            if not len(left):
                return final
        np.clip(damping, 1e-9, 1e12, out=damping)
    final.rows[left], final.objective[left] = rows, objective
    return final


class Slopes(NamedTuple):
    """The derivatives of R objectives by rows whose a and b are the terms' values at (u, v) = `centres`."""

    rows: Floats  # [R, 5]
    centres: Floats  # [R, 2]
    gradient: Floats  # [R, 5]
    hessian: Floats  # [R, 5, 5] damped


def _slopes(points: Centred, weights: Floats, rows: Floats, now: Values, delta: float, damping: Floats) -> Slopes:
    """The centres are where a term weighs most; elsewhere a steep term's size and exponent are strongly correlated."""
    u, v = points.u, points.v
    size = np.abs(now.residuals)
    near = np.minimum(size, delta)
    slope = weights * np.copysign(near, now.residuals)
    reweighted = weights * reweighting(size, delta)
    bend = weights * (size <= delta) - slope + damping[:, None] * reweighted  # times two first derivatives

    one = np.ones_like(u)
    of_u, of_v = np.stack((one, u, u * u), 1), np.stack((one, v, v * v), 1)
    of_both = np.stack((one, u, v, u * v), 1)
    p, q, s = now.p, now.q, now.inverse
    bp, bq = bend * p, bend * q
    pp, qq, pq = ((bp * p) @ of_u).T, ((bq * q) @ of_v).T, ((bp * q) @ of_both).T
    ps, qs, ss = ((bp * s) @ of_u).T, ((bq * s) @ of_v).T, np.einsum("rn,rn,rn->r", bend, s, s)
    gp, gq, gs = ((slope * p) @ of_u).T, ((slope * q) @ of_v).T, np.einsum("rn,rn->r", slope, s)

    a, b, e, alpha, beta = rows.T
    uc = np.clip(pp[1] / np.maximum(pp[0], 1e-30), u.min(), u.max())
    vc = np.clip(qq[1] / np.maximum(qq[0], 1e-30), v.min(), v.max())
    k, m = np.exp(alpha * uc), np.exp(beta * vc)
    pp, ps, gp = _moved(pp, uc) * k * k, _moved(ps, uc) * k, _moved(gp, uc) * k
    qq, qs, gq = _moved(qq, vc) * m * m, _moved(qs, vc) * m, _moved(gq, vc) * m
    both = pq[3] - uc * pq[2] - vc * pq[1] + uc * vc * pq[0]
    pq = np.stack((pq[0], pq[1] - uc * pq[0], pq[2] - vc * pq[0], both)) * (k * m)
    a, b = a / k, b / m

    gradient = np.stack((gp[0], gq[0], gs, -a * gp[1], -b * gq[1]), 1)
    hessian = np.empty((len(rows), 5, 5))
    for i, j, value in (
        (0, 0, pp[0]),
        (1, 1, qq[0]),
        (2, 2, ss),
        (3, 3, a * a * pp[2] + a * gp[2]),
        (4, 4, b * b * qq[2] + b * gq[2]),
        (0, 1, pq[0]),
        (0, 2, ps[0]),
        (1, 2, qs[0]),
        (0, 3, -a * pp[1] - gp[1]),
        (0, 4, -b * pq[2]),
        (1, 3, -a * pq[1]),
        (1, 4, -b * qq[1] - gq[1]),
        (2, 3, -a * ps[1]),
        (2, 4, -b * qs[1]),
        (3, 4, a * b * pq[3]),
    ):
        hessian[:, i, j] = hessian[:, j, i] = value
    return Slopes(np.stack((a, b, e, alpha, beta), 1), np.stack((uc, vc), 1), gradient, hessian)


def _moved(moments: Floats, centre: Floats) -> Floats:
    """Moments of order 0, 1 and 2 [3, R] about another centre [R]."""
    zero, one, two = moments
    return np.stack((zero, one - centre * zero, two - 2 * centre * one + centre**2 * zero))


def _trial(slopes: Slopes) -> tuple[Floats, Floats]:
    """The next row of each problem [R, 5], and the decrease of the objective that the slope promises [R].

    Where e > 0, the step is made in the level a + b + e, the slopes aα and bβ, α and β. The points determine the level
    and the slopes well, so these stay constant while α changes; in (a, e, α) the valley is curved.
    """
    rows, centres, gradient, hessian = slopes
    trial, promise = np.empty_like(rows), np.empty(len(rows))
    bent = (rows[:, 2] > 1e-6 * rows[:, :2].sum(1)) & (rows[:, 3:] > _SMALL).all(1)  # e is a difference there
    (index,) = np.nonzero(bent)
    if len(index):
        trial[index], promise[index] = _straight_trial(rows[index], gradient[index], hessian[index])
        bent[index] = (trial[index, 2] >= 0) & (trial[index, 3:] > _SMALL).all(1)
    (index,) = np.nonzero(~bent)
    if len(index):
        step, promise[index] = _within(rows[index], gradient[index], hessian[index], LOWER)
        trial[index] = np.clip(rows[index] + step, LOWER, UPPER)
    trial[:, :2] *= np.exp(trial[:, 3:] * centres)
    return trial, promise


def _straight_trial(rows: Floats, gradient: Floats, hessian: Floats) -> tuple[Floats, Floats]:
    """The result of `_trial` by a step in (level, aα, bβ, α, β); e may end below its bound."""
    a, b, e, alpha, beta = rows.T
    jacobian = np.zeros_like(hessian)  # of (a, b, e, α, β) by the new coordinates
    jacobian[:, 0, 1], jacobian[:, 0, 3] = 1 / alpha, -a / alpha
    jacobian[:, 1, 2], jacobian[:, 1, 4] = 1 / beta, -b / beta
    jacobian[:, 2] = -jacobian[:, 0] - jacobian[:, 1]
    jacobian[:, 2, 0] = jacobian[:, 3, 3] = jacobian[:, 4, 4] = 1
    across = jacobian.transpose(0, 2, 1)
    hessian = across @ hessian @ jacobian
    for index, slope, size, exponent in ((3, 1, a, alpha), (4, 2, b, beta)):
        pull = gradient[:, slope - 1] - gradient[:, 2]
        hessian[:, index, index] += pull * 2 * size / exponent**2
        hessian[:, index, slope] -= pull / exponent**2
        hessian[:, slope, index] -= pull / exponent**2
    coordinates = np.stack((a + b + e, a * alpha, b * beta, alpha, beta), 1)
    gradient = (across @ gradient[:, :, None])[:, :, 0]
    step, promise = _within(coordinates, gradient, hessian, np.array([-np.inf, 0, 0, 0, 0]))
    level, t, w, alpha, beta = np.clip(coordinates + step, [-np.inf, 0, 0, 0, 0], UPPER).T
    a, b = t / np.maximum(alpha, _SMALL), w / np.maximum(beta, _SMALL)
    return np.stack((a, b, level - a - b, alpha, beta), 1), promise


def _within(rows: Floats, gradient: Floats, hessian: Floats, lower: Floats) -> tuple[Floats, Floats]:
    """Newton's step [R, 5], cut at the first bound, and the decrease that its slope promises [R].

    A coefficient at its bound that would cross it is held, and the step is solved again for the others. A step is
    shortened as a whole: clipping a single coefficient would leave the valley.
    """
    low, high = rows <= lower, rows >= UPPER
    held = (low & (gradient >= 0)) | (high & (gradient <= 0))
    for _ in range(3):
        step, promise = _solve(np.where(held, 0, gradient), hessian, held)
        leaving = (low & (step < 0)) | (high & (step > 0))
        if not leaving.any():
            break
        held |= leaving
    step[leaving] = 0
    room = np.where(step < 0, (lower - rows) / np.minimum(step, -_TINY), np.inf)
    room = np.minimum(room, np.where(step > 0, (UPPER - rows) / np.maximum(step, _TINY), np.inf))
    return step * np.minimum(room.min(1), 1)[:, None], promise


_RIDGES = (0.0, 1e-10, 1e-5, 1.0)
"""Added to the diagonal of a singular matrix in turn, relative to its mean, until it is one no more."""


def solved(matrices: Floats, right: Floats) -> Floats:
    """Solutions [R, k] of R systems; that of a singular one by a matrix near it."""
    try:
        return np.asarray(np.linalg.solve(matrices, right[:, :, None])[:, :, 0], np.float64)
    except np.linalg.LinAlgError:
        return np.stack([_solved_one(matrix, side) for matrix, side in zip(matrices, right)])


def _solved_one(matrix: Floats, right: Floats) -> Floats:
    scale = np.abs(np.diagonal(matrix)).mean()
    unit = (scale if scale > 0 else 1.0) * np.eye(len(right))
    for ridge in _RIDGES:
        with contextlib.suppress(np.linalg.LinAlgError):
            return np.asarray(np.linalg.solve(matrix + ridge * unit, right), np.float64)
    return right  # along the gradient


def _solve(gradient: Floats, hessian: Floats, held: Flags) -> tuple[Floats, Floats]:
    hessian = np.where(held[:, :, None] | held[:, None, :], 0, hessian)
    scale = np.sqrt(np.abs(np.einsum("rii->ri", hessian)))
    scale[scale == 0] = 1
    hessian /= scale[:, :, None] * scale[:, None, :]
    diagonal = np.einsum("rii->ri", hessian)
    diagonal += np.where(held, 1, 1e-13)
    step = -solved(hessian, gradient / scale) / scale
    promise = -np.einsum("ri,ri->r", gradient, step)
    uphill = promise < 0  # an indefinite Hessian: follow the gradient; damping rises if that is too far
    step[uphill] = -(gradient / scale**2)[uphill]
    promise[uphill] = np.inf
    return step, promise
