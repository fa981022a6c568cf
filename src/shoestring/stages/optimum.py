"""Optimum: the best model for a budget of FLOPs, or for a deadline on a machine that was measured, by a law."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoestring.core.errors import UserError
from shoestring.core.facts import Estimate, Law
from shoestring.core.units import Count, Flops, Seconds
from shoestring.laws import optimum as laws
from shoestring.laws.form import Surface
from shoestring.laws.surface import SurfaceBootstrap
from shoestring.report.law_page import show_estimate
from shoestring.stages.sizing import counting_of, is_beyond, surface_of
from shoestring.stages.speeds import Measured, describe, read_speeds, speed_by_size

FACTORS = (0.5, 2.0)
"""Sizes beside the best one that are shown."""
_RANGE = 100.0
"""How far from the sizes that were measured the best one is looked for."""


@dataclass(frozen=True, kw_only=True)
class Off:
    """A size that is not the best, at the same budget."""

    factor: float
    """Of the best number of parameters."""
    params: float
    tokens: float
    more_loss: Estimate
    more_budget: float | None
    """What this size needs beyond the budget to reach the best loss, as a share of it; None where it never does."""


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best model for a budget, with intervals of 95 % by the law's own resamples."""

    law: str
    flops: float
    """flops_per_product · N · D."""
    params: Estimate
    tokens: Estimate
    loss: Estimate
    seconds: float | None = None
    tokens_per_second: float | None = None
    off: tuple[Off, ...] = ()
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def spread_of(law: Law) -> SurfaceBootstrap | None:
    """The resampled fits that the record keeps."""
    if not law.samples:
        return None
    samples = np.array(law.samples)
    return SurfaceBootstrap(samples=samples, converged=np.ones(len(samples), bool), checked=0, moved=0)


def best_for_flops(law: Law, flops: float, factors: Sequence[float] = ()) -> Best:
    """The best model for some compute; `factors` are sizes beside it whose cost is told too."""
    surface, spread, per_token = surface_of(law), spread_of(law), law.flops_per_product
    found = laws.best_for_flops(surface, flops, spread, per_token=per_token)
    off = []
    for factor in factors:
        cost = laws.cost_of_size(surface, flops, factor, per_token)
        ends = {} if spread is None else laws.cost_interval(spread, flops, cost.params, per_token=per_token)
        off.append(_off(factor, cost.params, cost.tokens, cost.loss_difference, ends, cost.extra_compute))
    return _answer(law, flops, found, off=tuple(off), notes=tuple(_beyond(law, flops)))


def _answer(law: Law, flops: float, found: laws.Best, **others: Any) -> Best:
    """What a law says of a budget, for people."""
    ends = found.intervals
    return Best(
        law=law.source,
        flops=flops,
        params=estimate(found.params, ends.get("params")),
        tokens=estimate(found.tokens, ends.get("tokens")),
        loss=estimate(found.loss, ends.get("loss")),
        **others,
    )


def best_for_time(law: Law, seconds: float, measured: Sequence[Measured], factors: Sequence[float] = ()) -> Best:
    """The best model for so much training on the machine that was measured; its speed is taken as known."""
    surface, spread = surface_of(law), spread_of(law)
    surface.optimum(1.0)  # raises UserError where a term is absent, so that no size is best
    speed = speed_by_size(measured)
    sizes = (measured[0].params / _RANGE, measured[-1].params * _RANGE)
    found = laws.best_for_time(surface, seconds, speed, sizes, spread)
    notes = [describe(measured)]
    if len(measured) == 1:
        notes.append(
            "one size was measured: its FLOPs a second are taken for those of all; measure more with --profile"
        )
    if found.extrapolated:
        notes.append(f"{Count(found.params).short()} parameters are outside the sizes measured: the speed is a guess")
    if found.at_edge:
        notes.append(f"the best size is the {found.at_edge} that was looked at; the true one is beyond")
    flops = law.flops_per_product * found.params * found.tokens
    return _answer(
        law,
        flops,
        found,
        seconds=seconds,
        tokens_per_second=float(speed(found.params)),
        off=tuple(_off_in_time(surface, seconds, speed, found, factor) for factor in factors),
        notes=(*notes, *_beyond(law, flops)),
    )


def _off_in_time(surface: Surface, seconds: float, speed: Callable[[Any], Any], best: laws.Best, factor: float) -> Off:
    params = best.params * factor
    tokens = float(speed(params)) * seconds
    left = best.loss - surface.E - surface.A * params**-surface.alpha  # for the term of tokens
    needed = (surface.B / left) ** (1 / surface.beta) if left > 0 else math.inf
    return _off(factor, params, tokens, surface.loss(params, tokens) - best.loss, {}, needed / tokens - 1)


def _off(
    factor: float, params: float, tokens: float, loss: float, ends: dict[str, tuple[float, float]], more: float
) -> Off:
    return Off(
        factor=factor,
        params=params,
        tokens=tokens,
        more_loss=estimate(float(loss), ends.get("loss_difference")),
        more_budget=float(more) if math.isfinite(more) else None,
    )


def estimate(value: float, ends: tuple[float, float] | None) -> Estimate:
    """A value with its interval, where there is one of finite numbers."""
    if ends is None or not all(map(math.isfinite, ends)):
        return Estimate(value=value)
    return Estimate(value=value, low=ends[0], high=ends[1])


def _beyond(law: Law, flops: float) -> list[str]:
    if not is_beyond(law, flops):
        return []
    low, high = law.flops
    times = flops / high if flops > high else low / flops
    side = "more" if flops > high else "less"
    return [
        f"{flops:.3g} FLOPs is {times:,.3g} times {side} than any point of the law ({low:.3g} to {high:.3g}): "
        f"extrapolated"
    ]


def find_best(
    law: Law, flops: str | None, time: str | None, profiles: Sequence[Path], factors: Sequence[float]
) -> Best:
    """The answer to a budget as a person writes it: one of FLOPs and time, the latter with measured profiles."""
    if (flops is None) == (time is None):
        raise UserError("give one budget: --flops 1e21, or --time 5d with --profile RUN")
    try:
        amount = float(Flops.parse(flops)) if flops is not None else float(Seconds.parse(time or ""))
    except ValueError as cause:
        raise UserError(f"--{'time' if flops is None else 'flops'} {cause}") from cause
    if amount <= 0:
        raise UserError(f"--{'time' if flops is None else 'flops'} {flops or time}: must be above zero")
    if flops is not None:
        if profiles:
            raise UserError("--profile: is for --time; the best model for FLOPs does not depend on a machine")
        return best_for_flops(law, amount, factors)
    if not profiles:
        raise UserError(
            "--time: needs --profile RUN, a folder that `shoestring measure RECIPE` filled; several sizes are best"
        )
    return best_for_time(law, amount, read_speeds(profiles, counting_of(law)), factors)


def off_rows(best: Best) -> list[tuple[str, str, str, str, str]]:
    """(size, N, D, loss above the best, what it needs more) of sizes beside the best, for people."""
    return [
        (
            f"{one.factor:g} ×",
            Count(one.params).short(),
            Count(one.tokens).short(),
            show_estimate(one.more_loss, lambda value: f"{value:+.4f}"),
            "never reached" if one.more_budget is None else f"{one.more_budget:+.0%}",
        )
        for one in best.off
    ]
