"""The best model for a budget of FLOPs or of time, and the cost of another size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from shoestring.core.errors import UserError
from shoestring.laws.descent import Floats
from shoestring.laws.form import PER_TOKEN, Surface
from shoestring.laws.surface import SurfaceSpread

Intervals = dict[str, tuple[float, float]]
_ROUNDS = 7  # of refining a grid


@dataclass(frozen=True, kw_only=True)
class SurfaceOptimum:
    """The size with the lowest loss within a budget, and the tokens it is trained on."""

    params: float
    tokens: float
    loss: float
    at_edge: str | None = None
    """ "smallest" or "largest" where it is an end of the range searched: the best size is likely beyond."""
    extrapolated: bool = False
    """Whether the speed at this size lies outside the sizes measured."""
    intervals: Intervals = field(default_factory=dict)
    """Of "params", "tokens" and "loss"; empty without laws beside the fitted one."""


def optimum_for_flops(
    surface: Surface, flops: float, spread: SurfaceSpread | None = None, per_token: float = PER_TOKEN
) -> SurfaceOptimum:
    _check_budget("flops", flops)
    params, tokens, loss = surface.optimum(flops, per_token)
    intervals = spread.optimum_interval(flops, per_token) if spread else {}
    return SurfaceOptimum(params=params, tokens=tokens, loss=loss, intervals=intervals)


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Tokens per second by model size: straight lines in logarithms between measured sizes, extended beyond the ends.

    Beyond the ends a larger model is never faster: where noise suggests it, the speed stays constant.
    """

    log_params: Floats
    """Ascending."""
    log_rates: Floats

    def __call__(self, params: Any) -> Any:
        u = np.log(params)
        inside = np.interp(u, self.log_params, self.log_rates)
        slopes = np.minimum(np.diff(self.log_rates) / np.diff(self.log_params), 0)
        below, above = np.minimum(u - self.log_params[0], 0), np.maximum(u - self.log_params[-1], 0)
        return np.exp(inside + slopes[0] * below + slopes[-1] * above)

    def extrapolated(self, params: float) -> bool:
        """Whether a size is outside those measured, by more than rounding."""
        u = np.log(params)
        return bool(u < self.log_params[0] - 1e-9 or u > self.log_params[-1] + 1e-9)


def fit_speed(params: Floats, tokens_per_second: Floats) -> Speed:
    """The speed by size from two or more measured sizes; several rates of one size are averaged geometrically."""
    sizes, rates = np.asarray(params, np.float64), np.asarray(tokens_per_second, np.float64)
    if sizes.shape != rates.shape or sizes.ndim != 1:
        raise UserError(f"{sizes.shape} sizes and {rates.shape} speeds; give one speed for each size")
    good = np.isfinite(sizes) & np.isfinite(rates) & (sizes > 0) & (rates > 0)
    if not good.all():
        at = int(np.flatnonzero(~good)[0])
        raise UserError(f"{rates[at]} tokens/s at {sizes[at]} parameters: both must be finite and above 0")
    log_sizes, which = np.unique(np.log(sizes), return_inverse=True)
    if len(log_sizes) < 2:
        raise UserError(f"speeds of {len(log_sizes)} size; measure two or more, as far apart as the sizes in question")
    log_rates = np.bincount(which, np.log(rates)) / np.bincount(which)
    return Speed(log_params=log_sizes, log_rates=log_rates)


def optimum_for_time(
    surface: Surface,
    seconds: float,
    speed: Callable[[Any], Any],
    sizes: tuple[float, float],
    spread: SurfaceSpread | None = None,
) -> SurfaceOptimum:
    """The best size from `sizes[0]` to `sizes[1]` if N parameters are trained on speed(N) · seconds tokens.

    `speed` takes arrays of sizes. The intervals are those of the law; the speed is taken as exact.
    """
    _check_budget("seconds", seconds)
    if not 0 < sizes[0] < sizes[1] < np.inf:
        raise UserError(f"sizes from {sizes[0]:g} to {sizes[1]:g}: the first must be above 0 and below the second")
    (params,) = _best_sizes(np.array([surface]), seconds, speed, sizes)
    tokens = float(speed(params) * seconds)
    edges = {"smallest": sizes[0], "largest": sizes[1]}
    at_edge = next((name for name, edge in edges.items() if abs(np.log(params / edge)) < 1e-6), None)
    intervals: Intervals = {}
    if spread is not None:
        samples = spread.samples[spread.converged]
        best = _best_sizes(samples, seconds, speed, sizes)
        seen = np.asarray(speed(best)) * seconds
        losses = Surface(*samples.T).loss(best, seen)
        own = float(surface.loss(params, tokens))
        columns = {"params": (best, float(params)), "tokens": (seen, tokens), "loss": (losses, own)}
        intervals = {name: spread.interval_of(values, one) for name, (values, one) in columns.items()}
    return SurfaceOptimum(
        params=float(params),
        tokens=tokens,
        loss=float(surface.loss(params, tokens)),
        at_edge=at_edge,
        extrapolated=isinstance(speed, Speed) and speed.extrapolated(float(params)),
        intervals=intervals,
    )


