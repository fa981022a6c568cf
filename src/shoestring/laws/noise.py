"""Losses as they might have been: the fitted law plus noise of the size that its residuals show.

With few points a draw with replacement leaves too few different ones to fit. Then noise is drawn anew instead: normal,
common to the rows of a group and separate for each row, with sizes estimated from the residuals. That estimate is
itself uncertain, so each draw scales its noise by sqrt(k / chi² of k), which makes intervals those of Student's t.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoestring.core.seeds import derive
from shoestring.laws.descent import Floats
from shoestring.laws.points import Groups


class Noise(NamedTuple):
    """Standard deviations of ln loss."""

    row: float
    group: float


@dataclass(frozen=True, kw_only=True)
class FittedNoise:
    """The noise behind the residuals of a fit, and how it moves the fitted ln losses of the n points."""

    noise: Noise
    directions: Floats
    """[n, k] orthonormal: a change of the coefficients moves the fitted ln losses along them."""
    deviations: Floats
    """[k] standard deviation along each, by least squares."""
    freedom: Floats
    """[k] degrees of freedom of each deviation (Satterthwaite's, where a group has several rows)."""
    left: Floats
    """[n] the part of the residuals that no change of the coefficients takes away."""

    @property
    def total(self) -> float:
        return float(np.hypot(self.noise.row, self.noise.group))


def estimate_noise(residuals: Floats, slopes: Floats, groups: Groups) -> FittedNoise:
    """The noise behind the residuals [n] of a fit with these slopes [n, coefficients].

    A fit absorbs part of the noise. The expected squares of what is left, over rows and over means of groups, are
    linear in the two variances: two equations give them. A negative variance is zero.
    """
    basis = _basis(slopes)
    left = residuals - basis @ (basis.T @ residuals)  # as least squares would leave it, whatever the penalty
    labels, which, counts = np.unique(groups, return_inverse=True, return_counts=True)
    rows_left = max(len(left) - basis.shape[1], 1)
    if len(labels) == len(groups):
        row = float(np.sqrt(left @ left / rows_left))
        every = np.ones(basis.shape[1])
        return FittedNoise(
            noise=Noise(row, 0.0),
            directions=basis,
            deviations=row * every,
            freedom=rows_left * every,
            left=left,
        )
    members = (which[:, None] == np.arange(len(labels))).astype(np.float64)
    shared, turn = np.linalg.eigh((members.T @ basis).T @ (members.T @ basis))
    shared, basis = np.maximum(shared, 0), basis @ turn
    space = _Left(basis, members, counts)
    squares = np.array([left @ left, ((members.T @ left) ** 2 / counts).sum()])
    solve = np.linalg.pinv(space.expected)
    row, group = solve @ squares
    if group <= 0:
        row, group, solve = squares[0] / rows_left, 0.0, np.array([[1 / rows_left, 0], [0, 0]])
    elif row <= 0:
        row, group, solve = 0.0, squares[0] / space.expected[0, 1], np.array([[0, 0], [1 / space.expected[0, 1], 0]])
    freedom = [space.freedom(solve[0] + ratio * solve[1], row, group) for ratio in shared]
    return FittedNoise(
        noise=Noise(float(np.sqrt(row)), float(np.sqrt(group))),
        directions=basis,
        deviations=np.sqrt(row + shared * group),
        freedom=np.maximum(freedom, 1.0),
        left=left,
    )


def _basis(slopes: Floats) -> Floats:
    lengths = np.linalg.norm(slopes, axis=0)
    basis, sizes, _ = np.linalg.svd(slopes / np.where(lengths > 0, lengths, 1), full_matrices=False)
    return np.asarray(basis[:, sizes > 1e-10 * sizes.max()])


class _Left:
    """What a fit leaves of noise by rows and by groups, in the space of its directions and the groups.

    The two sums of squares are of all rows, and of means of groups. Outside that space noise is by rows alone.
    """

    def __init__(self, basis: Floats, members: Floats, counts: NDArray[np.int64]) -> None:
        space, _ = np.linalg.qr(np.concatenate((basis, members), 1))
        inside, grouped = space.T @ basis, space.T @ members
        self.others = len(basis) - space.shape[1]
        self.rows = np.eye(space.shape[1]) - inside @ inside.T
        self.means = self.rows @ (grouped / counts @ grouped.T) @ self.rows
        self.common = grouped @ grouped.T

    @property
    def expected(self) -> Floats:
        """[2, 2] the two sums of squares per unit of the variances of rows and of groups."""
        of_rows = [np.trace(self.rows) + self.others, np.trace(self.rows @ self.common)]
        return np.array([of_rows, [np.trace(self.means), np.trace(self.means @ self.common)]])

    def freedom(self, weights: Floats, row: float, group: float) -> float:
        """Degrees of freedom of a weighted sum of the two: twice its mean squared over its variance."""
        form = (weights[0] * self.rows + weights[1] * self.means) @ (row * np.eye(len(self.rows)) + group * self.common)
        outside = weights[0] * row
        mean, half_variance = np.trace(form) + self.others * outside, (form * form.T).sum() + self.others * outside**2
        return float(mean**2 / half_variance) if half_variance > 0 else 1.0


def draw_noise(
    noise: Noise, groups: Groups, freedom: float | None, resamples: int, seed: int, *names: str | int
) -> Floats:
    """[resamples, rows] deviations of ln loss.

    `freedom` is what the points leave to estimate the noise from; None: the noise is known.
    """
    generator = np.random.default_rng(derive(seed, "noise", *names))
    labels, which = np.unique(groups, return_inverse=True)
    rows = noise.row * generator.standard_normal((resamples, len(groups)))
    common = noise.group * generator.standard_normal((resamples, len(labels)))
    drawn = rows + common[:, which]
    if freedom is None:
        return drawn
    scale = np.sqrt(freedom / generator.chisquare(freedom, resamples))
    return drawn * np.minimum(scale, 1e3)[:, None]
