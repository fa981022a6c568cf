"""The runs of a folder: found, watched, and told in numbers for a page."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shoestring.board.curves import By, Grid, RunCurves, as_json, span
from shoestring.board.folders import find, stamp
from shoestring.board.sweeps import WatchedSweep
from shoestring.core.choices import Choices
from shoestring.core.errors import UserError
from shoestring.core.reading import parse_toml, read_text
from shoestring.core.records import Machine, Plan, Profile
from shoestring.core.results import Evaluation, Outcome
from shoestring.core.run_folder import RunFolder
from shoestring.core.schema import Record
from shoestring.core.sweep_folder import SweepFolder
from shoestring.report.page import plan_against_actual, timeline_rows
from shoestring.report.samples import Written, texts_by_prompt
from shoestring.report.verdicts import live_verdicts

_FRESH = 120.0
"""Seconds without a line after which a run on another host no longer counts as running."""
_JUDGED_EVERY = 10.0
"""Seconds between two verdicts on a run that trains; one takes up to 40 ms."""
_RUN_FILES = ("recipe", "plan", "profile", "machine", "metrics", "timings", "samples", "evaluation", "done", "choices")


class WatchedRun:
    """One run; `refresh` reads what has changed in its folder."""

    def __init__(self, name: str, folder: RunFolder):
        self.name, self.folder = name, folder
        self.curves = RunCurves(folder.metrics, folder.timings)
        self.version = 0
        self.row: dict[str, Any] = {}
        self._seen: dict[str, Any] = {}
        self._records: dict[str, tuple[tuple[int, int, int] | None, Any]] = {}
        self._verdicts: list[dict[str, Any]] = []
        self._judged = -_JUDGED_EVERY
        self.lock = threading.Lock()

    def refresh(self, version: int, light: bool = False) -> bool:
        """Whether its row has changed, which then has this version; a `light` one has no lines read for it."""
        with self.lock:
            stamps: dict[str, Any] = {name: stamp(getattr(self.folder, name)) for name in _RUN_FILES}
            stamps["held"] = self.folder.is_held
            row = self._row(stamps != self._seen, light)
            self._seen = {} if light else stamps
            if row == self.row:
                return False
            self.row, self.version = row, version
            return True

    def read_curves(self) -> RunCurves:
        with self.lock:
            self.curves.read()
        return self.curves

    def record(self, kind: type[Record], name: str) -> Any:
        """A record of the run, read again when its file changes; None: it is not there."""
        path: Path = getattr(self.folder, name)
        now = stamp(path)
        if self._records.get(name, (0, None))[0] != now or now is None:
            self._records[name] = now, None if now is None else kind.read(path)
        return self._records[name][1]

    def _row(self, changed: bool, light: bool) -> dict[str, Any]:
        if not changed and self.row and self.row["state"] != "running":
            return self.row
        problems: list[str] = []
        outcome, plan = self._try(Outcome, "done", problems), self._try(Plan, "plan", problems)
        recipe = self.recipe(problems)
        unit = "epoch" if "hmm" in recipe else "step"
        row: dict[str, Any] = {
            "name": self.name,
            "unit": unit,
            "family": "hmm" if "hmm" in recipe else recipe.get("model", {}).get("family"),
            "planned_seconds": None if plan is None else plan.seconds,
            "problems": problems,
        }
        if outcome is not None:
            return row | _finished(outcome, unit)
        if not light:
            self.curves.read()
        if self.curves.damaged:
            problems.append(f"{self.curves.damaged} lines of metrics or timings cannot be read, and are left out")
        state = "reading" if light else self._state(plan is not None)
        if state == "running" and time.monotonic() - self._judged > _JUDGED_EVERY:
            self._judge(recipe, unit)
        return row | self._unfinished(state, plan, unit) | {"verdicts": self._verdicts}

    def _try(self, kind: type[Record], name: str, problems: list[str]) -> Any:
        try:
            return self.record(kind, name)
        except UserError as cause:
            problems.append(str(cause))
            return None

    def recipe(self, problems: list[str] | None = None) -> dict[str, Any]:
        """The tables of recipe.toml as they are: nothing that a recipe names is loaded."""
        try:
            return parse_toml(read_text(self.folder.recipe), self.folder.recipe)
        except UserError as cause:
            if problems is not None:
                problems.append(str(cause))
            return {}

    def _judge(self, recipe: dict[str, Any], unit: str) -> None:
        clip = recipe.get("train", {}).get("clip")
        largest = clip if isinstance(clip, (int, float)) else None
        found = live_verdicts(self.curves.curve, largest, unit, counted=self.curves.counted)
        self._verdicts, self._judged = [asdict(verdict) for verdict in found], time.monotonic()

    def _state(self, planned: bool) -> str:
        held = self.folder.is_held
        if held is None:  # on another host
            held = self._age() < _FRESH
        if held:
            return "running" if self.curves.step or self.curves.seconds else "preparing"
        if not self.curves.step and not self.curves.seconds:
            return "planned" if planned else "new"
        return "stopped" if self.curves.event == "stopped" else "died"

    def _age(self) -> float:
        """Seconds since the last line was written."""
        try:
            return time.time() - self.folder.timings.stat().st_mtime
        except OSError:
            return float("inf")

    def _unfinished(self, state: str, plan: Plan | None, unit: str) -> dict[str, Any]:
        curves, planned = self.curves, None if plan is None else plan.steps
        if unit == "epoch" and plan is not None and plan.epochs:
            planned = round(plan.epochs)
        total = planned if unit == "epoch" else curves.total or planned
        each, best = curves.step_seconds(), curves.best
        left = None
        if total and each is not None and plan is not None:
            rest = sum(plan.parts.get(part, 0.0) for part in ("finish", "baselines", "last checkpoint"))
            left = max(0, total - curves.step) * each + rest
        expected = None if left is None else curves.seconds + left
        return {
            "state": state,
            "step": curves.step,
            "total": total,
            "seconds": curves.seconds,
            "seconds_left": left if state == "running" else None,
            "expected_seconds": expected,
            "tokens": curves.tokens,
            "rate": curves.rate,
            "loss": None if best is None else best.loss,
            "loss_error": None if best is None else best.error,
            "forecast": None if curves.forecast is None else asdict(curves.forecast),
        }

    def flops_per_token(self) -> float | None:
        profile = self._try(Profile, "profile", [])
        return None if profile is None else float(profile.cost.train_flops_per_token)

    def details(self) -> dict[str, Any]:
        """Everything about the run that its row does not say."""
        problems: list[str] = []
        with self.lock:
            outcome, plan = self._try(Outcome, "done", problems), self._try(Plan, "plan", problems)
            if outcome is None:
                self._judge(self.recipe(), self.row.get("unit", "step"))
                self.row = self.row | {"verdicts": self._verdicts}
            machine, evaluation = self._try(Machine, "machine", problems), self._try(Evaluation, "evaluation", problems)
            texts = self._texts(problems)
            compared = [] if plan is None or outcome is None else plan_against_actual(plan, outcome)
            return {
                "row": self.row,
                "against": compared,
                "plan": [] if plan is None else [(line.quantity, line.value, line.reason) for line in plan.lines],
                "timeline": [] if outcome is None else timeline_rows(outcome),
                "samples": [[text._asdict() for text in prompt] for prompt in texts],
                "machine": None if machine is None else asdict(machine),
                "baselines": {} if evaluation is None else evaluation.baselines,
                "recipe": self._try_text(problems),
                "problems": problems,
            }

    def _texts(self, problems: list[str]) -> list[list[Written]]:
        try:
            return texts_by_prompt(self.folder)
        except UserError as cause:
            problems.append(str(cause))
            return []

    def _try_text(self, problems: list[str]) -> str:
        try:
            return read_text(self.folder.recipe)
        except UserError as cause:
            problems.append(str(cause))
            return ""

    def fields(self) -> dict[str, Any]:
        """Every field of its recipe as "section.field", with what was chosen for those that are "auto"."""
        found = {
            f"{section}.{name}": value
            for section, table in self.recipe().items()
            for name, value in (table.items() if isinstance(table, dict) else ((section, table),))
        }
        choices = self._try(Choices, "choices", [])
        chosen = {} if choices is None else {choice.field: choice.value for choice in choices.chosen}
        return found | {name: f"{value:.4g} (auto)" for name, value in chosen.items()}


def _finished(outcome: Outcome, unit: str) -> dict[str, Any]:
    return {
        "state": "done",
        "step": outcome.steps,
        "total": outcome.steps,
        "seconds": outcome.seconds,
        "seconds_left": None,
        "expected_seconds": outcome.seconds,
        "tokens": outcome.tokens,
        "rate": outcome.tokens_per_second,
        "loss": outcome.loss,
        "loss_error": None,
        "forecast": None if outcome.forecast is None else asdict(outcome.forecast),
        "verdicts": [asdict(verdict) for verdict in outcome.verdicts],
        "unit": "update" if unit == "epoch" else unit,
    }


class Board:
    """All runs and sweeps below a folder, and the sweeps beside it that have runs there."""

    def __init__(self, folder: Path, give_way: Callable[[], None] = lambda: None):
        """`give_way` is called before the lines of each run are read, and may wait."""
        self.folder, self._give_way = folder, give_way
        self.runs: dict[str, WatchedRun] = {}
        self.sweeps: dict[str, WatchedSweep] = {}
        self.version = 0
        self.gone: list[tuple[int, str]] = []
        """(version, name) of runs whose folders were removed."""
        self._lock = threading.Lock()

    def refresh(self) -> None:
        """Find new runs, and read what has changed. The first time, records alone: lines take longer."""
        with self._lock:
            there, light = list(find(self.folder)), not self.version
            found = {name: path for kind, name, path in there if kind == "run"}
            self.version = max(1, self.version)
            for name in [name for name in self.runs if name not in found]:
                del self.runs[name]
                self.gone.append((self.version + 1, name))
                self.version += 1
            for name, path in found.items():
                run = self.runs.get(name) or WatchedRun(name, RunFolder(path))
                if not light:
                    self._give_way()
                changed = run.refresh(self.version + 1, light)
                self.runs[name] = run
                self.version += changed
            self._refresh_sweeps({name: path for kind, name, path in there if kind == "sweep"})

    def _refresh_sweeps(self, found: dict[str, Path]) -> None:
        sweeps = {name: self.sweeps.get(name) or WatchedSweep(name, SweepFolder(path)) for name, path in found.items()}
        changed = [sweep.refresh() for sweep in sweeps.values()]
        if any(changed) or sweeps.keys() != self.sweeps.keys():
            self.version += 1
        self.sweeps = sweeps

    def rows_by_folder(self) -> dict[str, dict[str, Any]]:
        """The row of every run by the path of its folder, by which a sweep knows it."""
        return {os.path.realpath(run.folder.path): run.row for run in list(self.runs.values())}

    def sweep_rows(self) -> list[dict[str, Any]]:
        """A line for each sweep that has a run here, or has none yet."""
        rows, here = self.rows_by_folder(), os.path.join(os.path.realpath(self.folder), "")
        return [
            sweep.summary(rows)
            for sweep in self.sweeps.values()
            if any(place.startswith(here) for place in sweep.places().values()) or sweep.problem
        ]

    def rows(self, since: int = 0) -> list[dict[str, Any]]:
        """The rows that have changed after a version."""
        return [run.row for run in list(self.runs.values()) if run.version > since]

    def removed(self, since: int) -> list[str]:
        return [name for version, name in self.gone if version > since]

    def curves(
        self,
        names: list[str],
        by: By,
        *,
        log: bool = False,
        smooth: float = 0.0,
        ends: tuple[float, float] | None = None,
        buckets: int = 500,
    ) -> dict[str, Any]:
        """The curves of some runs at places that they share, between `ends` or all of them."""
        runs = [self.runs[name] for name in names]
        found = [run.read_curves().points(by, run.flops_per_token(), smooth) for run in runs]
        low, high = ends or span([curve for both in found for curve in both.values()], log)
        grid = Grid(low, high, buckets, log)
        return {
            "x": grid.x.tolist(),
            "runs": [
                {"name": run.name} | {kind: as_json(grid.extremes(points)) for kind, points in both.items()}
                for run, both in zip(runs, found)
            ],
        }


def compare_fields(first: WatchedRun, second: WatchedRun) -> list[tuple[str, str, str]]:
    """(field, value, value) of every field in which two recipes differ."""
    one, other = first.fields(), second.fields()
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    return [(name, _shown(one.get(name)), _shown(other.get(name))) for name in names]


def _shown(value: Any) -> str:
    return "" if value is None else str(value)
