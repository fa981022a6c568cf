"""Approach 3: the loss as a surface over parameters and tokens, E + A/N^α + B/D^β, and the uncertainty of its fit.

A fit minimises the sum of penalties of log residuals, r = ln prediction - ln loss, over E, A, B ≥ 0 and exponents from
0 to `descent.STEEPEST`. Rows of coefficients are in the order E, A, B, α, β.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np

from shoestring.core.errors import UserError
from shoestring.core.units import counted
from shoestring.laws.descent import STEEPEST, Centred, Descent, Flags, Floats, centre, descend, evaluate, penalties
from shoestring.laws.extrapolation import TOGETHER, distance
from shoestring.laws.form import PER_TOKEN, Surface
from shoestring.laws.limits import apart
from shoestring.laws.noise import estimate_noise
from shoestring.laws.points import Points
from shoestring.laws.region import edge_of, fit_region, inefficiency
from shoestring.laws.resampling import draw_counts, interval
from shoestring.laws.starts import grid_starts

Penalty = Literal["huber", "l1", "squares"]

COEFFICIENTS = 5
MANY_GROUPS = 100
"""From so many groups on, intervals come from draws of groups; with fewer, from the region of the fit."""
EDGE = 1000
"""Laws at the edge of a region, at most: the farthest of them is 3 % short of the edge, which is allowed for."""
_FIRST = 8  # steps from every start
_KEPT = 10  # starts that continue to the end
_LIMIT = 300
_SAME = 1e-6  # relative difference below which two objectives are one minimum
_ROUNDING = 1e-24  # penalty of a point that is rounding error
_CHECKED = 500  # resamples that are also started elsewhere
_PART = 1000  # resamples per thread and call
_ABSOLUTE = tuple(10.0**-power for power in range(3, 12))  # Huber's penalty over δ is |r| less δ/2 at most
_STRAIGHT = 1e-3  # deviation of ln D from a line in ln N


@dataclass(frozen=True, kw_only=True)
class SurfaceFit:
    """The global minimum, and how the search for it went."""

    surface: Surface
    objective: float
    """Sum of the penalties: Huber's r²/2 up to δ and δ(|r| - δ/2) beyond, |r|, or r²/2."""
    residuals: Floats
    """ln prediction - ln loss of each point."""
    penalty: Penalty
    delta: float
    starts: int
    failed: int
    """Starts that ended above the best: in another minimum, or not pursued."""
    boundary: tuple[str, ...]
    """Coefficients at a bound: "E", "A", "B" at 0; "alpha", "beta" at STEEPEST. An absent term has exponent 0."""
    converged: bool


def fit_surface(points: Points, penalty: Penalty = "huber", delta: float = 1e-3) -> SurfaceFit:
    """The law that lies closest to the points; about 50 ms for 240 of them."""
    check_identified(points)
    if penalty not in get_args(Penalty):
        raise UserError(f'penalty = "{penalty}": must be {", ".join(get_args(Penalty))}')
    if not delta > 0:
        raise UserError(f"delta = {delta}: it must be above 0; 1e-3 is customary")
    centred = centre(points.params, points.tokens, points.loss)
    smooth = _smooth(penalty, delta)
    one = np.ones((1, len(points)))
    starts = grid_starts(centred, smooth)
    first = descend(centred, one, starts, smooth, _FIRST)
    kept = first.objective.argsort(kind="stable")[:_KEPT]
    last = descend(centred, one, first.rows[kept], smooth, _LIMIT)
    reached = first.objective.copy()
    reached[kept] = last.objective
    if penalty == "l1":
        last = _absolute(centred, one, last)
    best = int(last.objective.argmin())
    row, boundary = _canonical(last.rows[best : best + 1])
    lowest = reached.min()
    return SurfaceFit(
        surface=Surface(*map(float, centred.outward(row)[0])),
        objective=float(last.objective[best]),
        residuals=evaluate(centred, row).residuals[0],
        penalty=penalty,
        delta=delta,
        starts=len(starts),
        failed=int((reached > lowest * (1 + _SAME) + len(points) * _ROUNDING).sum()),
        boundary=boundary,
        converged=bool(last.converged[best]),
    )


