"""Power laws y = k x^a, fitted by least squares in logarithms; the exponent a may be given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shoestring.core.errors import UserError
from shoestring.laws.descent import Floats
from shoestring.laws.noise import Noise, draw_noise
from shoestring.laws.resampling import interval


class PowerLaw(NamedTuple):
    """y = k x^a."""

    k: float
    a: float


@dataclass(frozen=True, kw_only=True)
class PowerBootstrap:
    """The coefficients of all resamples; NaN for a resample with a single x, which the intervals leave out."""

    k: Floats
    a: Floats

    @property
    def failed(self) -> int:
        return int(np.isnan(self.k).sum())

    def interval(self, level: float = 0.95) -> dict[str, tuple[float, float]]:
        return {"k": interval(self.k, level), "a": interval(self.a, level)}


def fit_power(x: Floats, y: Floats, exponent: float | None = None) -> PowerLaw:
    """The power law with the least squares of ln y; with a given exponent only k is fitted."""
    if x.shape != y.shape or x.ndim != 1:
        raise UserError(f"a power law needs one y for each x; there are {x.shape} x and {y.shape} y")
    for name, values in (("x", x), ("y", y)):
        bad = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
        if len(bad):
            raise UserError(f"{name} of point {bad[0]} is {values[bad[0]]}; a power law needs numbers above 0")
    needed = 2 if exponent is None else 1
    if len(np.unique(x)) < needed:
        raise UserError(f"{len(np.unique(x))} different x; a power law with {needed} free coefficients needs {needed}")
    u, v = np.log(x), np.log(y)
    shift, lift = u.mean(), v.mean()  # keeps powers of large numbers in range
    u, v = u - shift, v - lift
    (a,) = _slopes(u, v[None], np.ones((1, len(x)))) if exponent is None else (exponent,)
    k = np.exp((v - a * u).sum() / len(x))
    return PowerLaw(float(np.exp(np.log(k) + lift - a * shift)), float(a))


def rest(exponent: float | None) -> float | None:
    """The exponent of tokens beside a given one of parameters: N D grows as C."""
    return None if exponent is None else 1 - exponent


def linear_factor(x: Floats, y: Floats, exponent: float) -> float:
    """k of y = k x^exponent with the least squares of y itself, in which the largest y count most."""
    powers = np.exp(exponent * np.log(x / x.max()))
    return float(powers @ y / (powers @ powers) / x.max() ** exponent)


def resample_power(
    x: Floats, y: Floats, exponent: float | None = None, resamples: int = 1000, seed: int = 0
) -> PowerBootstrap:
    """The laws when new noise, as large as the residuals show, is put on the fitted ln y.

    All are NaN where the points leave nothing to tell the noise from.
    """
    law = fit_power(x, y, exponent)
    u, fitted = np.log(x), np.log(law.k) + law.a * np.log(x)
    freedom = len(x) - (2 if exponent is None else 1)
    if freedom < 1:
        return PowerBootstrap(k=np.full(resamples, np.nan), a=np.full(resamples, np.nan))
    noise = Noise(float(np.sqrt(((np.log(y) - fitted) ** 2).sum() / freedom)), 0.0)
    drawn = fitted + draw_noise(noise, np.arange(len(x)), freedom, resamples, seed)
    k, a = fit_rows(u, drawn, np.ones_like(drawn), exponent)
    return PowerBootstrap(k=k, a=a)


def fit_rows(u: Floats, v: Floats, weights: Floats, exponent: float | None = None) -> tuple[Floats, Floats]:
    """k and a [R] of the least-squares line of each row of ln y `v` [R, n] on ln x `u` [n].

    NaN where a row weighs fewer than two x, or with a given exponent none.
    """
    shift = u.mean()
    if exponent is None:
        a = _slopes(u - shift, v, weights)
    else:
        a = np.where(weights.sum(1) > 0, exponent, np.nan)
    total = np.maximum(weights.sum(1), 1)
    level = (weights * (v - a[:, None] * (u - shift))).sum(1) / total
    return np.exp(level - a * shift), a


def _slopes(u: Floats, v: Floats, weights: Floats) -> Floats:
    """[R] least-squares slopes of each row of `v` [R, n] on the centred `u` [n]."""
    total = np.maximum(weights.sum(1), 1)
    mean_u, mean_v = weights @ u / total, (weights * v).sum(1) / total
    spread = weights @ (u * u) / total - mean_u**2
    usable = spread > 1e-12 * np.ptp(u) ** 2
    covariance = (weights * v) @ u / total - mean_u * mean_v
    return np.where(usable, covariance / np.where(usable, spread, 1), np.nan)
