"""A ready Slurm script for a plan: the same command again goes on where it was cut, so it may be requeued."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from shoestring.core.facts import Plan

_MEMORY_MARGIN = 1.25
_LIBRARY_BYTES = 2**30
"""Over the measured peak of a process: libraries, and the processes that prepare the data."""
_MINUTE = 60
_SIGNAL_SECONDS = 30
"""Before the end, when Slurm asks the run to save and stop; it may do so a minute earlier than it says."""
_AFTER_SECONDS = _SIGNAL_SECONDS + _MINUTE
"""Over what the run takes, so that it has ended before that."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the script asks for besides what the plan says."""

    name: str
    folder: str
    """Of the run; it must be there when the job starts, since Slurm writes its output into it."""
    working_folder: str
    command: Sequence[str]
    """After "python -m", such as shoestring train recipe.toml."""
    python: str
    on_gpu: bool
    threads: int
    time_budget: float | None
    """Seconds; None where time is not limited."""
    reserve: float
    """Seconds over what the plan takes at the longest."""


def sbatch_script(plan: Plan, job: Job) -> str:
    """The script; it runs on one machine."""
    devices = plan.devices or 1
    options = [
        f"--job-name={job.name}",
        f"--time={slurm_time(_seconds(plan, job))}",
        "--nodes=1",
        "--ntasks=1",
        f"--cpus-per-task={job.threads}",
        f"--output={job.folder}/slurm-%j.out",
        "--open-mode=append",
        "--requeue",
        f"--signal=B:TERM@{_SIGNAL_SECONDS}",
    ]
    if job.on_gpu:
        options.append(f"--gpus-per-node={devices}")
    elif plan.peak_bytes is not None:
        each = plan.peak_bytes * _MEMORY_MARGIN + _LIBRARY_BYTES
        options.append(f"--mem={math.ceil(each * devices / 2**20)}M")
    starter = (
        ["-m"] if devices == 1 else ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={devices}", "-m"]
    )
    command = shlex.join([job.python, *starter, *job.command])
    lines = ["#!/bin/bash", *(f"#SBATCH {_quoted(option)}" for option in options), ""]
    if job.on_gpu:
        lines += ["# memory of the host was not measured: the partition's default is taken, or add --mem here", ""]
    lines += [
        "set -euo pipefail",
        f"cd {shlex.quote(job.working_folder)}",
        "# in place of the shell, so that Slurm's signal comes to the run, which saves and stops; requeued, it goes on",
        f"exec {command}",
    ]
    return "\n".join(lines) + "\n"


def _quoted(option: str) -> str:
    """Slurm splits options at spaces, as a shell does."""
    name, _, value = option.partition("=")
    return f"{name}={shlex.quote(value)}" if value else option


def _seconds(plan: Plan, job: Job) -> float:
    if job.time_budget is not None:
        return job.time_budget + _AFTER_SECONDS
    longest = plan.intervals.get("seconds", (0.0, plan.seconds or 0.0))[1]
    return longest + job.reserve + _AFTER_SECONDS


def slurm_time(seconds: float) -> str:
    """D-HH:MM:SS, up to whole minutes, which is how Slurm counts."""
    minutes = math.ceil(seconds / _MINUTE)
    days, rest = divmod(minutes, 24 * 60)
    return f"{days}-{rest // 60:02d}:{rest % 60:02d}:00"
