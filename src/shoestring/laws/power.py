"""Power laws y = k x^a, with both coefficients free or the exponent given, in logarithms or as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from shoestring.core.errors import UserError
from shoestring.laws.descent import Floats
from shoestring.laws.resampling import draw_counts
from shoestring.laws.search import lowest
from shoestring.laws.surface import interval

Space = Literal["log", "linear"]
_FARTHEST = 3.0  # how far the exponent of least squares may be from that in logarithms


class PowerLaw(NamedTuple):
    """y = k x^a."""

    k: float
    a: float

    def predict(self, x: Any) -> Any:
        return self.k * x**self.a


@dataclass(frozen=True, kw_only=True)
class PowerBootstrap:
    """The coefficients of resamples; those of resamples with a single x are NaN and left out."""

    k: Floats
    a: Floats

    @property
    def failed(self) -> int:
        return int(np.isnan(self.k).sum())

    def interval(self, level: float = 0.95) -> dict[str, tuple[float, float]]:
        return {"k": interval(self.k, level), "a": interval(self.a, level)}

    def predict_interval(self, x: float, level: float = 0.95) -> tuple[float, float]:
        """Of the law at x, not of a new point there."""
        return interval(self.k * x**self.a, level)


def fit_power(x: Floats, y: Floats, exponent: float | None = None, space: Space = "log") -> PowerLaw:
    """Least squares in ln y ("log", where relative errors count) or in y ("linear", where the largest y decide).

    With a given exponent m in linear space, k = Σ x^m y / Σ x^2m.
    """
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    _check(x, y, exponent)
    k, a = _fit(x, y, np.ones((1, len(x))), exponent, space)
    return PowerLaw(float(k[0]), float(a[0]))


def bootstrap_power(
    x: Floats, y: Floats, exponent: float | None = None, space: Space = "log", resamples: int = 4000, seed: int = 0
) -> PowerBootstrap:
    """Fits of `resamples` draws of as many points, with replacement."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    _check(x, y, exponent)
    k, a = _fit(x, y, draw_counts(len(x), resamples, seed), exponent, space)
    return PowerBootstrap(k=k, a=a)


def _check(x: Floats, y: Floats, exponent: float | None) -> None:
    if x.shape != y.shape or x.ndim != 1:
        raise UserError(f"a power law needs one y for each x; there are {x.shape} x and {y.shape} y")
    for name, values in (("x", x), ("y", y)):
        bad = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
        if len(bad):
            raise UserError(f"{name} of point {bad[0]} is {values[bad[0]]}; a power law needs numbers above 0")
    needed = 1 if exponent is not None else 2
    if len(np.unique(x)) < needed:
        raise UserError(f"{len(np.unique(x))} different x; a power law with {needed} free coefficients needs {needed}")


def _fit(x: Floats, y: Floats, weights: Floats, exponent: float | None, space: Space) -> tuple[Floats, Floats]:
    """k and a [R] under each row of `weights` [R, n]."""
    u, v = np.log(x), np.log(y)
    shift, lift = u.mean(), v.mean()  # keeps powers of large numbers in range
    u, v = u - shift, v - lift
    if exponent is not None:
        a = np.full(len(weights), float(exponent))
    else:
        a = _slopes(u, np.broadcast_to(v, weights.shape), weights)
        if space == "linear":
            a = np.array([_steepness(u, v, w, a0) if np.isfinite(a0) else a0 for w, a0 in zip(weights, a)])
    powers = np.exp(a[:, None] * u)
    if space == "linear":
        k = ((weights * powers) @ np.exp(v)) / (weights * powers**2).sum(1)
    else:
        k = np.exp((weights * (v - a[:, None] * u)).sum(1) / weights.sum(1))
    return np.exp(np.log(k) + lift - a * shift), a


def fit_rows(u: Floats, v: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """k and a [R] of the least-squares lines of each row of ln y `v` [R, n] on ln x `u` [n]; NaN without two x."""
    shift = u.mean()
    a = _slopes(u - shift, v, weights)
    total = np.maximum(weights.sum(1), 1)
    level = (weights * (v - a[:, None] * (u - shift))).sum(1) / total
    return np.exp(level - a * shift), a


def _slopes(u: Floats, v: Floats, weights: Floats) -> Floats:
    """[R] slopes of least squares of each row of `v` [R, n] on `u` [n], which is centred."""
    total = np.maximum(weights.sum(1), 1)
    mean_u, mean_v = weights @ u / total, (weights * v).sum(1) / total
    spread = weights @ (u * u) / total - mean_u**2
    usable = spread > 1e-12 * np.ptp(u) ** 2
    covariance = (weights * v) @ u / total - mean_u * mean_v
    return np.where(usable, covariance / np.where(usable, spread, 1), np.nan)


def _steepness(u: Floats, v: Floats, weights: Floats, near: float) -> float:
    """The exponent of least squares in linear space, the best factor being taken at each."""
    y = np.exp(v)

    def misfit(exponents: Floats) -> Floats:
        powers = np.exp(exponents[..., None] * u)
        explained = ((weights * powers) @ y) ** 2 / (weights * powers**2).sum(-1)
        return np.asarray(-explained)  # what is left of the sum of squares, less a constant

    return float(lowest(misfit, near - _FARTHEST, near + _FARTHEST)[0])
