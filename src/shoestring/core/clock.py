"""Wall-clock budgets, counted from the start of the process."""

from __future__ import annotations

import os
import time
from pathlib import Path

_IMPORTED = time.monotonic()


def process_age() -> float:
    """Seconds since this process was started, interpreter and imports included."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        return uptime - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):  # not Linux: count from this module's import, a little late
        return time.monotonic() - _IMPORTED


class Clock:
    """Seconds since a start that lies `age` seconds back. Monotonic: setting the system's time does not move it."""

    def __init__(self, age: float | None = None):
        self._start = time.monotonic() - (process_age() if age is None else age)
        self.marks: dict[str, float] = {}
        """When something was done, by its name."""

    def elapsed(self) -> float:
        return time.monotonic() - self._start

    def mark(self, name: str) -> None:
        self.marks[name] = self.elapsed()
