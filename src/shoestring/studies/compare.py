"""Compare runs over the same compute: a table, a sentence and a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoestring.core.errors import UserError
from shoestring.core.sweep_folder import with_sweeps
from shoestring.core.units import Count, Flops
from shoestring.report.law_figures import Curve, loss_by_flops
from shoestring.report.law_page import write_comparison
from shoestring.studies.effect import Scored, difference, difference_json
from shoestring.studies.run_results import (
    Comparison,
    CurveColumns,
    TableCurve,
    Trained,
    compare,
    over_flops,
    read_all,
)

_SHOWN = 10
"""Lines of the table."""
ONE_SEED = (
    "whether other seeds would say the same is not known: give several runs of each that differ in run.seed alone"
)


@dataclass(frozen=True)
class Compared:
    """Runs side by side, for people; `rows[0]` is the head of the table."""

    comparisons: tuple[Comparison, ...]
    rows: tuple[tuple[str, ...], ...]
    said: tuple[str, ...]

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {
                "first": found.first.name,
                "second": found.second.name,
                "params": [found.first.params, found.second.params],
                "tokens": [found.first.tokens, found.second.tokens],
                "flops": [row[0] for row in found.rows],
                "losses": [list(row[1:]) for row in found.rows],
                "noise": found.noise,
                "crossings": found.crossings,
                "verdict": found.verdict,
                "difference": None if found.difference is None else difference_json(found.difference),
            }
            for found in self.comparisons
        ]


def compare_runs(paths: Sequence[Path], page: Path, columns: CurveColumns | None = None) -> Compared:
    """Compare the first run with each of the others, and write a page.

    A sweep stands for its finished runs, and tables are read by their `columns`.

    Runs that differ in their seed alone are one kind: the first of each has its curve compared, and all of them the
    loss at the end.
    """
    runs, notes = _read(with_sweeps(paths), columns or CurveColumns())
    kinds = _kinds(runs)
    if len(runs) < 2:
        raise UserError("give at least two runs, or curves of tables: shoestring law compare RUN RUN")
    if len(kinds) < 2:
        kinds = [[run] for run in runs]
        notes.append("these runs differ in their seed alone")
    found = tuple(_compared(kinds[0], other) for other in kinds[1:])
    rows = _table(found)
    said = tuple(_sentence(pair) for pair in found)
    if any(pair.difference is None for pair in found) and any(isinstance(run, Trained) for run in runs):
        notes.append(ONE_SEED)
    figure = loss_by_flops([Curve(over_flops(run), name=_named(run, ", {}")) for run in runs])
    title = " against ".join(run.name for run in runs)
    write_comparison(page, title, " ".join(_verdict(pair) for pair in found), figure, rows)
    return Compared(found, rows, (*said, *notes))


def _kinds(runs: Sequence[Trained | TableCurve]) -> list[list[Trained | TableCurve]]:
    """Runs that are equal but for their seed together, in the order of the first ones."""
    found: dict[object, list[Trained | TableCurve]] = {}
    for run in runs:
        found.setdefault(run.setting if isinstance(run, Trained) and run.setting else id(run), []).append(run)
    return list(found.values())


def _compared(first: Sequence[Trained | TableCurve], second: Sequence[Trained | TableCurve]) -> Comparison:
    pair = compare(first[0], second[0])
    scored = [
        [run.scored or Scored(loss=run.loss) for run in kind if isinstance(run, Trained)] for kind in (first, second)
    ]
    return pair._replace(difference=difference(*scored)) if all(scored) else pair


def _verdict(pair: Comparison) -> str:
    if pair.difference is None:
        return pair.verdict
    return f"{pair.verdict} {pair.difference.sentence((pair.first.name, pair.second.name))}"


def _sentence(pair: Comparison) -> str:
    return f"{_named(pair.first, ' ({})')}, {_named(pair.second, ' ({})')}. {_verdict(pair)}"


def _read(paths: Sequence[Path], columns: CurveColumns) -> tuple[list[Trained | TableCurve], list[str]]:
    """The runs, that of the first path first, with notes; files are tables of one or more curves."""
    tables, folders = ([path for path in paths if path.is_file() == is_file] for is_file in (True, False))
    if not tables:
        if columns != CurveColumns():
            raise UserError(f"the names of columns are for tables, and {paths[0]} is none; run folders need none")
        if len(paths) < 2:
            return [], []
    runs, notes = read_all(folders, "total") if folders else ([], [])
    if not tables:
        return list(runs), notes
    from shoestring.studies.curves import read_curves  # needs numpy

    curves, said = read_curves(tables, columns)
    if runs:
        said.append("FLOPs of run folders are exact; those of tables are as given")
    first_is_table = paths[0].is_file()
    return [*curves, *runs] if first_is_table else [*runs, *curves], [*notes, *said]


def _named(run: Trained | TableCurve, form: str) -> str:
    """The name of a run, with its size in a form such as " ({})" where that is known."""
    if run.params is None or run.tokens is None:
        return run.name
    return run.name + form.format(f"{Count(run.params).short()} parameters, {Count(run.tokens).short()} tokens")


def _table(found: Sequence[Comparison]) -> tuple[tuple[str, ...], ...]:
    """Some of the points where each pair was compared, about evenly spaced, with the last one."""
    head = ("FLOPs", "run", "loss", "other", "loss", "difference")
    rows = []
    for pair in found:
        last = len(pair.rows) - 1
        for index in sorted({round(last * k / (_SHOWN - 1)) for k in range(_SHOWN)}):
            flops, x, y = pair.rows[index]
            names = (pair.first.name, f"{x:.4f}", pair.second.name, f"{y:.4f}")
            rows.append((Flops(flops).short(), *names, f"{y - x:+.4f}"))
    return (head, *rows)
