"""Starts for a descent: a grid over the two exponents, with the best coefficients A, B, E ≥ 0 in each cell."""

from __future__ import annotations

import numpy as np

from shoestring.laws.descent import STEEPEST, Centred, Floats, penalties, reweighting

EXPONENTS = np.array([0.001, 0.004, *np.geomspace(0.015, STEEPEST, 18)])
_PASSES = 3
_CELLS = 1 << 17  # numbers in an array of cells × points


def nonnegative(gram: Floats, right: Floats) -> Floats:
    """x ≥ 0 [..., 3] that minimises x·Gx/2 - r·x for G [..., 3, 3] and r [..., 3], by trying all seven supports."""
    scale = np.sqrt(np.maximum(np.einsum("...ii->...i", gram), 1e-300))
    g, r = gram / (scale[..., :, None] * scale[..., None, :]), right / scale
    best, gain = np.zeros_like(r), np.zeros(r.shape[:-1])

    def consider(support: tuple[int, ...], solution: tuple[Floats, ...]) -> None:
        nonlocal best, gain
        x = np.zeros_like(r)
        for index, value in zip(support, solution, strict=True):
            x[..., index] = value
        found = np.einsum("...i,...i->...", r, x)
        better = (x >= 0).all(-1) & (found > gain)
        best, gain = np.where(better[..., None], x, best), np.where(better, found, gain)

    for i in range(3):
        consider((i,), (r[..., i],))
    for i, j in ((0, 1), (0, 2), (1, 2)):
        c = g[..., i, j]
        room = np.maximum(1 - c * c, 1e-15)
        consider((i, j), ((r[..., i] - c * r[..., j]) / room, (r[..., j] - c * r[..., i]) / room))
    c, d, f = g[..., 0, 1], g[..., 0, 2], g[..., 1, 2]
    room = np.maximum(1 + 2 * c * d * f - c * c - d * d - f * f, 1e-15)
    x, y, z = (r[..., i] for i in range(3))
    consider(
        (0, 1, 2),
        (
            ((1 - f * f) * x + (d * f - c) * y + (c * f - d) * z) / room,
            ((d * f - c) * x + (1 - d * d) * y + (c * d - f) * z) / room,
            ((c * f - d) * x + (c * d - f) * y + (1 - c * c) * z) / room,
        ),
    )
    return np.asarray(best / scale)


def grid_starts(points: Centred, delta: float) -> Floats:
    """Rows (a, b, e, α, β) [S, 5] to start from, the best first: the lowest cell of each row and column of the grid.

    The best cell with each set of absent terms is added.
    """
    count = len(EXPONENTS)
    of_params, of_tokens = np.exp(-EXPONENTS[:, None] * points.u), np.exp(-EXPONENTS[:, None] * points.v)
    i, j = np.divmod(np.arange(count * count), count)
    block = max(1, _CELLS // len(points.u))
    parts = [slice(first, first + block) for first in range(0, len(i), block)]
    found = [_improved(points, of_params[i[part]], of_tokens[j[part]], delta) for part in parts]
    rows = np.concatenate((np.concatenate([best for best, _ in found]), EXPONENTS[i, None], EXPONENTS[j, None]), 1)
    height = np.concatenate([objective for _, objective in found])
    square = height.reshape(count, count)
    along = np.arange(count)
    chosen = np.concatenate((along * count + square.argmin(1), square.argmin(0) * count + along))
    kind = (rows[:, :3] > 0) @ np.array([1, 2, 4])
    members = [np.flatnonzero(kind == one) for one in np.unique(kind)]
    chosen = np.unique([*chosen, *(same[height[same].argmin()] for same in members)])
    return np.asarray(rows[chosen[height[chosen].argsort(kind="stable")]])


def _improved(points: Centred, p: Floats, q: Floats, delta: float) -> tuple[Floats, Floats]:
    """(a, b, e) [G, 3] for powers p, q [G, n] after a few reweighted passes, and their objectives [G]."""
    once = np.broadcast_to(np.exp(-points.y), p.shape)
    target, twice = once, once * once
    for last in range(_PASSES, 0, -1):
        tp, tq = twice * p, twice * q  # the design is (p, q, 1) / prediction; the weights contain the division
        gram, right = np.empty((len(p), 3, 3)), np.empty((len(p), 3))
        gram[:, 0, 0], gram[:, 1, 1], gram[:, 2, 2] = _sums(tp, p), _sums(tq, q), twice.sum(1)
        for i, j, product in ((0, 1, _sums(tp, q)), (0, 2, tp.sum(1)), (1, 2, tq.sum(1))):
            gram[:, i, j] = gram[:, j, i] = product
        right[:, 0], right[:, 1], right[:, 2] = _sums(target, p), _sums(target, q), target.sum(1)
        best = nonnegative(gram, right)
        prediction = np.maximum(best[:, :1] * p + best[:, 1:2] * q + best[:, 2:], 1e-300)
        residuals = np.log(prediction) - points.y
        if last > 1:
            once = reweighting(np.abs(residuals), delta) / prediction
            target, twice = once * (1 - residuals), once / prediction
    return best, penalties(residuals, delta).sum(1)


def _sums(x: Floats, y: Floats) -> Floats:
    """x · y of each row."""
    return np.asarray(np.einsum("gn,gn->g", x, y))
