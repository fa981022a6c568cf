"""Approach 1: the lowest loss of all training curves at each compute, and power laws through the sizes there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shoestring.core.errors import UserError
from shoestring.core.units import counted
from shoestring.laws.descent import Floats
from shoestring.laws.form import PER_TOKEN
from shoestring.laws.noise import Noise, draw_noise, estimate_noise
from shoestring.laws.points import Points
from shoestring.laws.power import PowerBootstrap, PowerLaw, fit_power, rest
from shoestring.laws.surface import COEFFICIENTS, fit_surface, slopes_of

_NEAR = 1.1
"""Evaluations up to this factor above the envelope tell the noise of its runs."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The loss of one run as it trained."""

    params: float
    tokens: Floats
    """Ascending."""
    loss: Floats
    name: str = ""


class Minimum(NamedTuple):
    """Where a size has the lowest loss of all: the middle, in ln C, of the range of compute in which it does."""

    flops: float
    params: float
    tokens: float


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """The lowest loss by compute, and the laws N = k C^a and D = k C^a through the minima."""

    flops: Floats
    loss: Floats
    minima: tuple[Minimum, ...]
    """One for each size that is lowest somewhere. The smallest and the largest size are lowest up to the end of the
    data, so their middles are not where they would be best; they are left out if three or more sizes remain."""
    params_law: PowerLaw
    tokens_law: PowerLaw


def fit_envelope(
    curves: Sequence[Curve], budgets: int = 200, per_token: float = PER_TOKEN, exponent: float | None = None
) -> Envelope:
    """The envelope on a grid of `budgets` values of compute, evenly spaced in ln C.

    With a given `exponent` of N, that of D is 1 - exponent.
    """
    grid, table = _table(curves, budgets, per_token)
    minima = _minima(np.array([curve.params for curve in curves]), grid, table, per_token)
    if len({one.params for one in minima}) < 2:
        raise UserError(
            f"{counted(len(curves), 'curve')}, lowest somewhere: {len(minima)}; a power law needs two sizes or more"
        )
    flops, params, tokens = np.array(minima).T
    return Envelope(
        flops=np.exp(grid),
        loss=table.min(0),
        minima=tuple(minima),
        params_law=fit_power(flops, params, exponent),
        tokens_law=fit_power(flops, tokens, rest(exponent)),
    )


def bootstrap_envelope(
    curves: Sequence[Curve],
    resamples: int = 1000,
    seed: int = 0,
    budgets: int = 200,
    per_token: float = PER_TOKEN,
    exponent: float | None = None,
) -> tuple[PowerBootstrap, PowerBootstrap]:
    """The laws of N and of D when new noise is put on smooth curves; NaN where fewer than two sizes are lowest.

    The smooth curves are those of a surface, fitted to the evaluations near the envelope. Its residuals tell the noise
    of runs and of evaluations (`laws.noise`). What noise does to the envelope of the smooth curves is taken from the
    envelope of the curves, so that the middle of the laws is free of the bias of the lowest of noisy losses.
    """
    grid, table = _table(curves, budgets, per_token)
    near = _near(curves, grid, table.min(0), per_token)
    points, noise, freedom = near.points, near.noise, near.freedom
    starts = np.flatnonzero(np.diff(points.groups, prepend=-1))
    sizes = points.params[starts]
    logs = np.split(np.log(per_token * points.params * points.tokens), starts[1:])
    drawn = draw_noise(noise, points.groups, freedom, resamples, seed, "envelope")
    found = np.full((resamples + 1, 4), np.nan)
    for row, moved in zip(found, (np.zeros(len(points)), *drawn)):
        losses = np.split(near.smooth * np.exp(moved), starts[1:])
        rows = [np.interp(grid, log, loss, left=np.inf, right=np.inf) for log, loss in zip(logs, losses)]
        minima = _minima(sizes, grid, np.array(rows), per_token)
        if len({one.params for one in minima}) >= 2:
            flops, params, tokens = np.array(minima).T
            row[:] = [*fit_power(flops, params, exponent), *fit_power(flops, tokens, rest(exponent))]
    own = fit_envelope(curves, budgets, per_token, exponent)
    found[:, ::2] = np.log(found[:, ::2])
    centre = np.array([*own.params_law, *own.tokens_law])
    centre[::2] = np.log(centre[::2])
    found = centre - (found[1:] - found[0])
    found[:, ::2] = np.exp(found[:, ::2])
    return PowerBootstrap(k=found[:, 0], a=found[:, 1]), PowerBootstrap(k=found[:, 2], a=found[:, 3])


