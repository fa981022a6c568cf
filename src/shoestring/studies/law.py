"""Fit a scaling law to trained models, which come from a table or from run folders."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, cast, get_args

import numpy as np
from numpy.typing import NDArray

from shoestring.core.errors import UserError
from shoestring.core.records import Allocation, Law
from shoestring.core.units import counted
from shoestring.laws.envelope import Curve, Minimum, bootstrap_envelope, fit_envelope
from shoestring.laws.extrapolation import together
from shoestring.laws.form import PER_TOKEN, Surface
from shoestring.laws.isoflop import WINDOW, GroupOptimum, bootstrap_isoflop, fit_isoflop
from shoestring.laws.limits import apart, clustered
from shoestring.laws.points import Points, check_two, read_numbers, read_points, third_of_three
from shoestring.laws.power import PowerBootstrap, PowerLaw, fit_power, linear_factor, resample_power, rest
from shoestring.laws.surface import Penalty, SurfaceBootstrap, bootstrap_surface, fit_surface, heldout_error
from shoestring.studies.optimum import estimate
from shoestring.studies.run_results import COUNTS, Trained, read_all
from shoestring.studies.run_results import Count as Counting

LEAST_MINIMA = 3
"""Of an envelope: a power law goes through any two."""
HELDOUT_SHARE = 0.8
"""Share of the points, by ascending compute, that a law is fitted to for its error on the others."""
KEPT_SAMPLES = 1000
"""Resampled fits that law.json keeps."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Column names of a table; two of params, tokens and flops give the third by C = 6 N D."""

    loss: str | None = None
    params: str | None = None
    tokens: str | None = None
    flops: str | None = None
    group: str | None = None
    """Rows with the same text there are of one run, and share its noise."""


@dataclass(frozen=True, kw_only=True)
class Given:
    """What a law is fitted to."""

    points: Points
    runs: tuple[Trained, ...]
    """Run folders with their curves; empty for a table."""
    source: str
    count: str
    """What N, D and C count, for people."""
    counting: str
    flops_per_product: float
    said: tuple[str, ...]


def read_given(
    paths: Sequence[Path],
    columns: Columns,
    where: Sequence[str] = (),
    count: str = "total",
    skip_bad: bool = False,
    drop_largest: int = 0,
) -> Given:
    """Read one table, or run folders; bad rows and runs are one error, or left out and named with `skip_bad`.

    `count` is what N counts: runs are counted that way, a table is assumed to be. `drop_largest` leaves out so many of
    the largest losses.
    """
    if count not in COUNTS:
        raise UserError(f"--count {count}: must be {' or '.join(COUNTS)}")
    tables = [path for path in paths if path.is_file()]
    if missing := [str(path) for path in paths if not path.exists()]:
        raise UserError(f"there is no file or folder {', '.join(missing)}")
    if tables and len(paths) > 1:
        raise UserError(f"give one table, or run folders; {len(tables)} of the {len(paths)} are files")
    read = _read_table if tables else _read_runs
    given = read(paths, columns, where, count, skip_bad)
    return _without_largest(given, drop_largest) if drop_largest else given


def _read_table(
    paths: Sequence[Path], columns: Columns, where: Sequence[str], count: Counting, skip_bad: bool
) -> Given:
    path = paths[0]
    if columns.loss is None:
        raise UserError(
            f"{path} is a table: name its columns, as in --params N --tokens D --loss L; a table of the best models by "
            "compute needs no loss, but --optima"
        )
    n, d, c = columns.params, columns.tokens, columns.flops
    points, left_out = read_points(
        path, params=n, tokens=d, loss=columns.loss, flops=c, group=columns.group, skip_bad=skip_bad, where=where
    )
    given = [letter for letter, name in zip("NDC", (n, d, c)) if name]
    per_product, counted = PER_TOKEN, f"{' and '.join(given)} are columns of {path.name}; C = 6 N D"
    if len(given) == 3:
        per_product = _flops_per_product(points)
        counted = f"N, D and C are columns of {path.name}; C is about {per_product:.3g} N D"
    return Given(
        points=points,
        runs=(),
        source=path.name + "".join(f", {text}" for text in where),
        count=counted,
        counting=count,
        flops_per_product=per_product,
        said=tuple(f"left out: {text}" for text in left_out),
    )


def _flops_per_product(points: Points) -> float:
    return float(np.median(points.flops / points.params / points.tokens))


