"""The report of a sweep: its tables, figures and page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from shoestring.core.errors import UserError
from shoestring.core.sweep_folder import SweepFolder
from shoestring.core.units import Seconds, counted
from shoestring.report.scores import with_error
from shoestring.report.sweep_figures import Cell, Line, curves, heat_map, parallel
from shoestring.report.sweep_page import write_sweep_page
from shoestring.studies.sweep.results import HIGHER, Report, Row, Setting, columns_of
from shoestring.track import read_lines

_MOST_LINES = 200
"""Settings in a figure, the best ones."""
_SHOWN = ("loss", "seconds", "planned_seconds", "tokens", "parameters", "tokens_per_second", "peak_bytes")
"""Results in the table of the page; the CSV file has all of them."""


def setting_table(report: Report) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The head and the rows of the settings, best first."""
    fields = [field for field in columns_of(report) if field in report.settings[0].values] if report.settings else []
    seeds = any(len(setting.rows) > 1 for setting in report.settings)
    head = (*fields, report.by, *(("seeds",) if seeds else ()), "time", "state")
    rows = []
    for setting in report.settings:
        mean = "" if setting.mean is None else with_error(setting.mean, setting.error)
        took = [row.results["seconds"] for row in setting.rows if row.results["seconds"] is not None]
        known = sum(row.results[report.by] is not None for row in setting.rows)
        rows.append(
            (
                *(_cell(setting.values.get(field)) for field in fields),
                mean,
                *((str(known),) if seeds else ()),
                Seconds(sum(filter(None, took))).short() if took else "",
                ", ".join(f"{count} {state}" for state, count in Counter(row.state for row in setting.rows).items())
                if len(setting.rows) > 1
                else setting.rows[0].state,
            )
        )
    return head, rows


def run_table(report: Report) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The head and the rows of all runs, best first."""
    fields = columns_of(report)
    names = dict.fromkeys((report.by, *report.asked, *_SHOWN))
    shown = [name for name in names if name in report.asked or any(row.results[name] for row in report.rows)]
    rows = [
        (
            row.name,
            *(_cell(row.values.get(field)) for field in fields),
            *(_number(row.results[name]) for name in shown),
            row.state,
        )
        for row in report.rows
    ]
    return ("run", *fields, *shown, "state"), rows


def _cell(value: Any) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.5g}"


def heat_cells(report: Report, x: str, y: str) -> list[Cell]:
    """The best setting for each pair of values, over all other fields."""
    best: dict[tuple[str, str], Setting] = {}
    for setting in reversed(report.settings):  # the best one last
        best[repr(setting.values.get(x)), repr(setting.values.get(y))] = setting
    return [Cell(setting.values.get(x), setting.values.get(y), setting.mean) for setting in best.values()]


def figures_of(report: Report, heat: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """The figures by title; `heat` names the two fields of the heat map, by default the first two that are swept."""
    found: dict[str, dict[str, Any]] = {}
    known = [setting for setting in report.settings if setting.mean is not None][:_MOST_LINES]
    fields = [field for field in report.fields if len({repr(setting.values[field]) for setting in known}) > 1]
    if heat and (wrong := [field for field in heat if field not in report.fields]):
        raise UserError(f"--heat {','.join(heat)}: {wrong[0]} is not swept; swept are {', '.join(report.fields)}")
    x, y = heat or (fields[:2] if len(fields) > 1 else (None, None))
    if known and x is not None and y is not None:
        others = "" if len(report.fields) < 3 else ", the best over the other fields"
        found[f"{report.by} over {x} and {y}{others}"] = heat_map(heat_cells(report, x, y), x, y, report.by)
    lines = [_line(row, setting, fields) for setting in known for row in setting.rows if len(row.curve) > 1]
    if lines:
        found[f"Held-out loss against {report.against}"] = curves(lines, report.against, (fields or ["run"])[0])
    if len(fields) > 1 and len(known) > 2:
        values = [{**setting.values, report.by: setting.mean} for setting in known]
        found["All fields"] = parallel(values, fields, report.by)
    return found


def _line(row: Row, setting: Setting, fields: Sequence[str]) -> Line:
    return Line(row.name, setting.values[fields[0]] if fields else row.name, row.curve)


def summary(report: Report, folder: SweepFolder) -> str:
    """What came of the sweep in two sentences, with its time beside the forecast."""
    states = Counter(row.state for row in report.rows)
    said = f"{counted(len(report.rows), 'run')}: {', '.join(f'{count} {state}' for state, count in states.items())}."
    if report.settings and (best := report.settings[0]).mean is not None:
        where = ", ".join(f"{field} = {_cell(value)}" for field, value in best.values.items() if field in report.fields)
        which = "highest" if report.by in HIGHER else "lowest"
        said += f" The {which} {report.by} is {with_error(best.mean, best.error)}{f', with {where}' if where else ''}."
    return f"{said} {times(folder)}".strip()


def times(folder: SweepFolder) -> str:
    """The time of the last session of a sweep that ended, beside what was said before it; nothing if there is none."""
    begun: dict[str, Any] = {}
    said = ""
    for line in read_lines(folder.events):
        if line["event"] == "begun":
            begun = line
        elif line["event"] == "finished" and begun.get("runs") and begun["seconds"]:
            actual, planned = line["seconds"], begun["seconds"]
            said = (
                f"{counted(begun['runs'], 'run')} took {Seconds(actual).short()}; {Seconds(planned).short()} were "
                f"forecast ({actual / planned - 1:+.1%})."
            )
    return said


def write_report(report: Report, folder: SweepFolder, heat: Sequence[str] = ()) -> None:
    """Write the page."""
    tables = {"Settings, best first": setting_table(report), "Runs": run_table(report)}
    write_sweep_page(folder.report, report.name, summary(report, folder), tables, figures_of(report, heat))
