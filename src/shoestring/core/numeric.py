"""Linear interpolation, bisection over whole numbers, and the ends of an interval."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence


def interpolate(known: Sequence[tuple[float, float]], x: float) -> float:
    """y at x on the line between the neighbouring points, which ascend in x; outside them, the y of the nearest end."""
    after = bisect.bisect_left(known, x, key=lambda point: point[0])
    if after == 0 or after == len(known):
        return known[min(after, len(known) - 1)][1]
    (x0, y0), (x1, y1) = known[after - 1], known[after]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def last_that_holds(holds: Callable[[int], bool], first: int, most: int = 1 << 80) -> int | None:
    """The largest number up to which `holds` is true, by doubling and then halving; None: it is true up to `most`.

    `first`, above 0, is assumed to hold.
    """
    low, high = first, 2 * first
    while holds(high):
        if high >= most:
            return None
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def corrected_ends(below: float, count: int, level: float = 0.95) -> tuple[float, float]:
    """The shares of `count` ascending resamples between which an estimate's interval lies (Efron's bias correction).

    `below` is the share of the resamples that are below the estimate: at a half, the interval is their middle.
    """
    from statistics import NormalDist  # loads what a plan does not need

    normal, half = NormalDist(), 0.5 / count
    bias = 2 * normal.inv_cdf(min(max(below, half), 1 - half))
    if level >= 1:
        return 0.0, 1.0
    low, high = (normal.cdf(bias + normal.inv_cdf(end)) for end in ((1 - level) / 2, (1 + level) / 2))
    return low, high