def _read_runs(paths: Sequence[Path], columns: Columns, where: Sequence[str], count: Counting, skip_bad: bool) -> Given:
    if columns != Columns() or where:
        raise UserError("--params, --tokens, --loss, --flops, --group and --where are for a table, not for run folders")
    runs, said = read_all(paths, count, skip_bad)
    if not runs:
        raise UserError("\n  ".join(["no run can be used", *said]))
    points = Points(
        params=np.array([float(run.params) for run in runs]),
        tokens=np.array([run.tokens for run in runs]),
        loss=np.array([run.loss for run in runs]),
        given_flops=np.array([run.flops for run in runs]),
        names=tuple(run.name for run in runs),
    )
    per_product = _flops_per_product(points)
    return Given(
        points=points,
        runs=tuple(runs),
        source=counted(len(runs), "run"),
        count=f"N: {COUNTS[count]}; D: predictions; C: exact FLOPs, here about {per_product:.3g} N D",
        counting=count,
        flops_per_product=per_product,
        said=tuple(said),
    )


def _without_largest(given: Given, count: int) -> Given:
    """Leave out so many of the largest losses: early or failed runs that a law is not meant for."""
    if count >= len(given.points):
        raise UserError(f"--drop-largest {count}: the table has only {counted(len(given.points), 'point')}")
    order = np.argsort(given.points.loss, kind="stable")
    kept, low = np.sort(order[:-count]), float(given.points.loss[order[-count]])
    said = f"left out: {counted(count, 'point')} of the largest losses, {low:.4g} and above"
    runs = tuple(given.runs[i] for i in kept) if given.runs else ()
    return replace(given, points=given.points.take(kept), runs=runs, said=(*given.said, said))


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The options of a fit. An approach that fails is a note where another one succeeds."""

    approaches: tuple[int, ...] = (1, 2, 3)
    penalty: Penalty = "huber"
    delta: float = 1e-3
    """Of Huber's penalty."""
    window: float = WINDOW
    """Of parabolas: the largest factor between a size and the one with the lowest loss."""
    exponent: float | None = None
    """Of N in approaches 1 and 2, N = k C^exponent; None: fitted. That of D is 1 - exponent."""
    resamples: int = 4000
    seed: int = 0
    name: str | None = None
    """Of the law; default: its source."""


def ask(
    approach: str,
    penalty: str,
    resamples: int,
    name: str | None,
    delta: float | None = None,
    window: float = WINDOW,
    exponent: float | None = None,
) -> Asked:
    """The options of a fit, checked; `delta` is for Huber's penalty alone, `exponent` for approaches 1 and 2."""
    if delta is not None and penalty != "huber":
        raise UserError(f"--delta {delta:g}: is for --penalty huber, not {penalty}")
    if delta is not None and not 0 < delta < math.inf:
        raise UserError(f"--delta {delta:g}: must be above 0; 1e-3 is customary")
    if approach not in ("1", "2", "3", "all"):
        raise UserError(f"--approach {approach}: must be 1, 2, 3 or all")
    if penalty not in get_args(Penalty):
        raise UserError(f"--penalty {penalty}: must be one of {', '.join(get_args(Penalty))}")
    if not window > 1:
        raise UserError(f"--window {window:g}: must be above 1; 5 takes sizes from a fifth to 5 times the best")
    if exponent is not None and not 0 < exponent < 1:
        raise UserError(f"--exponent {exponent:g}: must be between 0 and 1; 0.5 makes N and D grow alike")
    if exponent is not None and approach == "3":
        raise UserError("--exponent: is for approaches 1 and 2; the surface of approach 3 has exponents of its own")
    every = (1, 2, 3) if exponent is None else (1, 2)
    chosen = every if approach == "all" else (int(approach),)
    return Asked(
        approaches=chosen,
        penalty=cast(Penalty, penalty),
        delta=delta or 1e-3,
        window=window,
        exponent=exponent,
        resamples=resamples,
        name=name,
    )


class Fitted(NamedTuple):
    """A law, and what else its figures need."""

    law: Law
    predicted: NDArray[np.float64] | None
    """The loss of each point by the surface."""


def fit_law(given: Given, asked: Asked) -> Fitted:
    """The law of the points by the requested approaches; raises UserError where all of them fail."""
    points = given.points
    law = Law(
        source=asked.name or given.source,
        count=given.count,
        counting=given.counting,
        flops_per_product=given.flops_per_product,
        points=len(points),
        params=_ends(points.params),
        tokens=_ends(points.tokens),
        flops=_ends(points.flops),
        penalty=asked.penalty,
        delta=asked.delta if asked.penalty == "huber" else None,
        groups=None if points.given_groups is None else points.group_count,
    )
    notes: list[str] = []
    predicted, allocations = None, {1: _envelope, 2: _parabolas}
    for approach in asked.approaches:
        try:
            if approach == 3:
                law, predicted = _with_surface(law, given, asked)
            else:
                law = replace(law, allocations=(*law.allocations, allocations[approach](given, asked)))
        except UserError as cause:
            notes.append(f"approach {approach}: {cause}")
    if not law.coefficients and not law.allocations:
        advice = "; two runs are compared by: shoestring law compare RUN RUN" if len(points) < 5 else ""
        raise UserError("\n  ".join([f"no law can be fitted to {given.source}{advice}", *notes]))
    return Fitted(replace(law, notes=(*law.notes, *notes)), predicted)


