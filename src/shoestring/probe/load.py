"""How busy other processes keep this machine's processors while something is timed."""

from __future__ import annotations

import os
import time
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


def load(stat: Path = _STAT) -> Load:
    return Load(time.perf_counter(), time.process_time(), _worked(stat))


def _worked(stat: Path) -> float | None:
    try:
        numbers = [int(word) for word in stat.read_text().splitlines()[0].split()[1:]][:_GUESTS]
        return (sum(numbers) - sum(numbers[column] for column in _IDLE)) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def used_by_others(before: Load, after: Load) -> float | None:
    """Processors that other processes used meanwhile, in the mean; None: unknown."""
    if before.all is None or after.all is None or after.wall <= before.wall:
        return None
    return max(0.0, after.all - before.all - (after.own - before.own)) / (after.wall - before.wall)


def crowded(others: float, threads: int, cores: int) -> bool:
    """Whether so many processors of others leave too few for the threads."""
    return others > max(0, cores - threads) + _CROWDED * threads
