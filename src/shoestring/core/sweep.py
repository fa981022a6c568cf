"""A sweep: the `[sweep]` table of a recipe, and the index of the runs that it makes.

The index says which runs there are, and never how they stand: that is read from the run folders.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from shoestring.core.errors import UserError
from shoestring.core.files import locked
from shoestring.core.schema import Between, Record, Text
from shoestring.core.units import Seconds

MOST_RUNS = 100_000
_INDEX = "index.json"

Values = dict[str, dict[str, tuple[Any, ...]]]
"""Values by section and field."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """Runs that differ in some fields; `shoestring sweep` makes them."""

    over: Annotated[Values, "values by field, as train.lr = [1e-3, 3e-3]: one run for each combination"] = field(
        default_factory=dict
    )
    zip: Annotated[Values, "values by field that go together: the first of each, the second of each, …"] = field(
        default_factory=dict
    )
    seeds: Annotated[int | None, Between(1, 10**6), "runs of each setting, with run.seed and the next ones"] = None
    time: Annotated[Seconds | None, Between(1e-3, 36500 * 86400), "wall clock of the whole sweep"] = None
    folder: Annotated[str, Text(4096), "folder that holds the folders of sweeps"] = "sweeps"


def by_field(values: Values) -> dict[str, tuple[Any, ...]]:
    """Values by "section.field"."""
    return {f"{section}.{name}": each for section, fields in values.items() for name, each in fields.items()}


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

    def lock(self) -> Any:
        """Be the only process that starts runs of this sweep."""
        return locked(self.lock_file, f"the sweep {self.path}")

    def recipe(self, name: str) -> Path:
        return self.recipes / f"{name}.toml"

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def run_path(self, run: SweepRun) -> Path:
        return self.path / run.folder


def sweep_runs(path: Path) -> Iterator[Path]:
    """The run folders of a sweep, or `path` itself where it is not the folder of a sweep."""
    folder = SweepFolder(path)
    if not folder.index.is_file():
        yield path
        return
    for run in SweepIndex.read(folder.index).runs:
        yield folder.run_path(run)
