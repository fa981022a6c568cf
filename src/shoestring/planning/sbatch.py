"""The Slurm script of a plan. A run resumes, so its job may be requeued."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from shoestring.core.environment import START
from shoestring.core.errors import PlanError
from shoestring.core.records import Plan
from shoestring.core.text import control_in

_MEMORY_MARGIN = 1.25
_LIBRARY_BYTES = 2**30
"""Added to the measured peak of a process: libraries, and the processes that prepare the data."""
_MINUTE = 60
SIGNAL_SECONDS = 30
"""Time before the end at which Slurm asks the run to save and stop; it may do so a minute earlier."""
AFTER_SECONDS = SIGNAL_SECONDS + _MINUTE
"""Added to the time of the run, so that it ends before the signal."""
STARTED = f"export {START}=${{SLURM_JOB_START_TIME:-$(date +%s)}} # time counts from the start of the allocation"


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the script needs besides the plan."""

    name: str
    folder: str
    """Run folder; it must exist when the job starts, since Slurm writes its output into it."""
    working_folder: str
    command: Sequence[str]
    """After "python -m", such as shoestring train recipe.toml."""
    python: str
    on_gpu: bool
    threads: int
    time_budget: float | None
    """Seconds; None: unlimited."""
    reserve: float
    """Seconds added to the longest time of the plan."""


def process_bytes(peak: int) -> int:
    """What a process on a CPU may take in all, where model and training take `peak` bytes."""
    return math.ceil(peak * _MEMORY_MARGIN) + _LIBRARY_BYTES


def sbatch_script(plan: Plan, job: Job) -> str:
    """The script, for one machine."""
    devices, longest = plan.devices or 1, job.time_budget
    if longest is None:
        longest = plan.intervals.get("seconds", (0.0, plan.seconds or 0.0))[1] + job.reserve
    options = [
        f"--job-name={job.name}",
        f"--time={slurm_time(longest + AFTER_SECONDS)}",
        "--nodes=1",
        "--ntasks=1",
        f"--cpus-per-task={job.threads}",
        f"--output={job.folder.replace('%', '%%')}/slurm-%j.out",
        "--open-mode=append",
        "--requeue",
        f"--signal=B:TERM@{SIGNAL_SECONDS}",
    ]
    if job.on_gpu:
        options.append(f"--gpus-per-node={devices}")
    elif plan.peak_bytes is not None:
        options.append(f"--mem={math.ceil(process_bytes(plan.peak_bytes) * devices / 2**20)}M")
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={devices}"] if devices > 1 else []
    command = shlex.join([job.python, *launcher, "-m", *job.command])
    lines = ["#!/bin/bash", *(f"#SBATCH {quoted(option)}" for option in options), ""]
    if job.on_gpu:
        lines += ["# the memory of the host was not measured: the partition's default applies, or add --mem here", ""]
    lines += [
        "set -euo pipefail",
        f"cd {shlex.quote(job.working_folder)}",
        STARTED,
        "# exec, so that Slurm's signal reaches the run, which saves and stops; it resumes when requeued",
        f"exec {command}",
    ]
    return "\n".join(lines) + "\n"


def quoted(option: str) -> str:
    """The option with its value quoted: Slurm splits at spaces, as a shell does.

    An option is one line of a comment, which no quotes can hold together: a newline in it would begin a command.
    """
    name, _, value = option.partition("=")
    if (control := control_in(value)) is not None:
        raise PlanError(f"--sbatch: {name} has {control} in {value!r}, and an option of Slurm is one line; rename it")
    return f"{name}={shlex.quote(value)}" if value else option


def slurm_time(seconds: float) -> str:
    """D-HH:MM:SS, rounded up to Slurm's whole minutes."""
    minutes = math.ceil(seconds / _MINUTE)
    days, rest = divmod(minutes, 24 * 60)
    return f"{days}-{rest // 60:02d}:{rest % 60:02d}:00"
