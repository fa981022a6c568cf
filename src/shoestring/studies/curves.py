"""Loss curves of tables, such as a tracker exports, as `law compare` takes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from shoestring.core.errors import UserError
from shoestring.core.units import Count, Flops, amount
from shoestring.laws.form import PER_TOKEN
from shoestring.laws.points import read_numbers
from shoestring.studies.run_results import CurveColumns, TableCurve

T = TypeVar("T")


def read_curves(paths: Sequence[Path], columns: CurveColumns) -> tuple[list[TableCurve], list[str]]:
    """The curves of all tables, in order, and a line for each number that was left out."""
    column = _compute_column(paths[0], columns)
    found: list[tuple[str, list[tuple[float, float]]]] = []
    said: list[str] = []
    for path in paths:
        curves, problems = _of_table(path, column, columns)
        found += curves
        said += [f"left out: {path.name}, {text}" for text in problems]
    names = _list(columns.names, [name for name, _ in found], "--names", str, shared=False)
    each, params = [1.0] * len(found), None
    if columns.step is not None:
        each = _list(columns.flops_per_step, each, "--flops-per-step", lambda text: float(amount(Flops, text)))
    if columns.tokens is not None:
        params = _list(columns.params, each, "--params", lambda text: float(amount(Count, text)))
        each = [PER_TOKEN * count for count in params]
    made = []
    for index, (name, (_, places), per) in enumerate(zip(names, found, each)):
        size = {} if params is None else {"params": params[index], "tokens": places[-1][0]}
        made.append(TableCurve(name=name, places=tuple((x * per, loss) for x, loss in places), **size))
    return made, said


def _compute_column(path: Path, columns: CurveColumns) -> str:
    given = [column for column in (columns.flops, columns.step, columns.tokens) if column is not None]
    if columns.loss is None or len(given) != 1:
        raise UserError(
            f"{path} is a table: name its columns, as in --loss Value --step Step --flops-per-step 1.2e13,1.8e13, with "
            "one of --flops, --step and --tokens"
        )
    for needs, option, other in (
        (columns.step, "--flops-per-step", columns.flops_per_step),
        (columns.tokens, "--params", columns.params),
    ):
        if needs is not None and other is None:
            raise UserError(f"{option}: missing; the column {needs!r} has no compute without it")
        if needs is None and other is not None:
            raise UserError(f"{option}: is for {'--step' if option == '--flops-per-step' else '--tokens'}")
    return given[0]


def _of_table(
    path: Path, column: str, columns: CurveColumns
) -> tuple[list[tuple[str, list[tuple[float, float]]]], list[str]]:
    """Each curve of a table with its name: (compute, loss) ascending, the last row of those with equal compute."""
    roles = {"x": column, "loss": columns.loss}
    read = read_numbers(path, roles, columns.group, skip_bad=columns.skip_bad, where=columns.where)
    x, loss, groups = read.numbers["x"], read.numbers["loss"], np.array(read.groups)
    curves = []
    for group in dict.fromkeys(read.groups):  # in the order of the table
        mine = groups == group
        curves.append((group or path.stem, sorted(dict(zip(x[mine].tolist(), loss[mine].tolist())).items())))
    if not curves:
        raise UserError(f"{path}{read.where}: no row can be used")
    return curves, read.problems


def _list(text: str | None, default: list[T], option: str, parse: Callable[[str], T], shared: bool = True) -> list[T]:
    """A value for each curve from a list with commas; a single one is for all where they may be `shared`."""
    if text is None:
        return default
    parts = [part.strip() for part in text.split(",")]
    try:
        values = [parse(part) for part in parts]
    except ValueError as cause:
        raise UserError(f"{option} {text}: {cause}") from cause
    for part, value in zip(parts, values):
        if not value or (isinstance(value, float) and value < 0):
            raise UserError(f"{option} {text}: {part!r} is empty or not above 0")
    if len(values) == 1 and shared:
        return values * len(default)
    if len(values) != len(default):
        raise UserError(f"{option} {text}: {len(values)} values for {len(default)} curves; give one for each")
    return values
