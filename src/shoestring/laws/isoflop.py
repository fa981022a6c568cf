"""Approach 2: a parabola of the loss in ln N among models of equal compute, and power laws through the minima."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shoestring.core.errors import UserError
from shoestring.laws.descent import Floats
from shoestring.laws.points import Points
from shoestring.laws.power import PowerBootstrap, PowerLaw, fit_power, fit_rows
from shoestring.laws.resampling import draw_counts

_TOLERANCE = 0.1  # of ln C within a group


class GroupOptimum(NamedTuple):
    """The best model of one budget."""

    flops: float
    params: float
    tokens: float
    loss: float


class Group(NamedTuple):
    """Models of equal compute."""

    flops: float
    """Geometric mean."""
    points: Points

    @property
    def log_product(self) -> float:
        """Mean of ln N D over the group; minus ln N, it gives the ln D of a size."""
        return float(np.log(self.points.params * self.points.tokens).mean())


@dataclass(frozen=True, kw_only=True)
class IsoFlop:
    """The optima of all groups that have one, and the laws N = k C^a and D = k C^a through them."""

    optima: tuple[GroupOptimum, ...]
    groups: tuple[Group, ...]
    """Those of the optima."""
    left_out: tuple[str, ...]
    """Groups without an optimum, each with the reason."""
    params_law: PowerLaw
    tokens_law: PowerLaw


def fit_isoflop(points: Points) -> IsoFlop:
    """The optimum of each group of points whose FLOPs differ by at most 10 %, and the laws through the optima."""
    kept, optima, left_out = [], [], []
    for group in _groups(points):
        found = _optimum(group)
        if isinstance(found, str):
            left_out.append(f"{group.flops:.3g} FLOP, {len(group.points)} points: {found}")
        else:
            kept.append(group)
            optima.append(found)
    if len(optima) < 2:
        reasons = "".join(f"\n  {line}" for line in left_out[:10])
        raise UserError(f"{len(optima)} budgets have an optimum; a power law needs two or more{reasons}")
    flops, params, tokens = (np.array([getattr(one, name) for one in optima]) for name in ("flops", "params", "tokens"))
    return IsoFlop(
        optima=tuple(optima),
        groups=tuple(kept),
        left_out=tuple(left_out),
        params_law=fit_power(flops, params),
        tokens_law=fit_power(flops, tokens),
    )


def bootstrap_isoflop(fit: IsoFlop, resamples: int = 1000, seed: int = 0) -> tuple[PowerBootstrap, PowerBootstrap]:
    """The laws of N and of D when the points of each group are drawn with replacement.

    A resample leaves out the groups in which it has no optimum, and fails with fewer than two groups.
    """
    logs = np.empty((resamples, len(fit.groups)))
    for index, group in enumerate(fit.groups):
        weights = draw_counts(len(group.points), resamples, seed, index)
        logs[:, index], _ = _minima(np.log(group.points.params), group.points.loss, weights)
    usable = np.isfinite(logs)
    log_flops = np.log(np.array([group.flops for group in fit.groups]))
    products = np.array([group.log_product for group in fit.groups])
    log_params, weights = np.where(usable, logs, 0), usable.astype(np.float64)
    (k_params, a_params), (k_tokens, a_tokens) = (
        fit_rows(log_flops, values, weights) for values in (log_params, products - log_params)
    )
    return PowerBootstrap(k=k_params, a=a_params), PowerBootstrap(k=k_tokens, a=a_tokens)


def _groups(points: Points) -> list[Group]:
    logs = np.log(points.flops)
    order = logs.argsort(kind="stable")
    starts = [0]
    for place in range(1, len(order)):
        if logs[order[place]] - logs[order[starts[-1]]] > _TOLERANCE:
            starts.append(place)
    parts = np.split(order, starts[1:])
    return [Group(float(np.exp(logs[part].mean())), points.take(np.sort(part))) for part in parts]


def _optimum(group: Group) -> GroupOptimum | str:
    """The minimum of the group's parabola, or the reason why there is none."""
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
    return GroupOptimum(group.flops, params, float(np.exp(group.log_product)) / params, float(lowest[0]))


def _minima(logs: Floats, loss: Floats, weights: Floats, inside: bool = True) -> tuple[Floats, Floats]:
    """ln N [R] at the minimum of the parabola under each row of weights [R, n], and its height; NaN without a minimum.

    With `inside`, a minimum outside the range of the weighted sizes does not count.
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
