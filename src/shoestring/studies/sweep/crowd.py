"""What a run takes besides its plan, where several go at a time: processes start, end, and slow each other down.

It is measured, with as many processes as the sweep will have: each loads torch, takes steps of a small network alone
and then beside the others, and ends. It takes a few seconds, so it is kept for a day.
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import ClassVar

from shoestring.core.errors import ShoestringError
from shoestring.core.files import cache_folder, make_folder
from shoestring.core.recipe import fingerprint
from shoestring.core.records import Plan
from shoestring.core.schema import Record
from shoestring.core.units import Interval, Seconds
from shoestring.probe.load import load, used_by_others

VALID = 86_400.0
"""Seconds for which a measurement is kept."""
_PATIENCE = 120.0
"""Seconds to wait for the processes."""
SPENT = "spent so far"
"""The part of a plan that is the start of its process."""
QUIET = 0.25
"""Share of the processors that others may use while it is measured."""
WORTH = 20.0
"""Seconds of a sweep from which on it is worth measuring."""

PROCESS = """
import sys, time
import torch
import shoestring.runs.plan
print("ready", flush=True)
width = 128
weights = [torch.randn(width, width, requires_grad=True) for _ in range(4)]
rows = torch.randn(256, width)
def step():
    x = rows
    for weight in weights:
        x = torch.nn.functional.gelu(x @ weight) + x
    x.square().mean().backward()
    for weight in weights:
        weight.grad = None
for line in sys.stdin:
    seconds, taken, began = float(line), 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        step()
        taken += 1
    print(taken / (time.perf_counter() - began), flush=True)
"""


@dataclass(frozen=True, kw_only=True)
class Crowd(Record):
    """What processes take that go at the same time."""

    SCHEMA: ClassVar[str] = "shoestring.crowd/1"

    start: float
    """Seconds until torch is loaded, where all begin at once."""
    end: float
    """Seconds from the last statement until the process is gone."""
    slower: float
    """How many times as long a step takes beside the others as alone."""
    measured: float = 0.0
    """When, in seconds since 1970."""
    others: float | None = None
    """Processors that other processes used meanwhile; None: unknown."""

    @property
    def is_disturbed(self) -> bool:
        """Whether others used so much that it says little about another hour."""
        return self.others is not None and self.others > QUIET * (os.cpu_count() or 1)

    def seconds(self, plan: Plan, left: float = 1.0) -> Interval:
        """Of a process that follows a plan, of which the share `left` is to do.

        A run that has a time takes it, however slow its steps are.
        """
        assert plan.seconds is not None, "a plan that was made has seconds"
        low, high = plan.intervals.get("seconds", (plan.seconds, plan.seconds))
        spent = plan.parts.get(SPENT, 0.0)
        again = self.start + plan.parts.get("set-up", 0.0) * self.slower + self.end
        if plan.binding == "time":
            ends = [each + self.end for each in (low, plan.seconds, high)]
        else:
            ends = [self.start + (each - spent) * self.slower + self.end for each in (low, plan.seconds, high)]
        return Interval(*(each if left == 1 else again + left * max(0.0, each - again) for each in ends))


def of_plan(plan: Plan) -> Crowd:
    """What a plan says by itself, where nothing was measured."""
    return Crowd(start=plan.parts.get(SPENT, 0.0), end=0.0, slower=1.0)


def crowd(at_once: int, threads: int, machine: str) -> Crowd | None:
    """What was measured on this machine for so many processes today, or is measured now; None: it cannot be."""
    file = cache_folder() / "crowds" / f"{fingerprint([machine, at_once, threads, sys.executable])}.json"
    with contextlib.suppress(ShoestringError):
        found = Crowd.read_if_there(file)
        if found is not None and 0 <= time.time() - found.measured < VALID:
            return found
    with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
        made = measure(at_once, threads)
        if not made.is_disturbed:
            with contextlib.suppress(ShoestringError):
                make_folder(file.parent)
                made.write(file)
        return made
    return None


def measure(at_once: int, threads: int, seconds: float = 0.7) -> Crowd:
    """Start so many processes, let them work alone and together, and end them."""
    began, before, own = time.perf_counter(), load(), children()
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-c", PROCESS]
    processes = [
        subprocess.Popen(  # noqa: S603 - our own command, and no shell
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True, cwd=Path.cwd()
        )
        for _ in range(at_once)
    ]
    try:
        starts = []
        for process in processes:
            _answer(process)
            starts.append(time.perf_counter() - began)
        for process in processes:  # warm up
            _ask(process, seconds / 4)
        for process in processes:
            _answer(process)
        _ask(processes[0], seconds)
        alone = float(_answer(processes[0]))
        for process in processes:
            _ask(process, seconds)
        together = fmean(float(_answer(process)) for process in processes)
        ending = time.perf_counter()
        for process in processes:
            process.communicate(timeout=_PATIENCE)
        end = time.perf_counter() - ending
    finally:
        for process in processes:
            process.kill()
            with contextlib.suppress(OSError), process:  # closes its pipes
                pass
    slower = max(1.0, alone / together) if at_once > 1 else 1.0
    after = load()
    others = used_by_others(before, after._replace(own=after.own + children() - own))
    return Crowd(start=fmean(starts), end=end, slower=slower, measured=time.time(), others=others)


def children() -> float:
    """Seconds of processors that processes of this one took, which have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _ask(process: subprocess.Popen[str], seconds: float) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{seconds}\n")
    process.stdin.flush()


def _answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise ValueError(f"a process that was to be measured ended with exit status {process.wait(_PATIENCE)}")
    return line


def shown(found: Crowd, at_once: int) -> str:
    """What was measured, for people."""
    slow = "" if at_once == 1 else f", and steps of {at_once} at a time take {found.slower - 1:.0%} longer"
    busy = "; the machine is busy, so that will change" if found.is_disturbed else ""
    times = f"{Seconds(found.start).short()} to start and {Seconds(found.end).short()} to end"
    return f"measured: a process takes {times}{slow}{busy}"
