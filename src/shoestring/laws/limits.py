"""What points do not tell: rows that share their noise, and parameters and tokens that move together."""

from __future__ import annotations

import numpy as np

from shoestring.laws.descent import Floats
from shoestring.laws.points import Points

_CLUSTERED = 4.0
"""Variance between sizes over that within a size from which the rows of a size look like one run."""


def clustered(points: Points, residuals: Floats) -> str | None:
    """A warning where rows of one size lie on one side of the law, and each counts as a run of its own."""
    if points.given_groups is not None:
        return None
    sizes, which, counts = np.unique(points.params, return_inverse=True, return_counts=True)
    spare = len(points) - len(sizes)
    if len(sizes) < 4 or spare < len(sizes):
        return None
    means = np.bincount(which, residuals) / counts
    between = float((counts * means**2).sum()) / len(sizes)
    within = float(((residuals - means[which]) ** 2).sum()) / spare
    if between <= _CLUSTERED * within + 1e-16:
        return None
    return (
        f"{len(points)} rows have {len(sizes)} sizes, and rows of one size are off to the same side. If they are of "
        "one run, the intervals are too narrow: name the column of the run with --group"
    )


def apart(points: Points) -> float:
    """How far parameters and tokens move apart: the standard deviation of ln D about its line in ln N."""
    u, v = (np.log(values) - np.log(values).mean() for values in (points.params, points.tokens))
    return float(np.sqrt(np.mean((v - (u @ v) / (u @ u) * u) ** 2)))
