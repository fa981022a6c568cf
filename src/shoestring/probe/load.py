"""How busy other processes keep this machine's processors while something is timed."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

_STAT = Path("/proc/stat")
_IDLE = (3, 4)
"""Columns of a line of processors: idle, and waiting for a disk."""
_GUESTS = 8
"""Columns that count: what guests use is in the first ones too."""
_CROWDED = 0.25
"""Share of the threads' processors that others may use before the machine is called busy."""


class Load(NamedTuple):
    """Seconds until now: on the wall, of this process' threads, and of all processors that worked."""

    wall: float
    own: float
    all: float | None
    """None where the system does not report it."""


def load(stat: Path = _STAT, only: Collection[int] | None = None) -> Load:
    """The load now, of all processors or `only` of some."""
    return Load(time.perf_counter(), time.process_time(), _worked(stat, only))


def own_processors() -> Collection[int]:
    """Those that this process may use."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)


def _worked(stat: Path, only: Collection[int] | None) -> float | None:
    names = {"cpu"} if only is None else {f"cpu{number}" for number in only}
    try:
        lines = [line.split() for line in stat.read_text().splitlines() if line.startswith("cpu")]
        counts = [[int(word) for word in words[:_GUESTS]] for name, *words in lines if name in names]
        ticks = sum(sum(numbers) - sum(numbers[column] for column in _IDLE) for numbers in counts)
    except (OSError, ValueError, IndexError):
        return None
    return ticks / os.sysconf("SC_CLK_TCK") if len(counts) == len(names) else None


def used_by_others(before: Load, after: Load) -> float | None:
    """Processors that other processes used meanwhile, in the mean; None: unknown."""
    if before.all is None or after.all is None or after.wall <= before.wall:
        return None
    return max(0.0, after.all - before.all - (after.own - before.own)) / (after.wall - before.wall)


def crowded(others: float, threads: int, cores: int) -> bool:
    """Whether so many processors of others leave too few for the threads."""
    return others > max(0, cores - threads) + _CROWDED * threads
