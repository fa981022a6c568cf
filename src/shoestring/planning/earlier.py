"""The learning rate by earlier runs beside this one: where rates were compared, the best of them corrects the law.

Runs are compared that differ in the learning rate, in what is chosen to go with it, and in the seed alone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

NEAR = 4.0
"""Factor in parameters, and in positions of training, within which a comparison is taken for this run."""
SAME_LENGTH = 1.25
"""Factor in positions of training within which losses are compared with each other."""
APART = 1.1
"""Factor between rates that are not the same."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A finished run on the same rows."""

    lr: float
    law: float
    """The rate of the law for that run."""
    loss: float
    n: float
    """Parameters without embeddings."""
    d: float
    """Positions of training."""
    setting: str
    """What it has in common with the runs that it can be compared with."""


class Correction(NamedTuple):
    """By what a law's rate is multiplied, and why."""

    factor: float
    reason: str


def by_earlier_runs(tried: Sequence[Tried], n: float, d: float) -> Correction | None:
    """By how much the nearest comparison of learning rates corrects the law's; None if no comparison decides it.

    The best rate is the vertex of a parabola in the logarithm of the rate, through the best and its neighbours. The
    lowest or highest rate of all is taken only where the law's is on the side where losses were higher: beyond it
    nothing is known.
    """
    nearest = _nearest(tried, n, d)
    if nearest is None:
        return None
    count, losses = nearest
    rates = sorted(losses)
    at = rates.index(min(rates, key=lambda rate: losses[rate]))
    best = rates[at]
    inside = 0 < at < len(rates) - 1
    if inside:
        best = _vertex([(math.log(rate), losses[rate]) for rate in rates[at - 1 : at + 2]])
    elif (at == 0 and best >= 1) or (at > 0 and best <= 1):
        return None
    shown = ", ".join(f"{losses[rate]:.4g} at × {rate:.2g}" for rate in rates)
    where = "" if inside else ", and none was tried beyond the best"
    return Correction(best, f"× {best:.2g} by {count} finished runs of this kind: {shown} the law's rate{where}")


def _nearest(tried: Sequence[Tried], n: float, d: float) -> tuple[int, dict[float, float]] | None:
    """How many runs the nearest comparison has, and its losses by the factor of the law's rate."""
    by_setting = defaultdict[str, list[Tried]](list)
    for run in tried:
        if max(_apart(run.n, n), _apart(run.d, d)) <= NEAR and math.isfinite(run.loss):
            by_setting[run.setting].append(run)
    found: tuple[float, int, dict[float, float]] | None = None
    for runs in by_setting.values():
        middle = min(runs, key=lambda run: _apart(run.d, d))
        equal = [run for run in runs if _apart(run.d, middle.d) <= SAME_LENGTH]
        losses = _by_rate([(run.lr / run.law, run.loss) for run in equal])
        distance = _apart(middle.n, n) * _apart(middle.d, d)
        if len(losses) > 1 and (found is None or (distance, -len(losses)) < (found[0], -len(found[2]))):
            found = distance, len(equal), losses
    return None if found is None else found[1:]


def _by_rate(pairs: list[tuple[float, float]]) -> dict[float, float]:
    """Mean losses by rate; rates that are nearly the same are one, which is their first."""
    groups: list[tuple[float, list[float]]] = []
    for rate, loss in sorted(pairs):
        if groups and rate <= APART * groups[-1][0]:
            groups[-1][1].append(loss)
        else:
            groups.append((rate, [loss]))
    return {rate: fmean(losses) for rate, losses in groups}


def _vertex(points: list[tuple[float, float]]) -> float:
    """exp of where the parabola through three points is lowest; the middle one is below the others, or equal to one."""
    (x0, y0), (x1, y1), (x2, y2) = points
    left, right = (y1 - y0) / (x1 - x0), (y2 - y1) / (x2 - x1)
    if right == left:
        return math.exp(x1)
    return math.exp((x0 + x1) / 2 - left * (x2 - x0) / (2 * (right - left)))


def _apart(one: float, other: float) -> float:
    return max(one, other) / min(one, other)
