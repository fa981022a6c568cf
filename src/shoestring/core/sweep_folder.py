"""The folder of a sweep, and the index in it.

The index says which runs there are, and never how they stand: that is read from the run folders.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from shoestring.core.errors import UserError
from shoestring.core.files import locked
from shoestring.core.run_folder import RunFolder
from shoestring.core.schema import Record

_INDEX = "index.json"


@dataclass(frozen=True, kw_only=True)
class SweepRun:
    """One run of a sweep."""

    name: str
    folder: str
    """Its run folder, relative to that of the sweep."""
    values: dict[str, Any]
    """By "section.field", of the fields in which the runs of the sweep differ; the seed is one of them."""


@dataclass(frozen=True, kw_only=True)
class SweepIndex(Record):
    """The runs of a sweep, in the order in which they start."""

    SCHEMA: ClassVar[str] = "shoestring.sweep/1"

    name: str
    fields: tuple[str, ...]
    """In which the runs differ, without the seed."""
    runs: tuple[SweepRun, ...]

    def contradictions(self) -> list[str]:
        names = [run.name for run in self.runs]
        return [] if len(set(names)) == len(names) else ["runs: two of them have the same name"]


class SweepFolder:
    """The paths of a sweep; only this class knows the names in it."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.index = self.path / _INDEX
        self.recipes = self.path / "recipes"
        """The recipe of each run."""
        self.logs = self.path / "logs"
        """What each run printed."""
        self.events = self.path / "events.jsonl"
        """What was forecast, started, promoted and ended, and when: the story of the sweep."""
        self.slurm = self.path / "slurm"
        """Scripts for Slurm."""
        self.jobs = self.slurm / "jobs.jsonl"
        """The jobs that were submitted, and which runs their tasks are."""
        self.table = self.path / "runs.csv"
        self.report = self.path / "report.html"

    @classmethod
    def open(cls, path: str | Path) -> SweepFolder:
        """The folder of an existing sweep."""
        folder = cls(path)
        if not folder.index.is_file():
            raise UserError(f"{path} is not the folder of a sweep: it has no {_INDEX}")
        return folder

    @property
    def lock_file(self) -> Path:
        """Held by the process that starts runs."""
        place = self.path.resolve()
        return place.with_name(f".{place.name}.lock")

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Be the only process that starts runs of this sweep."""
        return locked(self.lock_file, f"the sweep {self.path}")

    def recipe(self, name: str) -> Path:
        return self.recipes / f"{name}.toml"

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def run_path(self, run: SweepRun) -> Path:
        return self.path / run.folder


def with_sweeps(paths: Iterable[Path]) -> list[Path]:
    """The paths, with the finished runs of a sweep in place of its folder."""
    found: list[Path] = []
    for path in paths:
        folder = SweepFolder(path)
        if not folder.index.is_file():
            found.append(path)
            continue
        runs = [folder.run_path(run) for run in SweepIndex.read(folder.index).runs]
        done = [Path(os.path.normpath(run)) for run in runs if RunFolder(run).done.is_file()]
        if not done:
            raise UserError(f"{path}: no run of this sweep is finished; see shoestring sweep status {path}")
        found += done
    return found
