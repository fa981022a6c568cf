"""The sweeps of a folder: which runs they have, and what has come of their settings so far."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shoestring.board.folders import stamp
from shoestring.core.errors import UserError
from shoestring.core.sweep_folder import SweepFolder, SweepIndex, SweepRun
from shoestring.studies.sweep.results import HIGHER, Report, Row, Setting, make_report

RESULTS = {"loss": "loss", "forecast": "forecast", "seconds": "seconds", "tokens_per_second": "rate"}
"""What settings can be sorted by, and where the row of a run has it."""


class WatchedSweep:
    """One sweep; its index is read again when the file changes."""

    def __init__(self, name: str, folder: SweepFolder):
        self.name, self.folder = name, folder
        self.index: SweepIndex | None = None
        self.problem: str | None = None
        self._stamp: object = None

    def refresh(self) -> bool:
        """Whether it has changed: what its index says of its runs, not what became of them."""
        now = stamp(self.folder.index)
        if now == self._stamp:
            return False
        self._stamp, self.problem = now, None
        try:
            self.index = SweepIndex.read(self.folder.index)
        except UserError as cause:
            self.index, self.problem = None, str(cause)
        return True

    def places(self) -> dict[str, str]:
        """The folder of every run, by its name in the sweep."""
        runs = () if self.index is None else self.index.runs
        return {run.name: os.path.realpath(self.folder.run_path(run)) for run in runs}

    def summary(self, rows: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """Its line in a list; `rows` are those of the runs, by their folders."""
        found = self.report(rows, "loss")
        best = None if found is None or not found.settings else found.settings[0]
        return {
            "name": self.name,
            "fields": [] if found is None else list(found.fields),
            "states": {} if found is None else dict(Counter(row.state for row in found.rows)),
            "runs": 0 if found is None else len(found.rows),
            "best": None if best is None else _setting(best),
            "problem": self.problem,
        }

    def details(self, rows: Mapping[str, dict[str, Any]], by: str) -> dict[str, Any]:
        """Its settings, best first, each with its runs by their names on the board."""
        found, places = self.report(rows, by), self.places()
        settings = [] if found is None else [_setting(each) for each in found.settings]
        for setting in settings:
            known = [rows.get(places[name]) for name in setting["runs"]]
            setting["shown"] = [row["name"] for row in known if row is not None]
        return self.summary(rows) | {"by": by, "higher": by in HIGHER, "settings": settings}

    def report(self, rows: Mapping[str, dict[str, Any]], by: str) -> Report | None:
        """What is known of its runs; None: its index cannot be read."""
        if self.index is None:
            return None
        places, index = self.places(), self.index
        found = [_row(run, rows.get(places[run.name])) for run in index.runs]
        ended = {_values(row, index) for row in found if row.state == "done"}
        counted = [row if row.state == "done" or _values(row, index) not in ended else _uncounted(row) for row in found]
        return make_report(index, counted, by)


def _row(run: SweepRun, row: dict[str, Any] | None) -> Row:
    """A run of a sweep with what the board knows of it; None: it has no folder yet."""
    results: dict[str, float | None] = {name: None if row is None else row.get(key) for name, key in RESULTS.items()}
    if row is not None and row.get("forecast") is not None:
        results["forecast"] = row["forecast"]["loss"]
    state = "waiting" if row is None else row.get("state", "reading")
    return Row(name=run.name, state=state, values=dict(run.values), results=results, curve=[])


def _values(row: Row, index: SweepIndex) -> str:
    """What the setting of a run is known by."""
    return repr([row.values.get(field) for field in index.fields])


def _uncounted(row: Row) -> Row:
    """The row of a run that is still on its way, where others of its setting are done: its loss so far says nothing."""
    return replace(row, results=dict.fromkeys(row.results))


def _setting(setting: Setting) -> dict[str, Any]:
    return {
        "values": {field: _plain(value) for field, value in setting.values.items()},
        "mean": setting.mean,
        "error": setting.error,
        "states": dict(Counter(row.state for row in setting.rows)),
        "runs": [row.name for row in setting.rows],
    }


def _plain(value: Any) -> Any:
    """A value of a recipe for a page: a number, or a text."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
