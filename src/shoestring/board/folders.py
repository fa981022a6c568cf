"""Runs and sweeps below a folder, and whether a file has changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from shoestring.core.run_folder import RunFolder
from shoestring.core.sweep_folder import SweepFolder

DEPTH = 3
"""Folders below the given one in which runs and sweeps are looked for."""
BESIDE = "sweeps"
"""The folder beside that of the runs in which sweeps are by default."""
Kind = Literal["run", "sweep"]


def find(folder: Path) -> Iterator[tuple[Kind, str, Path]]:
    """Every run and sweep below the folder, or the folder itself, and the sweeps beside it.

    The name of one is its path below the folder; of a sweep beside it, its path below the folder that holds both.
    """
    if (kind := _kind(folder)) is not None:
        yield kind, folder.resolve().name, folder
    else:
        yield from ((kind, str(path.relative_to(folder)), path) for kind, path in _below(folder, DEPTH))
    beside = folder.resolve().parent / BESIDE
    if beside != folder.resolve():
        found = (path for kind, path in _below(beside, DEPTH) if kind == "sweep")
        yield from (("sweep", str(path.relative_to(beside.parent)), path) for path in found)


def _below(folder: Path, depth: int) -> Iterator[tuple[Kind, Path]]:
    try:
        inner = sorted(path for path in folder.iterdir() if not path.name.startswith(".") and path.is_dir())
    except OSError:
        return
    for path in inner:
        if (kind := _kind(path)) is not None:
            yield kind, path
        elif depth > 1:
            yield from _below(path, depth - 1)


def _kind(path: Path) -> Kind | None:
    if RunFolder(path).recipe.is_file():
        return "run"
    return "sweep" if SweepFolder(path).index.is_file() else None


def stamp(path: Path) -> tuple[int, int, int] | None:
    """What differs when a file was written; None: it is not there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