def check_identified(points: Points) -> None:
    """Raise UserError for points that cannot determine the five coefficients."""
    if len(points) < COEFFICIENTS:
        raise UserError(
            f"{counted(len(points), 'point')}; a law of {COEFFICIENTS} coefficients needs {COEFFICIENTS} or more"
        )
    logs = {"params": np.log(points.params), "tokens": np.log(points.tokens)}
    for name, values in logs.items():
        distinct = 1 + int((np.diff(np.sort(values)) > _STRAIGHT).sum())
        if distinct < 3:
            raise UserError(
                f"{name} take {distinct} different value{'s' * (distinct > 1)}: their term cannot be separated from E; "
                "add points with 3 or more"
            )
    u, v = (values - values.mean() for values in logs.values())
    slope = float(u @ v / (u @ u))
    if np.sqrt(np.mean((v - slope * u) ** 2)) < _STRAIGHT:
        raise UserError(
            f"tokens are proportional to params^{slope:.3g} in all points, so the two terms cannot be separated; "
            "add points with another ratio of tokens to parameters"
        )


def _smooth(penalty: Penalty, delta: float) -> float:
    """δ of the Huber penalty that a fit starts with."""
    return {"huber": delta, "l1": _ABSOLUTE[0], "squares": np.inf}[penalty]


def _absolute(centred: Centred, weights: Floats, found: Descent) -> Descent:
    """Minima of Σ|r| from minima of Huber's penalty, by δ → 0: at the last δ the sum is at most n δ/2 too high."""
    for delta in _ABSOLUTE[1:]:
        found = descend(centred, weights, found.rows, delta)
    size = np.abs(evaluate(centred, found.rows).residuals)
    return found._replace(objective=(weights * size).sum(1))


def _canonical(rows: Floats) -> tuple[Floats, tuple[str, ...]]:
    """Centred rows with absent terms in one form, and the coefficients of the first row that are at a bound."""
    rows = rows.copy()
    for size, exponent in ((0, 3), (1, 4)):
        flat = rows[:, exponent] <= 1e-9
        rows[flat, 2] += rows[flat, size]
        rows[flat, size] = 0
        rows[rows[:, size] == 0, exponent] = 0
    a, b, e, alpha, beta = rows[0]
    at_bound = {"E": e == 0, "A": a == 0, "B": b == 0, "alpha": alpha >= STEEPEST, "beta": beta >= STEEPEST}
    return rows, tuple(name for name, is_there in at_bound.items() if is_there)


@dataclass(frozen=True, kw_only=True)
class SurfaceSpread:
    """Laws that the points allow beside the fitted one, from which intervals of all quantities follow."""

    samples: Floats
    """[R, 5] E, A, B, α, β."""
    converged: Flags
    """[R]; fits that did not converge, and laws outside the region, are left out of everything below."""
    edge: bool
    """Whether they are at the edge of the 95 % region: an interval is then their range. Else they are resamples, and it
    is the middle 95 % of them."""
    checked: int = 0
    """Resamples that were also started elsewhere: some, or all if one of these moved."""
    moved: int = 0
    """Resamples whose lowest minimum was found from the other start, not from the fit of all points."""
    fitted: Surface
    """The law of all points."""

    @property
    def failed(self) -> int:
        return int((~self.converged).sum())

    @property
    def surfaces(self) -> list[Surface]:
        return [Surface(*map(float, row)) for row in self.samples[self.converged]]

    def values(self) -> dict[str, Floats]:
        """Each coefficient and a_opt in the laws that converged; a_opt is NaN where a term is absent.

        At the edge of a region, the size and exponent of an absent term, or of a step, are NaN too.
        """
        columns = dict(zip(Surface._fields, self.samples[self.converged].T, strict=True))
        alpha, beta = columns["alpha"], columns["beta"]
        both = (columns["A"] * alpha > 0) & (columns["B"] * beta > 0)
        if self.edge:
            for size, exponent in (("A", "alpha"), ("B", "beta")):
                power = columns[exponent]
                known = (columns[size] * power > 0) & (power < STEEPEST)
                columns |= {name: np.where(known, columns[name], np.nan) for name in (size, exponent)}
        columns["a_opt"] = np.where(both, beta / np.where(both, alpha + beta, 1), np.nan)
        return columns

    def optima(self, flops: float, per_token: float = PER_TOKEN) -> Floats:
        """[R', 3] N, D and loss of the best model in each law; NaN where a term is absent."""
        absent = (np.nan, np.nan, np.nan)
        found = [one.optimum(flops, per_token) if min(one[1:]) > 0 else absent for one in self.surfaces]
        return np.array(found).reshape(-1, 3)

    def interval_of(self, values: Floats, fitted: float) -> tuple[float, float]:
        """The 95 % interval of a quantity from its values [R'] in the laws and in the fitted one.

        (NaN, NaN) where it is not identified: it has no value in some law of the region.
        """
        if not self.edge:
            return interval(values, 0.95, fitted)
        every = np.append(values, fitted)
        return float(every.min()), float(every.max())

    def interval(self) -> dict[str, tuple[float, float]]:
        """95 % intervals of each coefficient and of a_opt."""
        own = self.fitted._asdict()
        own["a_opt"] = self.fitted.a_opt if min(self.fitted[1:]) > 0 else np.nan
        return {name: self.interval_of(values, own[name]) for name, values in self.values().items()}

    def optimum_interval(self, flops: float, per_token: float = PER_TOKEN) -> dict[str, tuple[float, float]]:
        """95 % intervals of the best "params" and "tokens" for a budget, and of the "loss" there."""
        optima = self.optima(flops, per_token)
        best = self.fitted.optimum(flops, per_token) if min(self.fitted[1:]) > 0 else (np.nan, np.nan, np.nan)
        params, tokens = (self.interval_of(optima[:, column], best[column]) for column in (0, 1))
        losses = optima[~np.isnan(optima[:, 2]), 2]  # without a term there is no best size, but losses near this one
        return {"params": params, "tokens": tokens, "loss": self.interval_of(losses, best[2])}

    def loss_interval(self, params: float, tokens: float) -> tuple[float, float]:
        """95 % interval of the loss of a model."""
        losses = np.array([one.loss(params, tokens) for one in self.surfaces])
        return self.interval_of(losses, float(self.fitted.loss(params, tokens)))


