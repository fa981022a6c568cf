"""Law: from trained models, of a table or of run folders, to the law of their losses, law.json and its page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, cast, get_args

import numpy as np
from numpy.typing import NDArray

from shoestring.core.errors import UserError
from shoestring.core.facts import Allocation, Law
from shoestring.laws.envelope import Curve, bootstrap_envelope, fit_envelope
from shoestring.laws.form import PER_TOKEN, Surface
from shoestring.laws.heldout import heldout_error
from shoestring.laws.isoflop import bootstrap_isoflop, fit_isoflop
from shoestring.laws.points import Points, read_points
from shoestring.laws.power import PowerBootstrap, PowerLaw
from shoestring.laws.surface import Penalty, SurfaceBootstrap, bootstrap_surface, fit_surface
from shoestring.stages.optimum import estimate
from shoestring.stages.trained import COUNTS, Trained, read_all
from shoestring.stages.trained import Count as Counting

LEAST_MINIMA = 3
"""Of an envelope: any two sizes have a power law through them."""
HELDOUT_SHARE = 0.8
"""Of the points, by ascending compute, those that the law is fitted to when its error on the others is told."""
KEPT_SAMPLES = 1000
"""Of the resampled fits, those that law.json keeps."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Names of a table's columns; two of params, tokens and flops give the third by C = 6 N D."""

    loss: str | None = None
    params: str | None = None
    tokens: str | None = None
    flops: str | None = None


@dataclass(frozen=True, kw_only=True)
class Given:
    """What a law is fitted to."""

    points: Points
    runs: tuple[Trained, ...]
    """Of run folders, with their curves; none of a table."""
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
    """One table, or run folders; bad rows and runs are one error, or left out and named.

    `count` is what N counts: of runs it is counted so, of a table it is taken for granted. `drop_largest` leaves out so
    many of the largest losses.
    """
    if count not in COUNTS:
        raise UserError(f"--count {count}: must be {' or '.join(COUNTS)}")
    tables = [path for path in paths if path.is_file()]
    if missing := [str(path) for path in paths if not path.exists()]:
        raise UserError(f"there is no file or folder {', '.join(missing)}")
    if tables and len(paths) > 1:
        raise UserError(f"give one table, or run folders; {len(tables)} of the {len(paths)} are files")
    given = (
        _read_table(paths[0], columns, where, count, skip_bad)
        if tables
        else _read_runs(paths, columns, where, count, skip_bad)
    )
    return _without_largest(given, drop_largest) if drop_largest else given


def _read_table(path: Path, columns: Columns, where: Sequence[str], count: Counting, skip_bad: bool) -> Given:
    if columns.loss is None:
        raise UserError(f"{path} is a table: name its columns, as in --params N --tokens D --loss L")
    points, left_out = read_points(
        path,
        params=columns.params,
        tokens=columns.tokens,
        loss=columns.loss,
        flops=columns.flops,
        skip_bad=skip_bad,
        where=where,
    )
    named = [name for name, column in (("N", columns.params), ("D", columns.tokens), ("C", columns.flops)) if column]
    said = f"{' and '.join(named)} are columns of {path.name}; C = 6 N D"
    per_product = PER_TOKEN
    if columns.flops is not None and columns.params is not None and columns.tokens is not None:
        per_product = float(np.median(points.flops / points.params / points.tokens))
        said = f"N, D and C are columns of {path.name}; C is about {per_product:.3g} N D"
    source = path.name + "".join(f", {text}" for text in where)
    return Given(
        points=points,
        runs=(),
        source=source,
        count=said,
        counting=count,
        flops_per_product=per_product,
        said=tuple(f"left out: {text}" for text in left_out),
    )


def _read_runs(paths: Sequence[Path], columns: Columns, where: Sequence[str], count: Counting, skip_bad: bool) -> Given:
    if columns != Columns() or where:
        raise UserError(
            "--params, --tokens, --loss, --flops and --where are for a table; run folders say it themselves"
        )
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
    per_product = float(np.median(points.flops / points.params / points.tokens))
    counted = f"N: {COUNTS[count]}; D: predictions; C: exact FLOPs, here about {per_product:.3g} N D"
    return Given(
        points=points,
        runs=tuple(runs),
        source=f"{len(runs)} runs",
        count=counted,
        counting=count,
        flops_per_product=per_product,
        said=tuple(said),
    )


