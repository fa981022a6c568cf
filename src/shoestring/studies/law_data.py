"""The trained models that a scaling law is fitted to: rows of a table, or run folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from shoestring.core.errors import UserError
from shoestring.core.sweep_folder import with_sweeps
from shoestring.core.units import counted
from shoestring.laws.form import PER_TOKEN
from shoestring.laws.points import Points, read_points
from shoestring.studies.run_results import COUNTS, Trained, read_all
from shoestring.studies.run_results import Count as Counting


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
    """Read one table, or runs and sweeps; bad rows and runs are one error, or left out and named with `skip_bad`.

    `count` is what N counts: runs are counted that way, a table is assumed to be. `drop_largest` leaves out so many of
    the largest losses.
    """
    if count not in COUNTS:
        raise UserError(f"--count {count}: must be {' or '.join(COUNTS)}")
    paths = with_sweeps(paths)
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
        raise UserError(
            f"--params, --tokens, --loss, --flops, --group and --where are for a table, and {paths[0]} is none"
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
