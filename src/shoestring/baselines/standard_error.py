"""Standard errors of means over rows. Rows are the sampling unit: the predictions of a row depend on each other."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def mean_error(sums: NDArray[np.float64], counts: NDArray[np.int64]) -> float | None:
    """The standard error of sums.sum() / counts.sum(), with a sum and a count of predictions for each row, (rows,).

    It is that of a ratio of two means over rows drawn at random (Cochran, Sampling Techniques, chapter 6). None for
    fewer than two rows with predictions.
    """
    drawn = counts > 0
    sums, counts = sums[drawn], counts[drawn]
    rows, total, count = len(sums), float(sums.sum()), int(counts.sum())
    if rows < 2 or not math.isfinite(total):
        return None
    off = sums - total / count * counts
    return math.sqrt(float((off**2).sum()) * rows / (rows - 1)) / count
