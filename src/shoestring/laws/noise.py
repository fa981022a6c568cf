"""Losses as they might have been: the fitted law plus noise of the size that its residuals show.

With few points a draw with replacement leaves too few different ones to fit. Then noise is drawn anew instead: normal,
common to the rows of a group and separate for each row, with sizes estimated from the residuals. That estimate is
itself uncertain, so each draw scales its noise by sqrt(k / chi² of k), which makes intervals those of Student's t.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shoestring.core.seeds import derive
from shoestring.laws.descent import Floats
from shoestring.laws.points import Groups


class Noise(NamedTuple):
    """Standard deviations of ln loss."""

    row: float
    group: float


def estimate_noise(residuals: Floats, slopes: Floats, groups: Groups) -> Noise:
    """The noise behind the residuals [n] of a fit with these slopes [n, coefficients].

    A fit absorbs part of the noise. The expected squares of what is left, over rows and over means of groups, are
    linear in the two variances: two equations give them. A negative variance is zero.
    """
    lengths = np.linalg.norm(slopes, axis=0)
    basis, sizes, _ = np.linalg.svd(slopes / np.where(lengths > 0, lengths, 1), full_matrices=False)
    basis = basis[:, sizes > 1e-10 * sizes.max()]
    left = np.eye(len(residuals)) - basis @ basis.T
    rows_left = max(float(np.trace(left)), 1.0)
    members = (groups[:, None] == np.unique(groups)).astype(np.float64)
    if members.shape[1] == len(groups):
        return Noise(float(np.sqrt(residuals @ residuals / rows_left)), 0.0)
    means = members / members.sum(0) @ members.T
    middle = left @ means @ left
    squares = np.array([residuals @ residuals, residuals @ means @ residuals])
    expected = np.array(
        [[rows_left, np.trace(members.T @ left @ members)], [np.trace(middle), np.trace(members.T @ middle @ members)]]
    )
    row, group = np.linalg.lstsq(expected, squares, rcond=None)[0]
    if group <= 0:
        row, group = squares[0] / rows_left, 0.0
    elif row <= 0:
        row, group = 0.0, squares[0] / expected[0, 1]
    return Noise(float(np.sqrt(row)), float(np.sqrt(group)))


def draw_noise(noise: Noise, groups: Groups, freedom: int, resamples: int, seed: int, *names: str | int) -> Floats:
    """[resamples, rows] deviations of ln loss; `freedom` is what the points leave to estimate the noise from."""
    generator = np.random.default_rng(derive(seed, "noise", *names))
    labels, which = np.unique(groups, return_inverse=True)
    rows = noise.row * generator.standard_normal((resamples, len(groups)))
    common = noise.group * generator.standard_normal((resamples, len(labels)))
    scale = np.sqrt(freedom / generator.chisquare(freedom, resamples))
    return (rows + common[:, which]) * np.minimum(scale, 1e3)[:, None]
