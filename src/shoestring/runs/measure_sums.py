"""The seconds of a sum of all gradients over the workers of a run.

A group measures it itself. One process alone (`shoestring measure`) starts as many as the run will have.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from shoestring.core.records import Profile
from shoestring.runs.launch import environments

if TYPE_CHECKING:
    from shoestring.parallel.process_group import ProcessGroup

REPEATS = 5
MOST_NUMBERS = 1 << 26
"""Numbers that are summed at most; a longer sum takes as much longer."""
_TIMEOUT = 300.0


def sum_seconds(group: ProcessGroup, numbers: int) -> float:
    """Seconds of a sum of so many numbers in 32 bits over all processes: the median, on the slowest of them."""
    import torch

    count = min(numbers, MOST_NUMBERS)
    values, times = torch.zeros(count, device=group.device), []
    for _ in range(REPEATS + 1):  # the first one connects
        group.all_gather(None)
        begun = time.perf_counter()
        group.all_reduce([values])
        if group.device.type == "cuda":
            torch.cuda.synchronize(group.device)
        times.append(time.perf_counter() - begun)
    return max(group.all_gather(statistics.median(times[1:]))) * numbers / count


def with_sum(profile: Profile, group: ProcessGroup) -> Profile:
    """A profile with the sum over the processes of a group, called by all of them."""
    import torch

    seconds = sum_seconds(group, profile.cost.total_parameters)
    sharing = -(-group.world // torch.cuda.device_count()) if group.shares_gpus else None
    return replace(profile, sum_seconds=seconds, sum_workers=group.world, sharing=sharing)


def with_sum_of(profile: Profile, workers: int) -> Profile:
    """A profile with the sum over so many processes, started for it; without one where they cannot be started."""
    command = [sys.executable, "-m", "shoestring.runs.measure_sums", str(profile.cost.total_parameters)]
    started = [
        subprocess.Popen(command, env=os.environ | own, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)  # noqa: S603
        for own in environments(workers)
    ]
    try:
        told, _ = started[0].communicate(timeout=_TIMEOUT)
        return replace(profile, sum_seconds=float(told), sum_workers=workers)
    except (ValueError, subprocess.TimeoutExpired):
        return profile
    finally:
        for process in started:
            process.kill()
            process.communicate()


def main(numbers: str) -> None:
    from shoestring.core.host import end_with_parent
    from shoestring.parallel.process_group import sharing_work
    from shoestring.probe.machine import pick_device

    end_with_parent()
    with sharing_work(pick_device()) as group:
        seconds = sum_seconds(group, int(numbers))
        if group.rank == 0:
            sys.stdout.write(f"{seconds!r}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
