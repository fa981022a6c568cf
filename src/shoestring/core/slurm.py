"""When a Slurm allocation ends."""

from __future__ import annotations

import datetime
import os
import subprocess
import time
from collections.abc import Mapping

from shoestring.core.clock import Clock

_PATIENCE = 10.0
"""Seconds to wait for Slurm's answer."""


def allocation_end(clock: Clock, environment: Mapping[str, str] = os.environ) -> float | None:
    """When the allocation that this process runs in ends, on `clock`; None outside of one, or without a limit."""
    job = environment.get("SLURM_JOB_ID")
    if job is None:
        return None
    text = environment.get("SLURM_JOB_END_TIME", "")  # of newer versions
    end = float(text) if text.isdecimal() else _asked(job, environment)
    # a job without a limit has an end that lies a year away, or none
    return None if end is None else clock.elapsed() + end - time.time()


def _asked(job: str, environment: Mapping[str, str]) -> float | None:
    """The end in seconds since 1970, from `squeue`; None where it cannot be had or there is none."""
    command = ["squeue", "--noheader", "--jobs", job, "--format", "%e"]
    iso = {**environment, "SLURM_TIME_FORMAT": "standard"}
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=True, env=iso)
        return datetime.datetime.fromisoformat(asked.stdout.split()[0]).timestamp()
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):  # no squeue, no answer, or NONE
        return None