class _Smooth(NamedTuple):
    """Evaluations near the envelope, run by run, and the surface through them."""

    points: Points
    smooth: Floats
    """The loss of each by the surface."""
    noise: Noise
    freedom: float


def _near(curves: Sequence[Curve], grid: Floats, lowest: Floats, per_token: float) -> _Smooth:
    params, tokens, loss, groups = [], [], [], []
    for number, curve in enumerate(curves):
        height = np.interp(np.log(per_token * curve.params * curve.tokens), grid, lowest)
        kept = curve.loss <= _NEAR * height
        tokens.append(curve.tokens[kept])
        loss.append(curve.loss[kept])
        params.append(np.full(kept.sum(), curve.params))
        groups.append(np.full(kept.sum(), number))
    if (runs := sum(map(bool, map(len, loss)))) <= COEFFICIENTS:
        raise UserError(f"{runs} runs for {COEFFICIENTS} coefficients leave nothing to tell the noise from; add a run")
    points = Points(
        params=np.concatenate(params),
        tokens=np.concatenate(tokens),
        loss=np.concatenate(loss),
        given_groups=np.concatenate(groups),
    )
    fit = fit_surface(points, "squares")
    fitted = estimate_noise(fit.residuals, slopes_of(points, fit.surface), points.groups)
    return _Smooth(points, points.loss * np.exp(fit.residuals), fitted.noise, float(fitted.freedom.min()))


def _table(curves: Sequence[Curve], budgets: int, per_token: float) -> tuple[Floats, Floats]:
    """ln C of the grid [G], and the loss of each curve there [curves, G], infinite outside the curve's own range."""
    if len(curves) < 2:
        raise UserError(f"{len(curves)} curve; an envelope needs two or more")
    logs = []
    for number, curve in enumerate(curves):
        name = curve.name or f"curve {number}"
        if curve.tokens.shape != curve.loss.shape or curve.tokens.ndim != 1 or len(curve.tokens) < 1:
            raise UserError(f"{name}: {curve.tokens.shape} tokens and {curve.loss.shape} losses; give as many of both")
        numbers = np.concatenate((curve.tokens, curve.loss, [curve.params]))
        if not (np.isfinite(numbers) & (numbers > 0)).all() or (np.diff(curve.tokens) <= 0).any():
            raise UserError(f"{name}: tokens must ascend, and all numbers must be finite and above 0")
        logs.append(np.log(per_token * curve.params * curve.tokens))
    grid = np.linspace(min(log[0] for log in logs), max(log[-1] for log in logs), budgets)
    losses = [np.interp(grid, log, curve.loss, left=np.inf, right=np.inf) for curve, log in zip(curves, logs)]
    return grid, np.array(losses)


def _minima(curve_sizes: Floats, grid: Floats, table: Floats, per_token: float) -> list[Minimum]:
    covered = np.isfinite(table.min(0))
    sizes = curve_sizes[table.argmin(0)]
    minima = []
    for size in np.unique(sizes[covered]):
        (places,) = np.nonzero(covered & (sizes == size))
        middle = int(places[np.abs(grid[places] - grid[places].mean()).argmin()])
        flops = float(np.exp(grid[middle]))
        minima.append(Minimum(flops, float(size), flops / per_token / float(size)))
    return minima[1:-1] if len(minima) >= 5 else minima
