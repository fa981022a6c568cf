"""Profiles that are kept in the user's cache, by machine, versions and workload, so that nothing is measured twice."""

from __future__ import annotations

import contextlib
import datetime
import zlib
from dataclasses import replace
from functools import cache
from pathlib import Path

from shoestring.core.errors import RecordError, StorageError
from shoestring.core.files import cache_folder, make_folder
from shoestring.core.recipe import fingerprint
from shoestring.core.records import Machine, Profile
from shoestring.core.schema import encode
from shoestring.runs.task import Task

_DAYS = {"cuda": 30, "cpu": 1}
"""How long a cached profile is valid: a CPU is shared with everything else that runs."""


def cache_file(task: Task, machine: Machine, devices: int, real: bool) -> Path:
    """The path of a profile in the cache, by machine (with versions), code and workload; on real rows, by these too."""
    recipe = task.recipe
    memory = None if recipe.budget.memory is None else int(recipe.budget.memory)
    rows = [encode(recipe.data), encode(recipe.stream), recipe.run.seed, str(Path(recipe.data.folder).resolve())]
    key = [machine.fingerprint, code_fingerprint(), task.workload, memory, devices, real, rows if real else None]
    return cache_folder() / "profiles" / f"{fingerprint(key)}.json"


@cache
def code_fingerprint(folder: Path = Path(__file__).parents[1]) -> str:
    """Fingerprint of this package's code, which may change without a new version."""
    files = sorted(folder.rglob("*.py"))
    return fingerprint([[str(file.relative_to(folder)), zlib.crc32(file.read_bytes())] for file in files])


def read_cached(file: Path, thorough: bool, free: int | None) -> Profile | None:
    """The profile in `file`, if it is recent, as thorough as requested, and its largest batch fits the free bytes."""
    if not file.is_file():
        return None
    try:
        profile = Profile.read(file)
    except (RecordError, StorageError):  # of another version, or damaged: measured again
        return None
    if profile.date is None or (thorough and not profile.thorough):
        return None
    age = datetime.date.today() - datetime.date.fromisoformat(profile.date)
    model, peaks = profile.memory, [point.peak_bytes for point in profile.points if point.peak_bytes is not None]
    if age.days > _DAYS[profile.machine.device]:
        return None
    if free is None or model is None or not peaks:
        return profile
    largest = model.predict(model.largest) if model.largest is not None else max(peaks)
    return profile if free >= largest + model.margin_bytes else None


def keep(profile: Profile, file: Path) -> None:
    """Write a profile to the cache, without its corpus' density, where the folder can be written."""
    with contextlib.suppress(StorageError):
        make_folder(file.parent)
        replace(profile, density=None).write(file)
