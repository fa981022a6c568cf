"""The jobs of a sweep that Slurm has: which run each task is, and how it stands."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shoestring.core.sweep_folder import SweepFolder
from shoestring.track import read_lines

_PATIENCE = 30.0
"""Seconds to wait for Slurm."""


class Task(NamedTuple):
    """A task in Slurm's queue."""

    number: str
    """As 12_3."""
    state: str
    """In Slurm's words, as PENDING."""
    reason: str
    """Why it waits."""

    def __str__(self) -> str:
        why = "" if self.reason in ("", "None") else f" ({self.reason})"
        return f"job {self.number}: {self.state.lower()}{why}"


@dataclass(frozen=True)
class Queue:
    """What of a sweep is in Slurm's queue."""

    jobs: tuple[str, ...] = ()
    runs: Mapping[str, Task] = field(default_factory=dict)
    """By the name of the run."""
    others: tuple[str, ...] = ()
    """Jobs that prepare or report, for people."""


def queue(folder: SweepFolder) -> Queue:
    """Ask Slurm for the jobs of a sweep; nothing where none was submitted, or there is no Slurm here."""
    submitted = {str(line["job"]): line for line in read_lines(folder.jobs)} if folder.jobs.is_file() else {}
    if not submitted:
        return Queue()
    jobs: dict[str, None] = {}
    runs: dict[str, Task] = {}
    others = []
    for line in _squeue(list(submitted)):
        job, index, state, reason = line
        known = submitted.get(job)
        if known is None:
            continue
        jobs[job] = None
        names = known.get("runs", [])
        if known.get("kind") != "array":
            others.append(f"{known.get('kind')}: {Task(job, state, reason)}")
        elif index.isdecimal() and int(index) < len(names):
            runs[names[int(index)]] = Task(f"{job}_{index}", state, reason)
    return Queue(tuple(jobs), runs, tuple(others))


def _squeue(jobs: Sequence[str]) -> list[tuple[str, str, str, str]]:
    """(job, index of the task, state, reason) of everything that is queued or runs."""
    known: dict[str, None] = {}
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        # all of the user's jobs: squeue fails where one of those asked for is forgotten
        answer = _call(["squeue", "--noheader", "--array", "--me", "--format", "%F|%K|%T|%r"])
        known = dict.fromkeys(answer.splitlines())
    wanted, found = set(jobs), []
    for line in known:
        job, index, state, reason = (*line.split("|", 3), "", "", "")[:4]
        if job in wanted:
            found.append((job, index, state, reason))
    return found


def _call(command: Sequence[str]) -> str:
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=_PATIENCE)  # noqa: S603
    return done.stdout


def cancel_jobs(folder: SweepFolder) -> list[str]:
    """Cancel the jobs of a sweep that are queued or run; their numbers. Runs save first, as Slurm gives them time."""
    jobs = list(queue(folder).jobs)
    if not jobs:
        return []
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        _call(["scancel", *jobs])
        return jobs
    return []