def _without_largest(given: Given, count: int) -> Given:
    """Without so many of the largest losses: early or failed runs that a law is not meant for."""
    if count >= len(given.points):
        raise UserError(f"--drop-largest {count}: there are only {len(given.points)} points")
    order = np.argsort(given.points.loss, kind="stable")
    dropped = np.sort(order[len(order) - count :])
    kept = np.sort(order[: len(order) - count])
    low = float(given.points.loss[dropped].min())
    said = f"left out: {count} points of the largest losses, {low:.4g} and above"
    return replace(
        given,
        points=given.points.take(kept),
        runs=tuple(given.runs[i] for i in kept) if given.runs else (),
        said=(*given.said, said),
    )


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a fit is to do. An approach that cannot be made is a note where another one can."""

    approaches: tuple[int, ...] = (1, 2, 3)
    penalty: Penalty = "huber"
    resamples: int = 4000
    seed: int = 0
    name: str | None = None
    """What the law is called; default: its source."""


def ask(approach: str, penalty: str, resamples: int, name: str | None) -> Asked:
    """What a person asked for, checked."""
    if approach not in ("1", "2", "3", "all"):
        raise UserError(f"--approach {approach}: must be 1, 2, 3 or all")
    if penalty not in get_args(Penalty):
        raise UserError(f"--penalty {penalty}: must be one of {', '.join(get_args(Penalty))}")
    chosen = (1, 2, 3) if approach == "all" else (int(approach),)
    return Asked(approaches=chosen, penalty=cast(Penalty, penalty), resamples=resamples, name=name)


class Fitted(NamedTuple):
    """A law, and what its figures need besides."""

    law: Law
    predicted: NDArray[np.float64] | None
    """The losses that the surface gives, of each point."""


def fit_law(given: Given, asked: Asked) -> Fitted:
    """The law of the points by the approaches asked for; raises UserError where none can be made."""
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
    )
    notes: list[str] = []
    predicted = None
    made = {1: _envelope, 2: _parabolas}
    for approach in asked.approaches:
        try:
            if approach == 3:
                law, predicted = _with_surface(law, given, asked)
            else:
                law = replace(law, allocations=(*law.allocations, made[approach](given, asked)))
        except UserError as cause:
            notes.append(f"approach {approach}: {cause}")
    if not law.coefficients and not law.allocations:
        advice = "; two runs are compared by: shoestring law compare RUN RUN" if len(points) < 5 else ""
        raise UserError("\n  ".join([f"no law can be fitted to {given.source}{advice}", *notes]))
    return Fitted(replace(law, notes=(*law.notes, *notes)), predicted)


def _ends(values: NDArray[np.float64]) -> tuple[float, float]:
    return float(values.min()), float(values.max())


def _with_surface(law: Law, given: Given, asked: Asked) -> tuple[Law, NDArray[np.float64]]:
    """Approach 3."""
    points = given.points
    fit = fit_surface(points, asked.penalty)
    notes = [] if fit.converged else ["the fit of the surface did not converge to the last digit"]
    spread = bootstrap_surface(points, fit, asked.resamples, asked.seed) if asked.resamples else None
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
        resamples=asked.resamples,
        failed_resamples=0 if spread is None else spread.failed,
        samples=() if spread is None else kept_samples(spread),
        notes=(*law.notes, *notes),
    )
    try:
        apart = heldout_error(points, HELDOUT_SHARE, asked.penalty)
        law = replace(law, heldout_error=apart.mean_absolute, heldout_points=apart.predicted)
    except UserError as cause:  # too few points to set some apart
        law = replace(law, notes=(*law.notes, f"held-out error: {cause}"))
    return law, np.exp(fit.residuals) * points.loss


def _envelope(given: Given, asked: Asked) -> Allocation:
    """Approach 1."""
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
    found = fit_envelope(curves, per_token=per_token)
    if len(found.minima) < LEAST_MINIMA:
        raise UserError(f"{len(found.minima)} sizes are the best somewhere; a law through them needs {LEAST_MINIMA}")
    resampled = (
        bootstrap_envelope(curves, asked.resamples, asked.seed, per_token=per_token) if asked.resamples else None
    )
    optima = tuple((one.flops, one.params, one.tokens) for one in found.minima)
    return _allocation(1, found.params_law, found.tokens_law, resampled, optima, ())


def _parabolas(given: Given, asked: Asked) -> Allocation:
    """Approach 2."""
    found = fit_isoflop(given.points)
    resampled = bootstrap_isoflop(found, asked.resamples, asked.seed) if asked.resamples else None
    optima = tuple((one.flops, one.params, one.tokens) for one in found.optima)
    return _allocation(2, found.params_law, found.tokens_law, resampled, optima, found.left_out)


def _allocation(
    approach: int,
    params: PowerLaw,
    tokens: PowerLaw,
    resampled: tuple[PowerBootstrap, PowerBootstrap] | None,
    optima: tuple[tuple[float, float, float], ...],
    left_out: tuple[str, ...],
) -> Allocation:
    of_params, of_tokens = ({}, {}) if resampled is None else (one.interval() for one in resampled)
    return Allocation(
        approach=approach,
        params_factor=estimate(params.k, of_params.get("k")),
        params_exponent=estimate(params.a, of_params.get("a")),
        tokens_factor=estimate(tokens.k, of_tokens.get("k")),
        tokens_exponent=estimate(tokens.a, of_tokens.get("a")),
        optima=optima,
        left_out=left_out,
    )


def kept_samples(spread: SurfaceBootstrap) -> tuple[tuple[float, ...], ...]:
    """Evenly chosen ones of those that converged, to seven digits."""
    rows = spread.samples[spread.converged]
    chosen = rows[np.unique(np.linspace(0, len(rows) - 1, KEPT_SAMPLES).round().astype(int))] if len(rows) else rows
    return tuple(tuple(float(f"{value:.7g}") for value in row) for row in chosen)
