"""The bootstrap: draws of points with replacement, given as counts, and percentile intervals of what they yield."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoestring.core.numeric import corrected_ends
from shoestring.core.seeds import derive
from shoestring.laws.descent import Floats


def draw_counts(points: int, resamples: int, seed: int, *names: str | int, size: int | None = None) -> Floats:
    """[resamples, points] how often each point is in a resample of `size`, by default of as many.

    `names` separate draws of one seed.
    """
    generator = np.random.default_rng(derive(seed, "bootstrap", *names))
    return generator.multinomial(size or points, np.full(points, 1 / points), resamples).astype(np.float64)


def interval(values: Floats, level: float = 0.95, estimate: float | None = None) -> tuple[float, float]:
    """The middle `level` of the values, without NaN; (NaN, NaN) where no value is left.

    With the `estimate` that the resamples are of, their middle is put where their share below it says (Efron's
    bias-corrected percentiles): fits of data that hardly tell E from a power of N have lower E again in resamples.
    """
    values = values[~np.isnan(values)]
    if not len(values):
        return float("nan"), float("nan")
    below = 0.5
    if estimate is not None and not np.isnan(estimate):
        below = float(np.mean(values < estimate) + np.mean(values == estimate) / 2)
    ends = corrected_ends(below, len(values), level)
    method: Any = "linear" if np.isfinite(values).all() else "nearest"  # nothing lies between a number and infinity
    low, high = np.quantile(values, ends, method=method)
    return float(low), float(high)