def spread_surface(points: Points, fit: SurfaceFit, resamples: int = 4000, seed: int = 0) -> SurfaceSpread:
    """The laws that the points allow: `resamples` of them, or `EDGE` if that is fewer.

    With `MANY_GROUPS` groups or more, whose parameters and tokens do not move together, they are fits of draws of
    groups with replacement, whatever the noise is like. Otherwise they are at the edge of the region of the fit, for
    normal noise (`laws.region`).
    """
    count = points.group_count
    if count <= COEFFICIENTS:
        raise UserError(
            f"{count} groups for {COEFFICIENTS} coefficients leave nothing to tell the noise from, so there are "
            "no intervals; add a run"
        )
    if count >= MANY_GROUPS and apart(points) >= TOGETHER:
        return bootstrap_surface(points, fit, resamples, seed)
    centred = centre(points.params, points.tokens, points.loss)
    noise = estimate_noise(fit.residuals, slopes_of(points, fit.surface), points.groups)
    laws = min(resamples, EDGE)
    delta = {"huber": fit.delta, "l1": 0.0, "squares": np.inf}[fit.penalty]
    region = fit_region(noise, inefficiency(noise, points.groups, delta, seed), laws)
    rows, inside = edge_of(centred, centred.inward(np.array([fit.surface]))[0], region, laws, seed)
    return SurfaceSpread(samples=centred.outward(_canonical(rows)[0]), converged=inside, edge=True, fitted=fit.surface)


def bootstrap_surface(points: Points, fit: SurfaceFit, resamples: int = 4000, seed: int = 0) -> SurfaceSpread:
    """Fit `resamples` draws of groups with replacement; about 1 s for 4,000 of 240 points.

    A draw has fewer groups than the data by the number of coefficients, since a fit hides that part of the noise. Each
    fit starts at the fit of all points. To find minima elsewhere, some resamples start again from their best grid
    cell away from that fit. If one of them finds a lower minimum there, all resamples start again.
    """
    centred = centre(points.params, points.tokens, points.loss)
    labels, which = np.unique(points.groups, return_inverse=True)
    size = max(len(labels) - COEFFICIENTS, COEFFICIENTS)
    weights = draw_counts(len(labels), resamples, seed, size=size)[:, which]
    warm = centred.inward(np.array([fit.surface]))
    found = _minima(centred, weights, np.repeat(warm, resamples, 0), fit)
    part = slice(0, _CHECKED)
    again, moved = _elsewhere(centred, weights[part], warm, fit, found.objective[part])
    if moved.any() and resamples > len(moved):
        part = slice(0, resamples)
        again, moved = _elsewhere(centred, weights, warm, fit, found.objective)
    for old, new in zip(found, again, strict=True):
        old[part][moved] = new[moved]
    rows, _ = _canonical(found.rows)
    converged = found.converged & _identified(points, weights)
    return SurfaceSpread(
        samples=centred.outward(rows),
        converged=converged,
        edge=False,
        checked=len(moved),
        moved=int(moved.sum()),
        fitted=fit.surface,
    )


