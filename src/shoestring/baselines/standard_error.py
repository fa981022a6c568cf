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
    if len(sums) < 2:
        return None
    squares = float((sums**2).sum()), float((sums * counts).sum()), float((counts.astype(np.float64) ** 2).sum())
    return error_of_moments(len(sums), float(sums.sum()), int(counts.sum()), squares)


def error_of_moments(rows: int, total: float, count: int, squares: tuple[float, float, float]) -> float | None:
    """As `mean_error`, from sums over the rows: of s and n, and of s², s n and n²."""
    if rows < 2 or not math.isfinite(total):
        return None
    mean = total / count
    spread = squares[0] - 2 * mean * squares[1] + mean * mean * squares[2]
    return math.sqrt(max(0.0, spread) * rows / (rows - 1)) / count
