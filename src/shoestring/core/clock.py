"""Wall-clock budgets, counted from the start of the process or of its Slurm allocation, and the end of that."""

from __future__ import annotations

import contextlib
import datetime
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from shoestring.core.environment import slurm_job, waited

_IMPORTED = time.monotonic()
_PATIENCE = 10.0
"""Seconds to wait for Slurm's answer."""


def process_age() -> float:
    """Seconds since the start of this process, interpreter and imports included."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        return uptime - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):  # not Linux: count from the import of this module, slightly late
        return time.monotonic() - _IMPORTED


class Clock:
    """Seconds since a start that was `age` seconds ago: that of the process, or of its allocation if it says when.

    Monotonic: changes of the system's time do not affect it.

    Every instant belongs to one part of the session, so that the parts add up to the whole.
    """

    def __init__(self, age: float | None = None):
        self._start = time.monotonic() - (max(process_age(), waited()) if age is None else age)
        self._part, self._since = "start", 0.0
        self._parts: dict[str, float] = {}

    def elapsed(self) -> float:
        return time.monotonic() - self._start

    def begin(self, part: str) -> None:
        """Count the time from now on as `part`."""
        now = self.elapsed()
        self._parts[self._part] = self._parts.get(self._part, 0.0) + now - self._since
        self._part, self._since = part, now

    @contextlib.contextmanager
    def during(self, part: str) -> Iterator[None]:
        """Count the time of the block as `part`, and what follows as before."""
        before = self._part
        self.begin(part)
        try:
            yield
        finally:
            self.begin(before)

    def parts(self) -> dict[str, float]:
        """Seconds of every part so far, in order of their beginning; they add up to those elapsed."""
        self.begin(self._part)
        return dict(self._parts)


def allocation_end(clock: Clock, environment: Mapping[str, str] = os.environ) -> float | None:
    """The end of this process's Slurm allocation on `clock`; None outside an allocation, or without a limit."""
    job = slurm_job(environment)
    if job is None:
        return None
    end = _end_by_squeue(job.number, environment) if job.end is None else job.end
    # a job without a limit has no end, or one that is a year away
    return None if end is None else clock.elapsed() + end - time.time()


def _end_by_squeue(job: int, environment: Mapping[str, str]) -> float | None:
    """The end in seconds since 1970, from `squeue`; None: unknown or unlimited."""
    command = ["squeue", "--noheader", "--jobs", str(job), "--format", "%e"]
    iso = {**environment, "SLURM_TIME_FORMAT": "standard"}
    try:
        answer = subprocess.run(  # noqa: S603 - no shell reads the number of the job
            command, capture_output=True, text=True, timeout=_PATIENCE, check=True, env=iso
        )
        return datetime.datetime.fromisoformat(answer.stdout.split()[0]).timestamp()
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):  # no squeue, no answer, or NONE
        return None
