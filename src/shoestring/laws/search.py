"""The lowest place of functions of one variable: looked for everywhere on a range, then ever closer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shoestring.laws.descent import Floats

_ROUNDS = 7


def lowest(function: Callable[[Floats], Floats], low: float, high: float, count: int = 1, grid: int = 65) -> Floats:
    """x [count] in [low, high] at which each of `count` functions is lowest; `function` takes and gives [count, grid].

    Hollows narrower than the range over `grid`, or lower than others by little, may be missed. The place is good to
    about 1e-8 of the range, where the values no longer differ.
    """
    lows, highs = np.full(count, low), np.full(count, high)
    rows = np.arange(count)
    for _ in range(_ROUNDS):
        places = np.linspace(lows, highs, grid, axis=1)
        best = function(places).argmin(1)
        lows, highs = places[rows, np.maximum(best - 1, 0)], places[rows, np.minimum(best + 1, grid - 1)]
    return np.asarray(places[rows, best])
