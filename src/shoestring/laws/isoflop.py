"""Approach 2: a parabola of the loss in ln N among models of equal compute, and power laws through the minima."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shoestring.core.errors import UserError
from shoestring.core.units import counted
from shoestring.laws.descent import Floats, solved
from shoestring.laws.noise import draw_noise, estimate_noise
from shoestring.laws.points import Points
from shoestring.laws.power import PowerBootstrap, PowerLaw, fit_power, fit_rows, rest

WINDOW = 5.0
"""Largest factor between the sizes of a parabola and the one with the lowest loss."""
_LEAST_SIZES = 5
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


def fit_isoflop(points: Points, window: float = WINDOW, exponent: float | None = None) -> IsoFlop:
    """The optimum of each group of points whose FLOPs differ by at most 10 %, and the laws through the optima.

    Far from its minimum the loss is no parabola. One is fitted to the sizes within a factor of `window` of the one with
    the lowest loss, and to the five nearest at least; infinity takes all. With a given `exponent` of N, that of D is
    1 - exponent.
    """
    if not window > 1:
        raise UserError(f"window = {window:g}: must be above 1; 5 takes sizes from a fifth to 5 times the best")
    kept, optima, left_out = [], [], []
    for group in _groups(points):
        group = _within(group, window)
        found = _optimum(group)
        if isinstance(found, str):
            left_out.append(f"{group.flops:.3g} FLOP, {counted(len(group.points), 'point')}: {found}")
        else:
            kept.append(group)
            optima.append(found)
    if len(optima) < (2 if exponent is None else 1):
        reasons = "".join(f"\n  {line}" for line in left_out[:10])
        needed = "two or more" if exponent is None else "one"
        raise UserError(f"{counted(len(optima), 'budget')} with an optimum; a power law needs {needed}{reasons}")
    flops, params, tokens = (np.array([getattr(one, name) for one in optima]) for name in ("flops", "params", "tokens"))
    return IsoFlop(
        optima=tuple(optima),
        groups=tuple(kept),
        left_out=tuple(left_out),
        params_law=fit_power(flops, params, exponent),
        tokens_law=fit_power(flops, tokens, rest(exponent)),
    )


def bootstrap_isoflop(
    fit: IsoFlop, resamples: int = 1000, seed: int = 0, exponent: float | None = None
) -> tuple[PowerBootstrap, PowerBootstrap]:
    """The laws of N and of D when new noise, as large as the residuals show, is put on the parabolas of all groups.

    A budget has few sizes, so a draw of them with replacement would lose its minimum. The noise is estimated over all
    groups, as in `laws.noise`. A resample leaves out the groups in which it has no optimum, and fails with fewer than
    two groups (one with a given exponent); all fail where the parabolas leave nothing to tell the noise from.
    """
    fitted, slopes = _curves(fit.groups)
    loss, runs = (np.concatenate(parts) for parts in zip(*((g.points.loss, g.points.groups) for g in fit.groups)))
    if all(group.points.given_groups is None for group in fit.groups):
        runs = np.arange(len(loss))
    logs = np.full((resamples, len(fit.groups)), np.nan)
    if (freedom := min(len(loss), len(np.unique(runs)) * len(fit.groups)) - slopes.shape[1]) >= 1:
        noise = estimate_noise(loss - fitted, slopes, runs).noise
        drawn = fitted + draw_noise(noise, runs, freedom, resamples, seed)
        ends = np.cumsum([len(group.points) for group in fit.groups])
        for index, (group, end) in enumerate(zip(fit.groups, ends)):
            one = np.ones((resamples, len(group.points)))
            logs[:, index], _ = _minima(np.log(group.points.params), drawn[:, end - len(group.points) : end], one)
    usable = np.isfinite(logs)
    log_flops = np.log(np.array([group.flops for group in fit.groups]))
    products = np.array([group.log_product for group in fit.groups])
    log_params, weights = np.where(usable, logs, 0), usable.astype(np.float64)
    (k_params, a_params), (k_tokens, a_tokens) = (
        fit_rows(log_flops, values, weights, power)
        for values, power in ((log_params, exponent), (products - log_params, rest(exponent)))
    )
    return PowerBootstrap(k=k_params, a=a_params), PowerBootstrap(k=k_tokens, a=a_tokens)


def _curves(groups: Sequence[Group]) -> tuple[Floats, Floats]:
    """The parabolas of all groups at their points [n], and their slopes [n, 3 · groups]."""
    fitted, blocks = [], []
    for group in groups:
        logs = np.log(group.points.params)
        powers = np.vander((logs - logs.mean()) / np.ptp(logs), 3)
        fitted.append(powers @ np.linalg.lstsq(powers, group.points.loss, rcond=None)[0])
        blocks.append(powers)
    slopes = np.zeros((sum(map(len, blocks)), 3 * len(blocks)))
    start = 0
    for index, block in enumerate(blocks):
        slopes[start : start + len(block), 3 * index : 3 * index + 3] = block
        start += len(block)
    return np.concatenate(fitted), slopes


def _groups(points: Points) -> list[Group]:
    logs = np.log(points.flops)
    order = logs.argsort(kind="stable")
    starts = [0]
    for place in range(1, len(order)):
        if logs[order[place]] - logs[order[starts[-1]]] > _TOLERANCE:
            starts.append(place)
    parts = np.split(order, starts[1:])
    return [Group(float(np.exp(logs[part].mean())), points.take(np.sort(part))) for part in parts]


def _within(group: Group, window: float) -> Group:
    """The points of the sizes nearest to the one with the lowest loss."""
    params = group.points.params
    lowest = params[group.points.loss.argmin()]
    fifth = np.sort(np.abs(np.log(np.unique(params) / lowest)))[:_LEAST_SIZES][-1]
    reach = max(float(np.log(window)), float(fifth)) + 1e-9
    return Group(group.flops, group.points.take(np.abs(np.log(params / lowest)) <= reach))


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

    The loss is [n], or [R, n] with a row for each.

    With `inside`, a minimum outside the range of the weighted sizes does not count.
    """
    middle, reach = logs.mean(), max(float(np.ptp(logs)), 1e-12)
    x = (logs - middle) / reach
    powers = np.stack([x**power for power in range(5)], 1)
    moments = weights @ powers  # [R, 5]
    gram = np.stack([moments[:, power : power + 3] for power in range(3)], 1)
    right = (weights * loss) @ powers[:, :3]
    sizes = np.unique(logs)
    present = np.stack([weights[:, logs == size].sum(1) > 0 for size in sizes], 1)
    places = np.round(x, 9)  # sizes that differ by rounding are one
    solvable = np.stack([weights[:, places == place].sum(1) > 0 for place in np.unique(places)], 1).sum(1) >= 3
    gram[~solvable] = np.eye(3)
    c, b, a = solved(gram, right).T
    upward = solvable & (a > 1e-12 * np.abs(loss).max())
    place = np.where(upward, -b / np.where(upward, 2 * a, 1), np.nan)
    height = c - b * b / np.where(upward, 4 * a, np.nan)
    best = middle + reach * place
    if inside:
        low = np.where(present, sizes, np.inf).min(1)
        high = np.where(present, sizes, -np.inf).max(1)
        best = np.where((best >= low) & (best <= high), best, np.nan)
    return best, height