def _ends(values: NDArray[np.float64]) -> tuple[float, float]:
    return float(values.min()), float(values.max())


def _with_surface(law: Law, given: Given, asked: Asked) -> tuple[Law, NDArray[np.float64]]:
    """Approach 3: the surface E + A / N^alpha + B / D^beta."""
    points = given.points
    fit = fit_surface(points, asked.penalty, asked.delta)
    notes = [] if fit.converged else ["the fit of the surface did not converge to the last digit"]
    spread = None
    if asked.resamples:
        try:
            spread = bootstrap_surface(points, fit, asked.resamples, asked.seed)
        except UserError as cause:
            notes.append(str(cause))
    notes += [warning] if (warning := clustered(points, fit.residuals)) else []
    separate = apart(points)
    notes += together(separate)
    values = dict(zip(Surface._fields, map(float, fit.surface)))
    if min(fit.surface.A * fit.surface.alpha, fit.surface.B * fit.surface.beta) > 0:
        values["a_opt"] = fit.surface.a_opt
    ends = spread.interval() if spread is not None else {}
    law = replace(
        law,
        coefficients={name: estimate(value, ends.get(name)) for name, value in values.items()},
        objective=fit.objective,
        starts=fit.starts,
        failed_starts=fit.failed,
        boundary=fit.boundary,
        resamples=0 if spread is None else asked.resamples,
        apart=separate,
        failed_resamples=0 if spread is None else spread.failed,
        samples=() if spread is None else kept_samples(spread),
        notes=(*law.notes, *notes),
    )
    try:
        held = heldout_error(points, HELDOUT_SHARE, asked.penalty, asked.delta)
        far = float(held.distances.mean())
        law = replace(
            law, heldout_error=held.mean_absolute, heldout_points=held.predicted, heldout_distance=far or None
        )
    except UserError as cause:  # too few points to hold some out
        law = replace(law, notes=(*law.notes, f"held-out error: {cause}"))
    return law, np.exp(fit.residuals) * points.loss


def _envelope(given: Given, asked: Asked) -> Allocation:
    """Approach 1: the envelope of the runs' curves."""
    curves = [
        Curve(
            params=float(run.params),
            tokens=np.array([tokens for tokens, _ in run.curve]),
            loss=np.array([loss for _, loss in run.curve]),
            name=run.name,
        )
        for run in given.runs
        if len(run.curve) > 1
    ]
    if not curves:
        raise UserError("needs the loss curves of runs; a table has none" if not given.runs else "no run has a curve")
    per_token = given.flops_per_product
    found = fit_envelope(curves, per_token=per_token, exponent=asked.exponent)
    if len(found.minima) < LEAST_MINIMA:
        raise UserError(
            f"{counted(len(found.minima), 'size')} with the best loss somewhere; a law needs {LEAST_MINIMA}"
        )
    count, seed = asked.resamples, asked.seed
    resampled = bootstrap_envelope(curves, count, seed, per_token=per_token, exponent=asked.exponent) if count else None
    return _allocation(1, (found.params_law, found.tokens_law), found.minima, resampled, asked)


def _parabolas(given: Given, asked: Asked) -> Allocation:
    """Approach 2: parabolas at equal FLOPs."""
    found = fit_isoflop(given.points, asked.window, asked.exponent)
    count = asked.resamples
    resampled = bootstrap_isoflop(found, count, asked.seed, asked.exponent) if count else None
    return _allocation(2, (found.params_law, found.tokens_law), found.optima, resampled, asked, found.left_out)


def _allocation(
    approach: int,
    laws: tuple[PowerLaw, PowerLaw],
    minima: Sequence[Minimum | GroupOptimum],
    resampled: tuple[PowerBootstrap, PowerBootstrap] | None,
    asked: Asked,
    left_out: tuple[str, ...] = (),
) -> Allocation:
    params, tokens = laws
    of_params, of_tokens = ({}, {}) if resampled is None else (one.interval() for one in resampled)
    if asked.exponent is not None:  # given, so not uncertain
        of_params.pop("a", None)
        of_tokens.pop("a", None)
    return Allocation(
        approach=approach,
        params_factor=estimate(params.k, of_params.get("k")),
        params_exponent=estimate(params.a, of_params.get("a")),
        tokens_factor=estimate(tokens.k, of_tokens.get("k")),
        tokens_exponent=estimate(tokens.a, of_tokens.get("a")),
        optima=tuple((one.flops, one.params, one.tokens) for one in minima),
        left_out=left_out,
        fixed=asked.exponent is not None,
        samples=() if resampled is None else _kept_powers(*resampled),
    )


