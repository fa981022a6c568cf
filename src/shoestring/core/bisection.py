"""Looking for the place where something stops to hold."""

from __future__ import annotations

from collections.abc import Callable


def last_that_holds(holds: Callable[[int], bool], first: int, most: int = 1 << 80) -> int | None:
    """The largest number from `first`, above 0, up to which `holds`: by doubling, then by halving.

    `first` itself is taken to hold, and is not asked about. None where it holds up to `most`, or beyond.
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
