"""Profiles of this user, by machine, versions and workload: the same thing is not measured twice."""

from __future__ import annotations

import datetime
import os
import zlib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from shoestring.core.errors import RecordError, StorageError
from shoestring.core.facts import Machine, Profile
from shoestring.core.files import make_folder
from shoestring.core.recipe import Recipe, fingerprint
from shoestring.core.schema import encode

_DAYS = {"cuda": 30, "cpu": 1}
"""How long a profile holds: a CPU is shared with everything else that runs."""


def cache_folder() -> Path:
    """SHOESTRING_CACHE, or `shoestring` in the user's folder for what can be made again."""
    if own := os.environ.get("SHOESTRING_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "shoestring"


def cache_file(recipe: Recipe, machine: Machine, devices: int, real: bool) -> Path:
    """Where the profile belongs; the machine's fingerprint has the versions in it.

    One that was measured on the recipe's own rows belongs to these rows.
    """
    memory = None if recipe.budget.memory is None else int(recipe.budget.memory)
    rows = _rows(recipe) if real else None
    key = fingerprint([machine.fingerprint, code_fingerprint(), recipe.workload, memory, devices, real, rows])
    return cache_folder() / "profiles" / f"{key}.json"


def _rows(recipe: Recipe) -> list[Any]:
    """All that says which rows a recipe has, and where they lie."""
    return [encode(recipe.data), encode(recipe.stream), recipe.run.seed, str(Path(recipe.data.folder).resolve())]


@cache
def code_fingerprint(folder: Path = Path(__file__).parents[1]) -> str:
    """Of all of this package's code, as it trains and measures: it may change without a new version."""
    files = sorted(folder.rglob("*.py"))
    return fingerprint([[str(file.relative_to(folder)), zlib.crc32(file.read_bytes())] for file in files])


def read_cached(file: Path, thorough: bool, available_bytes: int | None) -> Profile | None:
    """The profile in `file`, if it holds: young, as thorough as asked for, and its batches fit what is free now."""
    if not file.is_file():
        return None
    try:
        profile = Profile.read(file)
    except (RecordError, StorageError):  # of another version, or damaged: measured again
        return None
    if thorough and not profile.thorough:
        return None
    return profile if _young(profile) and _fits(profile, available_bytes) else None


def _young(profile: Profile) -> bool:
    if profile.date is None:
        return False
    age = datetime.date.today() - datetime.date.fromisoformat(profile.date)
    return age.days <= _DAYS[profile.machine.device]


def _fits(profile: Profile, free: int | None) -> bool:
    """Whether the largest batch that the profile speaks of still fits what is free now, the margin included."""
    law, peaks = profile.memory, [point.peak_bytes for point in profile.points if point.peak_bytes is not None]
    if free is None or law is None or not peaks:
        return True
    largest = law.predict(law.largest) if law.largest is not None else max(peaks)
    return free >= largest + law.margin_bytes


def keep(profile: Profile, file: Path) -> bool:
    """Write it, without what belongs to a corpus; False where the folder cannot be written, which stops nothing."""
    try:
        make_folder(file.parent)
        replace(profile, density=None).write(file)
    except StorageError:
        return False
    return True
