"""The bootstrap: draws of points with replacement, given as counts, and percentile intervals of what they yield."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoestring.core.seeds import derive
from shoestring.laws.descent import Floats


def draw_counts(points: int, resamples: int, seed: int, *names: str | int, size: int | None = None) -> Floats:
    """[resamples, points] how often each point is in a resample of `size`, by default of as many.

    `names` separate draws of one seed.
    """
    generator = np.random.default_rng(derive(seed, "bootstrap", *names))
    return generator.multinomial(size or points, np.full(points, 1 / points), resamples).astype(np.float64)


def interval(values: Floats, level: float = 0.95) -> tuple[float, float]:
    """The middle `level` of the values, without NaN; (NaN, NaN) where no value is left."""
    values = values[~np.isnan(values)]
    if not len(values):
        return float("nan"), float("nan")
    method: Any = "linear" if np.isfinite(values).all() else "nearest"  # nothing lies between a number and infinity
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2], method=method)
    return float(low), float(high)
