"""How well a law foretells: its error on points that it was not fitted to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shoestring.core.errors import UserError
from shoestring.core.seeds import derive
from shoestring.laws.descent import Floats
from shoestring.laws.form import Surface
from shoestring.laws.points import Points
from shoestring.laws.surface import COEFFICIENTS, Penalty, fit_surface


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """A law of the cheaper points, and its errors on the dearer ones."""

    surface: Surface
    fitted: int
    predicted: int
    errors: Floats
    """prediction / loss - 1 of each point predicted, by ascending FLOPs."""

    @property
    def mean_absolute(self) -> float:
        return float(np.abs(self.errors).mean())

    @property
    def worst(self) -> float:
        return float(np.abs(self.errors).max())


def heldout_error(points: Points, share: float = 0.8, penalty: Penalty = "huber", delta: float = 1e-3) -> HeldOut:
    """Fit the `share` of the points with the least FLOPs, and predict the others: as one does who extrapolates."""
    if not 0 < share < 1:
        raise UserError(f"share = {share}: it must be between 0 and 1, as in 0.8")
    order = points.flops.argsort(kind="stable")
    count = round(share * len(points))
    if count < COEFFICIENTS or count == len(points):
        raise UserError(
            f"{len(points)} points, {count} of them to fit: a law needs {COEFFICIENTS}, and one or more must "
            "be left to predict"
        )
    surface = fit_surface(points.take(order[:count]), penalty, delta).surface
    errors = _errors(surface, points.take(order[count:]))
    return HeldOut(surface=surface, fitted=count, predicted=len(errors), errors=errors)


def cross_validated(
    points: Points, folds: int = 5, penalty: Penalty = "huber", delta: float = 1e-3, seed: int = 0
) -> Floats:
    """prediction / loss - 1 of each point [n], by the law of the folds that it is not in."""
    if not 2 <= folds <= len(points):
        raise UserError(f"folds = {folds}: it must be from 2 to the number of points, {len(points)}")
    fold = np.random.default_rng(derive(seed, "folds")).permutation(len(points)) % folds
    errors = np.empty(len(points))
    for one in range(folds):
        surface = fit_surface(points.take(fold != one), penalty, delta).surface
        errors[fold == one] = _errors(surface, points.take(fold == one))
    return errors


def _errors(surface: Surface, points: Points) -> Floats:
    return np.asarray(surface.loss(points.params, points.tokens) / points.loss - 1)
