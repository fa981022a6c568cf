"""How far an answer is from the data of its law, and the error from there. Without numpy, as plans need it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from shoestring.core.units import Count, Flops

TOGETHER = 0.35
"""Standard deviation of ln D about its line in ln N below which the two terms are hardly told apart: 1.4 times."""
_NORMAL = 2.5
"""From a mean absolute error to the half of a 95 % interval, for normal errors."""

Ranges = Mapping[str, tuple[float, float]]
"""Least and most of "params", "tokens" and "flops" in the data."""


def together(distance: float | None) -> list[str]:
    """A warning where the points hardly separate the term of parameters from that of tokens."""
    if distance is None or distance >= TOGETHER:
        return []
    times = f"{math.exp(distance):.2f} times"
    return [
        f"parameters and tokens move together in the data: about their common line they vary by {times}. "
        "The law cannot tell which of the two lowers the loss, so do not trust its best size; add runs with "
        "other ratios of tokens to parameters"
    ]


def beyond(ranges: Ranges, values: Mapping[str, float]) -> list[str]:
    """A line for each quantity outside the data, with the factor by which it is."""
    lines = []
    for name, value in values.items():
        low, high = ranges[name]
        if low * (1 - 1e-9) <= value <= high * (1 + 1e-9):
            continue
        times, side = (value / high, "above") if value > high else (low / value, "below")
        show, what = (Flops, "") if name == "flops" else (Count, {"params": " parameters", "tokens": " tokens"}[name])
        lines.append(
            f"{show(value).short()}{what} is {times:,.3g} times {side} the data ({show(low).short()} to "
            f"{show(high).short()}): extrapolated"
        )
    return lines


def distance(ranges: Ranges, values: Mapping[str, float]) -> float:
    """ln of the largest factor by which a quantity is outside the data; 0 inside."""
    factors = [
        max(math.log(values[name] / high), math.log(low / values[name]), 0.0) for name, (low, high) in ranges.items()
    ]
    return float(max(factors))


def extrapolation_error(far: float, heldout_error: float | None, heldout_distance: float | None) -> float | None:
    """Half of a 95 % interval of the relative error at distance `far`, from the error on held-out points.

    The error grows in proportion to the distance. None where nothing outside the fitted points was held out.
    """
    if far <= 0:
        return 0.0
    if heldout_error is None or not heldout_distance:
        return None
    return _NORMAL * heldout_error * far / heldout_distance
