"""Approach 2: among models of equal compute a parabola of the loss in ln N, and power laws through the minima."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shoestring.core.errors import UserError
from shoestring.laws.descent import Floats
from shoestring.laws.points import Points
from shoestring.laws.power import PowerBootstrap, PowerLaw, fit_power, fit_rows
from shoestring.laws.resampling import draw_counts


class GroupOptimum(NamedTuple):
    """The best model of one budget."""

    flops: float
    """The geometric mean of the group, or the budget given."""
    params: float
    tokens: float
    loss: float
    points: int


class Group(NamedTuple):
    """Models of equal compute."""

    flops: float
    points: Points

    @property
    def log_product(self) -> float:
        """ln N D, the mean of the group: tokens of a size are what it leaves."""
        return float(np.log(self.points.params * self.points.tokens).mean())


@dataclass(frozen=True, kw_only=True)
class IsoFlop:
    """The optima of all groups that have one, and the laws N = k C^a and D = k C^a through them."""

    optima: tuple[GroupOptimum, ...]
    groups: tuple[Group, ...]
    """Those of the optima."""
    left_out: tuple[str, ...]
    """Groups and points without an optimum, and why."""
    params_law: PowerLaw
    tokens_law: PowerLaw


def fit_isoflop(points: Points, budgets: Sequence[float] | None = None, tolerance: float = 0.1) -> IsoFlop:
    """`budgets` are the FLOPs of the groups; None finds them. FLOPs in one differ by `tolerance` at most, in ln."""
    groups, left_out = _group(points, budgets, tolerance)
    kept, optima = [], []
    for group in groups:
        found = _optimum(group)
        if isinstance(found, str):
            left_out.append(f"{group.flops:.3g} FLOP, {len(group.points)} points: {found}")
        else:
            kept.append(group)
            optima.append(found)
    if len(optima) < 2:
        told = "".join(f"\n  {line}" for line in left_out[:10])
        raise UserError(f"{len(optima)} budgets have an optimum; a power law needs two or more{told}")
    flops, params, tokens = (np.array([getattr(one, name) for one in optima]) for name in ("flops", "params", "tokens"))
    return IsoFlop(
        optima=tuple(optima),
        groups=tuple(kept),
        left_out=tuple(left_out),
        params_law=fit_power(flops, params),
        tokens_law=fit_power(flops, tokens),
    )


def bootstrap_isoflop(fit: IsoFlop, resamples: int = 1000, seed: int = 0) -> tuple[PowerBootstrap, PowerBootstrap]:
    """The laws of N and of D when the points of each group are drawn again, with replacement.

    A group without an optimum in a resample is left out of it; one with fewer than two groups left fails.
    """
    logs = np.empty((resamples, len(fit.groups)))
    for index, group in enumerate(fit.groups):
        weights = draw_counts(len(group.points), resamples, seed, index)
        logs[:, index], _ = _minima(np.log(group.points.params), group.points.loss, weights)
    usable = np.isfinite(logs)
    flops = np.array([group.flops for group in fit.groups])
    products = np.array([group.log_product for group in fit.groups])
    log_params = np.where(usable, logs, 0)
    laws = []
    for values in (log_params, products - log_params):
        k, a = fit_rows(np.log(flops), values, usable.astype(np.float64))
        laws.append(PowerBootstrap(k=k, a=a))
    return laws[0], laws[1]


def _group(points: Points, budgets: Sequence[float] | None, tolerance: float) -> tuple[list[Group], list[str]]:
    logs = np.log(points.flops)
    if budgets is None:
        order = logs.argsort(kind="stable")
        starts = [0]
        for place in range(1, len(order)):
            if logs[order[place]] - logs[order[starts[-1]]] > tolerance:
                starts.append(place)
        parts = np.split(order, starts[1:])
        return [Group(float(np.exp(logs[part].mean())), points.take(np.sort(part))) for part in parts], []
    wanted = np.log(np.sort(np.asarray(budgets, np.float64)))
    distance = np.abs(logs[:, None] - wanted)
    which = distance.argmin(1)
    far = distance.min(1) > tolerance
    told = [f"{flops:.3g} FLOP: not within {tolerance:.0%} of a budget" for flops in points.flops[far]]
    members = [np.flatnonzero((which == index) & ~far) for index in range(len(wanted))]
    return [Group(float(np.exp(log)), points.take(part)) for log, part in zip(wanted, members) if len(part)], told


def _optimum(group: Group) -> GroupOptimum | str:
    """The minimum of the group's parabola, or why there is none."""
    logs = np.log(group.points.params)
    sizes = len(np.unique(logs))
    if sizes < 3:
        return f"{sizes} size{'s' * (sizes != 1)}, and a parabola needs three or more"
    best, lowest = _minima(logs, group.points.loss, np.ones((1, len(logs))), inside=False)
    if not np.isfinite(best[0]):
        return "the parabola opens downward"
    if not logs.min() <= best[0] <= logs.max():
        return (
            f"its minimum, at {np.exp(np.clip(best[0], -700, 700)):.3g} parameters, is outside the sizes tried, "
            f"{np.exp(logs.min()):.3g} to {np.exp(logs.max()):.3g}"
        )
    params = float(np.exp(best[0]))
    tokens = float(np.exp(group.log_product)) / params
    return GroupOptimum(group.flops, params, tokens, float(lowest[0]), len(logs))


def _minima(logs: Floats, loss: Floats, weights: Floats, inside: bool = True) -> tuple[Floats, Floats]:
    """ln N [R] at the minimum of a parabola under each row of weights [R, n], and its height; NaN where there is none.

    With `inside`, a minimum outside the sizes that have a weight is none.
    """
    middle, reach = logs.mean(), max(float(np.ptp(logs)), 1e-12)
    x = (logs - middle) / reach
    powers = np.stack([x**power for power in range(5)], 1)
    moments = weights @ powers  # [R, 5]
    gram = np.stack([moments[:, power : power + 3] for power in range(3)], 1)
    right = weights @ (powers[:, :3] * loss[:, None])
    sizes = np.unique(logs)
    present = np.stack([weights[:, logs == size].sum(1) > 0 for size in sizes], 1)
    solvable = present.sum(1) >= 3
    gram[~solvable] = np.eye(3)
    c, b, a = np.linalg.solve(gram, right[:, :, None])[:, :, 0].T
    upward = solvable & (a > 1e-12 * np.abs(loss).max())
    place = np.where(upward, -b / np.where(upward, 2 * a, 1), np.nan)
    height = c - b * b / np.where(upward, 4 * a, np.nan)
    best = middle + reach * place
    if inside:
        low = np.where(present, sizes, np.inf).min(1)
        high = np.where(present, sizes, -np.inf).max(1)
        best = np.where((best >= low) & (best <= high), best, np.nan)
    return best, height