def _best_sizes(samples: Floats, seconds: float, speed: Callable[[Any], Any], sizes: tuple[float, float]) -> Floats:
    """The best N [R] under each law of `samples` [R, 5]."""
    E, A, B, alpha, beta = samples.T[:, :, None]

    def losses(log_params: Floats) -> Floats:
        log_tokens = np.log(speed(np.exp(log_params)) * seconds)
        return np.asarray(E + A * np.exp(-alpha * log_params) + B * np.exp(-beta * log_tokens))

    return np.exp(lowest(losses, float(np.log(sizes[0])), float(np.log(sizes[1])), len(samples)))


def lowest(function: Callable[[Floats], Floats], low: float, high: float, count: int = 1, grid: int = 65) -> Floats:
    """x [count] in [low, high] where each of `count` functions is lowest; `function` maps [count, grid] to the same.

    It may miss a minimum that is narrower than the range / `grid`, or barely lower than another. The place is accurate
    to about 1e-8 of the range, where the values no longer differ.
    """
    lows, highs = np.full(count, low), np.full(count, high)
    rows = np.arange(count)
    for _ in range(_ROUNDS):
        places = np.linspace(lows, highs, grid, axis=1)
        best = function(places).argmin(1)
        lows, highs = places[rows, np.maximum(best - 1, 0)], places[rows, np.minimum(best + 1, grid - 1)]
    return np.asarray(places[rows, best])


class SizeCost(NamedTuple):
    """The cost of training a size that is not the best, at equal compute."""

    params: float
    tokens: float
    loss: float
    loss_difference: float
    """Above the loss of the best size."""
    extra_compute: float
    """Further compute, as a fraction, with which this size reaches the loss of the best; inf where it never does."""


def cost_of_size(surface: Surface, flops: float, factor: float, per_token: float = PER_TOKEN) -> SizeCost:
    """The cost of a model with `factor` times the best number of parameters."""
    _check_budget("flops", flops)
    if not 0 < factor < np.inf:
        raise UserError(f"factor = {factor}: it must be above 0, as in 0.5 for half the best size")
    best_params, best_tokens, best_loss = surface.optimum(flops, per_token)
    params, tokens = best_params * factor, best_tokens / factor
    loss = surface.loss(params, tokens)
    left = best_loss - surface.E - surface.A * params**-surface.alpha  # for the term of tokens
    needed = (surface.B / left) ** (1 / surface.beta) if left > 0 else np.inf
    return SizeCost(params, tokens, loss, loss - best_loss, max(needed / tokens - 1, 0.0))


def cost_interval(spread: SurfaceSpread, flops: float, params: float, per_token: float = PER_TOKEN) -> Intervals:
    """95 % intervals of the cost of training `params` parameters, by the field names of `SizeCost`.

    Each law has another best size, so `params` is off by another factor. Not identified where a law has none.
    """

    def cost(one: Surface) -> SizeCost:
        if min(one[1:]) <= 0:
            return SizeCost(*(np.nan,) * len(SizeCost._fields))
        return cost_of_size(one, flops, params / one.optimum(flops, per_token)[0], per_token)

    table = np.array([cost(one) for one in spread.surfaces]).reshape(-1, len(SizeCost._fields))
    named = zip(SizeCost._fields, table.T, cost(spread.fitted), strict=True)
    return {name: spread.interval_of(column, own) for name, column, own in named if name != "params"}


def _check_budget(name: str, value: float) -> None:
    if not 0 < value < np.inf:
        raise UserError(f"{name} = {value}: a budget must be finite and above 0")
