"""Slurm scripts: for a plan, and an array for the runs of a sweep. A run resumes, so its job may be requeued."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from shoestring.core.errors import PlanError
from shoestring.core.records import Plan
from shoestring.core.text import control_in

_MEMORY_MARGIN = 1.25
_LIBRARY_BYTES = 2**30
"""Added to the measured peak of a process: libraries, and the processes that prepare the data."""
_MINUTE = 60
_SIGNAL_SECONDS = 30
"""Time before the end at which Slurm asks the run to save and stop; it may do so a minute earlier."""
_AFTER_SECONDS = _SIGNAL_SECONDS + _MINUTE
"""Added to the time of the run, so that it ends before the signal."""


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
        f"--time={slurm_time(longest + _AFTER_SECONDS)}",
        "--nodes=1",
        "--ntasks=1",
        f"--cpus-per-task={job.threads}",
        f"--output={job.folder.replace('%', '%%')}/slurm-%j.out",
        "--open-mode=append",
        "--requeue",
        f"--signal=B:TERM@{_SIGNAL_SECONDS}",
    ]
    if job.on_gpu:
        options.append(f"--gpus-per-node={devices}")
    elif plan.peak_bytes is not None:
        options.append(f"--mem={math.ceil(process_bytes(plan.peak_bytes) * devices / 2**20)}M")
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={devices}"] if devices > 1 else []
    command = shlex.join([job.python, *launcher, "-m", *job.command])
    lines = ["#!/bin/bash", *(f"#SBATCH {_quoted(option)}" for option in options), ""]
    if job.on_gpu:
        lines += ["# the memory of the host was not measured: the partition's default applies, or add --mem here", ""]
    lines += [
        "set -euo pipefail",
        f"cd {shlex.quote(job.working_folder)}",
        "# exec, so that Slurm's signal reaches the run, which saves and stops; it resumes when requeued",
        f"exec {command}",
    ]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, kw_only=True)
class Array:
    """What the script of an array needs: one task for each run of a sweep."""

    name: str
    folder: str
    """Of the sweep."""
    working_folder: str
    python: str
    runs: int
    at_once: int | None
    """Tasks at a time; None: as many as Slurm likes."""
    seconds: float
    """The longest time of a run."""
    peak_bytes: int | None
    """The largest peak on a CPU; None: not known."""
    on_gpu: bool
    threads: int
    names: str
    """File with the names of the runs, one in a line."""


def array_script(array: Array) -> str:
    """The script of an array. A run that the time limit stops is requeued, and continues; a cancelled one is not."""
    limit = "" if array.at_once is None else f"%{array.at_once}"
    options = [
        f"--job-name={array.name}",
        f"--array=0-{array.runs - 1}{limit}",
        f"--time={slurm_time(array.seconds + _AFTER_SECONDS)}",
        "--nodes=1",
        "--ntasks=1",
        f"--cpus-per-task={array.threads}",
        f"--output={array.folder.replace('%', '%%')}/logs/slurm-%A_%a.out",
        "--open-mode=append",
        "--requeue",
        f"--signal=B:USR1@{_SIGNAL_SECONDS}",
    ]
    if array.on_gpu:
        options.append("--gpus-per-node=1")
    elif array.peak_bytes is not None:
        options.append(f"--mem={math.ceil(process_bytes(array.peak_bytes) / 2**20)}M")
    folder = shlex.quote(array.folder)
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {_quoted(option)}" for option in options),
        "",
        "set -uo pipefail",
        f"cd {shlex.quote(array.working_folder)}",
        "export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK",
        f"mapfile -t runs < {shlex.quote(array.names)}",
        "run=${runs[$SLURM_ARRAY_TASK_ID]}",
        f"said={folder}/logs/$run.json",
        f'{shlex.quote(array.python)} -m shoestring train {folder}/recipes/"$run.toml" --json > "$said" &',
        "child=$!",
        "cancelled=",
        "trap 'kill -USR1 $child' USR1 # before the limit: the run saves and stops",
        "trap 'cancelled=1; kill -TERM $child' TERM",
        "wait $child; code=$?",
        "while kill -0 $child 2> /dev/null; do wait $child; code=$?; done # a signal ends a wait",
        "# what the limit stopped goes on in the same task; what fails or is cancelled does not",
        """if [ -z "$cancelled" ] && grep -q '"kind": "Stopped"' "$said"; then""",
        '  exec scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"',
        "fi",
        "exit $code",
    ]
    return "\n".join(lines) + "\n"


def report_script(array: Array) -> str:
    """The script of the job that reports a sweep after its array."""
    options = [
        f"--job-name={array.name}-report",
        "--time=0-00:10:00",
        "--ntasks=1",
        f"--output={array.folder.replace('%', '%%')}/logs/slurm-%j.out",
    ]
    return "\n".join(
        [
            "#!/bin/bash",
            *(f"#SBATCH {_quoted(option)}" for option in options),
            "",
            f"cd {shlex.quote(array.working_folder)}",
            f"exec {shlex.join([array.python, '-m', 'shoestring', 'sweep', 'report', array.folder])}",
            "",
        ]
    )


def submit_script(array: str, report: str, jobs: str) -> str:
    """The script that submits both, and writes down their numbers, by which they can be cancelled."""
    return "\n".join(
        [
            "#!/bin/bash",
            "set -euo pipefail",
            f"array=$(sbatch --parsable {shlex.quote(array)})",
            f'report=$(sbatch --parsable --dependency="afterany:$array" {shlex.quote(report)})',
            f"""printf '%s\\n' "$array" "$report" > {shlex.quote(jobs)}""",
            'echo "array $array, then its report $report"',
            "",
        ]
    )


def _quoted(option: str) -> str:
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
