"""What came of the runs of a sweep: a row for each, means over seeds, and curves."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from shoestring.core.errors import MissingExtra, ShoestringError, UserError, nearest
from shoestring.core.files import whole_file, write_whole
from shoestring.core.numeric import interpolate
from shoestring.core.recipe import Recipe
from shoestring.core.records import Profile
from shoestring.core.results import Evaluation
from shoestring.core.run_folder import RunFolder
from shoestring.core.sweep_folder import SweepFolder, SweepIndex
from shoestring.studies.sweep.grid import SEED
from shoestring.studies.sweep.states import Standing, standings
from shoestring.track import read_lines

Against = Literal["tokens", "seconds", "flops"]
_OUTCOME = ("seconds", "steps", "tokens", "predictions", "tokens_per_second", "peak_bytes", "disk_bytes")
_EVALUATION = ("loss_error", "perplexity", "bits_per_byte", "accuracy", "macro_f1")
RESULTS = ("loss", *_EVALUATION, *_OUTCOME, "planned_seconds", "parameters", "flops")
"""What a row has besides the fields of the recipe; None: not known, or the run is not done."""
HIGHER = ("accuracy", "macro_f1", "tokens_per_second")
"""Results of which more is better."""
POINTS = 120
"""Of a curve, at most: a figure shows no more."""

Places = list[tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Row:
    """A run with its values and results."""

    name: str
    state: str
    values: dict[str, Any]
    """By field: those that are swept, then others that were asked for."""
    results: dict[str, float | None]
    curve: Places
    """(tokens, seconds or FLOPs; held-out loss)."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Runs that differ in their seed alone."""

    values: dict[str, Any]
    rows: tuple[Row, ...]
    mean: float | None
    """Of what the report is sorted by; None: no run has it."""
    error: float | None
    """Its standard error over the seeds; None: there are fewer than two."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """All runs of a sweep, and its settings, both best first."""

    name: str
    fields: tuple[str, ...]
    by: str
    against: Against
    rows: tuple[Row, ...]
    settings: tuple[Setting, ...]
    asked: tuple[str, ...] = ()
    """Results that the table of runs has besides the usual ones."""


def read_report(
    folder: SweepFolder, by: str = "loss", columns: Sequence[str] = (), against: Against = "tokens"
) -> Report:
    """Read the runs of a sweep. `columns` are more fields of the recipe, or results; the best by `by` comes first."""
    if by not in RESULTS:
        raise UserError(f"--by {by}: not a result; {nearest(by, list(RESULTS))}")
    fields = [name for name in columns if name not in RESULTS]
    for name in fields:
        _check_field(name)
    index = SweepIndex.read(folder.index)
    rows = [_row(folder, each, fields, against) for each in standings(folder, index)]
    return replace(make_report(index, rows, by, against), asked=tuple(name for name in columns if name in RESULTS))


def make_report(index: SweepIndex, rows: Sequence[Row], by: str, against: Against = "tokens") -> Report:
    """The rows and their settings, best first by the result `by`."""
    settings = [_setting(found, by) for found in _by_setting(rows, index.fields)]
    ordered = sorted(rows, key=lambda row: _rank(row.results[by], by))
    best = sorted(settings, key=lambda setting: _rank(setting.mean, by))
    return Report(
        name=index.name,
        fields=index.fields,
        by=by,
        against=against,
        rows=tuple(ordered),
        settings=tuple(best),
    )


def _check_field(name: str) -> None:
    section, _, field = name.partition(".")
    try:
        Recipe().value(name)
    except AttributeError as cause:
        if section in Recipe.__dataclass_fields__ and getattr(Recipe(), section) is None and field:
            return  # of a section that not every recipe has
        raise UserError(f"--columns {name}: must be a field of a recipe, such as model.width, or a result") from cause


def _rank(value: float | None, by: str) -> tuple[bool, float]:
    return value is None, 0.0 if value is None else -value if by in HIGHER else value


def _row(folder: SweepFolder, now: Standing, columns: Sequence[str], against: Against) -> Row:
    own = RunFolder(folder.run_path(now.run))
    results: dict[str, float | None] = dict.fromkeys(RESULTS)
    results["loss"], curve = now.loss, []
    values = dict(now.run.values)
    if now.state != "changed" and own.path.is_dir():
        try:
            recipe = own.read_recipe() if columns else None
            values |= {name: _value(recipe, name) for name in columns}
            curve = _results(results, own, now, against)
        except ShoestringError as cause:  # a record that cannot be read
            return Row(name=now.run.name, state=f"damaged: {cause}", values=values, results=results, curve=[])
    return Row(name=now.run.name, state=now.state, values=values, results=results, curve=curve)


def _value(recipe: Recipe | None, name: str) -> Any:
    try:
        return None if recipe is None else recipe.value(name)
    except AttributeError:  # it has no such section
        return None


def _results(results: dict[str, float | None], own: RunFolder, now: Standing, against: Against) -> Places:
    """Fill in the results of a run; returns its curve."""
    if now.outcome is not None:
        results |= {name: getattr(now.outcome, name) for name in _OUTCOME}
        evaluation = Evaluation.read_if_there(own.evaluation)
        results |= {name: getattr(evaluation, name, None) for name in _EVALUATION}
    results["planned_seconds"] = None if now.plan is None else now.plan.seconds
    per_token = None
    if (profile := Profile.read_if_there(own.profile)) is not None:
        results["parameters"] = profile.cost.total_parameters
        per_token = profile.cost.train_flops_per_token
        if now.outcome is not None:
            results["flops"] = now.outcome.tokens * per_token
    return _curve(own, per_token, against)


def _curve(own: RunFolder, per_token: float | None, against: Against) -> Places:
    """Held-out loss by tokens, by seconds or by FLOPs; thinned to what a figure shows."""
    scored = [(line["step"], line["heldout_loss"]) for line in thin_lines(own.metrics, b'"heldout_loss"')]
    if against == "seconds":
        known = _elapsed(read_lines(own.timings))
    else:
        known = {0: 0.0} | {line["step"]: line["tokens"] for line in thin_lines(own.metrics, b'"tokens"')}
    factor = per_token if against == "flops" else 1.0
    if factor is None or len(known) < 2:
        return []
    ascending = sorted(known.items())
    return [(factor * interpolate(ascending, step), loss) for step, loss in scored]


def _elapsed(lines: Sequence[dict[str, Any]]) -> dict[int, float]:
    """Seconds by step, over all sessions; steps that were taken again count twice, as they did."""
    found, before, last = {0: 0.0}, 0.0, 0.0
    for line in lines:
        if line.get("event") == "start":
            before += last
        last = float(line.get("elapsed", last))
        found[int(line.get("step", 0))] = before + last
    return found


def thin_lines(path: Path, mark: bytes) -> list[dict[str, Any]]:
    """About `POINTS` of the lines that have `mark` in them, evenly spaced, with the first and the last.

    The others are not parsed: of a long run that would take most of the time.
    """
    try:
        lines = [line for line in path.read_bytes().split(b"\n")[:-1] if mark in line]
        if len(lines) > POINTS:
            step = (len(lines) - 1) / (POINTS - 1)
            lines = [lines[round(number * step)] for number in range(POINTS)]
        return list(map(json.loads, lines))
    except FileNotFoundError:
        return []
    except ValueError:
        return read_lines(path)  # which names the line


def _by_setting(rows: Sequence[Row], fields: Sequence[str]) -> list[list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(repr([row.values.get(field) for field in fields]), []).append(row)
    return list(found.values())


def _setting(rows: Sequence[Row], by: str) -> Setting:
    known = [value for row in rows if (value := row.results[by]) is not None]
    values = {field: value for field, value in rows[0].values.items() if field != SEED}
    error = stdev(known) / math.sqrt(len(known)) if len(known) > 1 else None
    return Setting(values=values, rows=tuple(rows), mean=fmean(known) if known else None, error=error)


def columns_of(report: Report) -> tuple[str, ...]:
    """The fields of its rows."""
    return tuple(dict.fromkeys(field for row in report.rows for field in row.values))


def write_csv(report: Report, file: Path) -> None:
    """Every run with its values and results, best first."""
    text = io.StringIO()
    fields = columns_of(report)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("run", "state", *fields, *RESULTS))
    for row in report.rows:
        cells = [row.values.get(field) for field in fields] + [row.results[name] for name in RESULTS]
        writer.writerow((row.name, row.state, *("" if cell is None else cell for cell in cells)))
    write_whole(file, text.getvalue())


def write_parquet(report: Report, file: Path) -> None:
    """The same as Parquet; values of a field that are of several types are texts."""
    try:
        import pyarrow  # type: ignore[import-untyped]
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError as cause:
        raise MissingExtra("--parquet", "pyarrow", "data") from cause
    table: dict[str, Any] = {
        "run": [row.name for row in report.rows],
        "state": [row.state for row in report.rows],
    }
    for field in columns_of(report):
        table[field] = _alike([row.values.get(field) for row in report.rows])
    for name in RESULTS:
        table[name] = pyarrow.array([row.results[name] for row in report.rows], pyarrow.float64())
    with whole_file(file) as target:
        pyarrow.parquet.write_table(pyarrow.table(table), target)


def _alike(values: list[Any]) -> list[Any]:
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} and kinds:
        return values if kinds == {int} else [None if value is None else float(value) for value in values]
    if kinds in ({bool}, {str}):
        return values
    return [None if value is None else str(value) for value in values]