def slopes_of(points: Points, surface: Surface) -> Floats:
    """[n, 5] derivatives of ln prediction by the coefficients, in centred form."""
    centred = centre(points.params, points.tokens, points.loss)
    row = centred.inward(np.array([surface]))
    p, q, inverse, _ = (value[0] for value in evaluate(centred, row))
    a, b = row[0, :2]
    return np.stack((p, q, inverse, -a * p * centred.u, -b * q * centred.v), 1)


def _elsewhere(
    centred: Centred, weights: Floats, warm: Floats, fit: SurfaceFit, objective: Floats
) -> tuple[Descent, Flags]:
    """Minima from starts away from the `warm` row, and which of them are lower than `objective`."""
    smooth = _smooth(fit.penalty, fit.delta)
    cells = grid_starts(centred, smooth)
    near = (np.abs(np.log(cells[:, 3:] / np.maximum(warm[:, 3:], 1e-3))) < 0.4).all(1)
    cells = cells[~near]
    heights = penalties(evaluate(centred, cells).residuals, smooth) @ weights.T  # [cells, R]
    again = _minima(centred, weights, cells[heights.argmin(0)], fit)
    slack = _SAME * objective + weights.sum(1) * _ROUNDING
    return again, again.converged & (again.objective < objective - slack)


def _minima(centred: Centred, weights: Floats, starts: Floats, fit: SurfaceFit) -> Descent:
    """Minima as by `descend`, with the fit's penalty, on two threads: NumPy releases the interpreter's lock."""

    def work(part: slice) -> Descent:
        found = descend(centred, weights[part], starts[part], _smooth(fit.penalty, fit.delta))
        return _absolute(centred, weights[part], found) if fit.penalty == "l1" else found

    parts = [slice(first, first + _PART) for first in range(0, len(weights), _PART)]
    with ThreadPoolExecutor(2) as pool:
        return Descent(*(np.concatenate(pieces) for pieces in zip(*pool.map(work, parts))))


def _identified(points: Points, weights: Floats) -> Flags:
    """Whether each resample has three different N and three different D."""
    enough = np.ones(len(weights), bool)
    for values in (points.params, points.tokens):
        _, which = np.unique(values, return_inverse=True)
        groups = np.zeros((len(values), which.max() + 1))
        groups[np.arange(len(values)), which] = 1
        enough &= ((weights @ groups) > 0).sum(1) >= 3
    return enough


class HeldOut(NamedTuple):
    """A law of the cheapest points, and its errors on the others."""

    surface: Surface
    errors: Floats
    """prediction / loss - 1 of each held-out point, by ascending FLOPs."""
    distances: Floats
    """ln of the factor by which each is outside the fitted points, in N, D or C."""

    @property
    def predicted(self) -> int:
        return len(self.errors)

    @property
    def mean_absolute(self) -> float:
        return float(np.abs(self.errors).mean())


def heldout_error(points: Points, share: float = 0.8, penalty: Penalty = "huber", delta: float = 1e-3) -> HeldOut:
    """Fit the `share` of the points with the least FLOPs and predict the others, as an extrapolation does."""
    if not 0 < share < 1:
        raise UserError(f"share = {share}: it must be between 0 and 1, as in 0.8")
    order = points.flops.argsort(kind="stable")
    count = round(share * len(points))
    if count < COEFFICIENTS or count == len(points):
        raise UserError(
            f"{counted(len(points), 'point')}, {count} of them to fit: a law needs {COEFFICIENTS}, and at least "
            "one point must be left to predict"
        )
    fitted, others = points.take(order[:count]), points.take(order[count:])
    surface = fit_surface(fitted, penalty, delta).surface
    errors = np.asarray(surface.loss(others.params, others.tokens) / others.loss - 1)
    return HeldOut(surface, errors, np.array([distance(fitted.ranges, one) for one in others.each()]))