def one_table(paths: Sequence[Path], approach: str, drop_largest: int) -> Path:
    """The table of best models, of which there is one; refuses options that need losses."""
    if len(paths) != 1 or not paths[0].is_file():
        raise UserError(f"--optima: needs one table, not {', '.join(map(str, paths))}")
    if approach != "all" or drop_largest:
        raise UserError("--optima: the table has no losses, so --approach and --drop-largest do not apply")
    return paths[0]


def fit_optima(
    path: Path, columns: Columns, where: Sequence[str], count: str, skip_bad: bool, asked: Asked
) -> tuple[Law, tuple[str, ...]]:
    """The laws N = k C^a and D = k C^b through a table of the best models by compute, and what was left out of it."""
    if columns.loss is not None or columns.group is not None:
        raise UserError("--optima: each row is a best model; --loss and --group are for tables of trained models")
    if count not in COUNTS:
        raise UserError(f"--count {count}: must be {' or '.join(COUNTS)}")
    roles = {"params": columns.params, "tokens": columns.tokens, "flops": columns.flops}
    check_two(path, roles)
    found = read_numbers(path, roles, skip_bad=skip_bad, where=where)
    needed = 2 if asked.exponent is None else 1
    if len(found.groups) < needed:
        raise UserError(f"{path}{found.where}: {found.usable} can be used; this law needs {needed} or more")
    all_three = third_of_three(found.numbers)
    flops, params, tokens = (all_three[name] for name in ("flops", "params", "tokens"))
    powers = ((params, asked.exponent), (tokens, rest(asked.exponent)))
    on_params, on_tokens = (fit_power(flops, values, power) for values, power in powers)
    drawn = [resample_power(flops, values, power, asked.resamples, asked.seed) for values, power in powers]
    minima = [Minimum(*row) for row in zip(flops.tolist(), params.tolist(), tokens.tolist())]
    resampled = (drawn[0], drawn[1]) if asked.resamples and not drawn[0].failed else None
    named = [letter for letter, name in zip("NDC", (columns.params, columns.tokens, columns.flops)) if name]
    law = Law(
        source=asked.name or path.name + "".join(f", {text}" for text in where),
        count=f"{'N, D and C' if named[2:] else ' and '.join(named) + ' (C = 6 N D)'} are columns of {path.name}",
        counting=count,
        flops_per_product=float(np.median(flops / params / tokens)),
        points=len(flops),
        params=_ends(params),
        tokens=_ends(tokens),
        flops=_ends(flops),
        penalty="squares",
        resamples=0 if resampled is None else asked.resamples,
        allocations=(_allocation(0, (on_params, on_tokens), minima, resampled, asked),),
        notes=tuple(_linear_note(flops, params, tokens, asked.exponent)),
    )
    return law, tuple(f"left out: {text}" for text in found.problems)


def _linear_note(
    flops: NDArray[np.float64], params: NDArray[np.float64], tokens: NDArray[np.float64], exponent: float | None
) -> list[str]:
    if exponent is None:
        return []
    k_params, k_tokens = linear_factor(flops, params, exponent), linear_factor(flops, tokens, 1 - exponent)
    return [
        f"the factors fit ln N and ln D, in which all rows count alike; a fit of N and D themselves, in which the "
        f"largest count most, has {k_params:.6g} and {k_tokens:.6g}"
    ]


def _kept_powers(params: PowerBootstrap, tokens: PowerBootstrap) -> tuple[tuple[float, ...], ...]:
    rows = np.stack((params.k, params.a, tokens.k, tokens.a), 1)
    return _even_choice(rows[np.isfinite(rows).all(1)])


def kept_samples(spread: SurfaceBootstrap) -> tuple[tuple[float, ...], ...]:
    """An even choice of the resampled fits that converged, to seven digits."""
    return _even_choice(spread.samples[spread.converged])


def _even_choice(rows: NDArray[np.float64]) -> tuple[tuple[float, ...], ...]:
    chosen = rows[np.unique(np.linspace(0, len(rows) - 1, KEPT_SAMPLES).round().astype(int))] if len(rows) else rows
    return tuple(tuple(float(f"{value:.7g}") for value in row) for row in chosen)
