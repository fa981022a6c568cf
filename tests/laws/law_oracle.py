"""Fits by another way: SciPy's BFGS from many starts, on the law in logarithms of its coefficients."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.stats import norm

from shoestring.laws.points import Points

SCALING = Path(__file__).parents[3] / "shared" / "data" / "scaling"
TRUTH = (1.7, 400.0, 900.0, 0.34, 0.31)
"""E, A, B, α, β."""


def objective(theta: np.ndarray, points: Points, delta: float) -> tuple[float, np.ndarray]:
    """Sum of Huber penalties at (ln A, ln B, ln E, α, β), as Hoffmann et al. write it, and its gradient."""
    n, d, y = np.log(points.params), np.log(points.tokens), np.log(points.loss)
    terms = np.stack([theta[0] - theta[3] * n, theta[1] - theta[4] * d, np.full_like(n, theta[2])])
    top = terms.max(0)
    shares = np.exp(terms - top)
    total = shares.sum(0)
    shares /= total
    r = top + np.log(total) - y
    value = np.where(np.abs(r) <= delta, r * r / 2, delta * (np.abs(r) - delta / 2) if np.isfinite(delta) else 0).sum()
    pull = np.clip(r, -delta, delta)
    gradient = [pull @ shares[0], pull @ shares[1], pull @ shares[2], -pull @ (shares[0] * n), -pull @ (shares[1] * d)]
    return float(value), np.array(gradient)


def many_starts(points: Points, delta: float, exponents: tuple[float, ...] = (0.1, 0.6)) -> float:
    """The lowest objective that BFGS and L-BFGS reach, with exponents within 0 and 10."""
    n, d = np.log(points.params).mean(), np.log(points.tokens).mean()
    level = np.log(points.loss).mean()
    best = np.inf
    for alpha, beta in itertools.product(exponents, exponents):
        start = np.array([level - 1 + alpha * n, level - 1 + beta * d, level - 0.5, alpha, beta])
        scale = np.sqrt(len(points) * (delta if np.isfinite(delta) else 1) * 1e-3)  # so that tolerances mean something
        for method, bounds in (("BFGS", None), ("L-BFGS-B", [(None, None)] * 3 + [(0, 10)] * 2)):
            found = minimize(
                lambda theta, scale=scale: tuple(part / scale**2 for part in objective(theta, points, delta)),
                start,
                jac=True,
                method=method,
                bounds=bounds,
                options={"maxiter": 300},
            )
            if (found.x[3:] >= 0).all() and (found.x[3:] <= 10).all():
                best = min(best, objective(found.x, points, delta)[0])
    return best


def drawn(seed: int, count: int, kind: str = "plain", noise: float = 3e-3) -> Points:
    """Points of a random law: "no E", "no A", "no B", "flat" (exponents near 0), "steep", "noise" (no law at all)."""
    generator = np.random.default_rng(seed)
    low = generator.uniform(3, 9)
    params = 10 ** (low + generator.choice([1, 2, 3]) * generator.random(count))
    tokens = 10 ** (generator.uniform(5, 11) + generator.choice([1, 2, 3]) * generator.random(count))
    u, v = (np.log(x) - np.log(x).mean() for x in (params, tokens))
    alpha, beta = generator.uniform(0.1, 0.8, 2)
    (a, b), e = generator.uniform(0.1, 1, 2), generator.uniform(0.5, 2)
    match kind:
        case "no E":
            e = 0
        case "no A":
            a = 0
        case "no B":
            b = 0
        case "flat":
            alpha = beta = 0.03
        case "steep":
            alpha = 2.5
    loss = e + a * np.exp(-alpha * u) + b * np.exp(-beta * v)
    if kind == "noise":
        loss = np.exp(0.3 * generator.normal(size=count))
    loss = loss * np.exp(noise * generator.standard_t(3, size=count)) * generator.choice([0.3, 1])
    return Points(params=params, tokens=tokens, loss=loss)


def grid_points(truth: tuple[float, ...] = TRUTH, noise: float = 0.0, seed: int = 0) -> Points:
    """An even 6 × 6 grid of sizes and tokens."""
    E, A, B, alpha, beta = truth
    params, tokens = (x.ravel() for x in np.meshgrid(np.geomspace(1e7, 1e10, 6), np.geomspace(1e9, 1e12, 6)))
    loss = E + A / params**alpha + B / tokens**beta
    return Points(params=params, tokens=tokens, loss=loss * np.exp(noise * np.random.default_rng(seed).normal(size=36)))


def corrected(values: Any, estimate: float, level: float = 0.95) -> tuple[float, float]:
    """Efron's bias-corrected percentiles, as in his formula."""
    values = np.asarray(values)
    bias = norm.ppf(np.mean(values < estimate))
    low, high = np.quantile(values, norm.cdf(2 * bias + norm.ppf([(1 - level) / 2, (1 + level) / 2])))
    return float(low), float(high)
