"""Draws of points with replacement, as how often each was drawn: a bootstrap fits these counts, not copies of data."""

from __future__ import annotations

import numpy as np

from shoestring.core.seeds import derive
from shoestring.laws.descent import Floats


def draw_counts(points: int, resamples: int, seed: int, *names: str | int) -> Floats:
    """[resamples, points] how often a point is in a resample of as many; `names` tell draws of one seed apart."""
    generator = np.random.default_rng(derive(seed, "bootstrap", *names))
    return generator.multinomial(points, np.full(points, 1 / points), resamples).astype(np.float64)
