"""A sweep on Slurm: an array with a task for each run, then its report."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

from shoestring.core.errors import UserError
from shoestring.core.files import make_folder, write_whole
from shoestring.core.sweep_folder import SweepFolder
from shoestring.planning.make import reserve_seconds
from shoestring.planning.sbatch import Array, array_script, report_script, submit_script
from shoestring.studies.sweep.survey import Survey

_PATIENCE = 30.0
"""Seconds to wait for scancel."""


def write_scripts(found: Survey, at_once: int | None) -> Path:
    """Write the scripts of an array of the runs that are to do; returns the one that submits them.

    The time and memory of a task are those of the longest and the largest run, with a margin.
    """
    runs = found.to_do
    if not runs:
        raise UserError("--sbatch: there is nothing to do: all runs are done")
    folder = found.folder
    for place in (folder.slurm, folder.logs):
        make_folder(place)
    names, array, report = (folder.slurm / name for name in ("runs.txt", "array.sh", "report.sh"))
    longest = max(found.seconds(run).high for run in runs)
    peaks = [found.forecasts[run.name].peak_bytes for run in runs]
    job = Array(
        name=found.grid.name,
        folder=str(folder.path.resolve()),
        working_folder=str(Path.cwd()),
        python=sys.executable,
        runs=len(runs),
        at_once=at_once,
        seconds=longest + reserve_seconds(longest),
        peak_bytes=max((peak for peak in peaks if peak is not None), default=None),
        on_gpu=bool(found.slots.gpus),
        threads=found.slots.threads,
        names=str(names.resolve()),
    )
    write_whole(names, "".join(f"{run.name}\n" for run in runs))
    write_whole(array, array_script(job))
    write_whole(report, report_script(job))
    submit = folder.slurm / "submit.sh"
    write_whole(submit, submit_script(str(array.resolve()), str(report.resolve()), str(_jobs(folder).resolve())))
    return submit


def _jobs(folder: SweepFolder) -> Path:
    return folder.slurm / "jobs.txt"


def cancel_jobs(folder: SweepFolder) -> list[str]:
    """Cancel the jobs that were submitted, if there are any; their numbers."""
    with contextlib.suppress(FileNotFoundError):
        numbers = [word for word in _jobs(folder).read_text().split() if word.isdecimal()]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            command = ["scancel", *numbers]
            subprocess.run(command, check=True, capture_output=True, timeout=_PATIENCE)  # noqa: S603
            return numbers
    return []
