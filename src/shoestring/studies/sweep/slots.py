"""How many runs go at a time on this machine, and what each of them gets."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shoestring.core.units import Bytes, counted
from shoestring.planning.sbatch import process_bytes

MEMORY_SHARE = 0.9
"""Of the free memory of the host, what the runs of a CPU may take together."""


@dataclass(frozen=True, kw_only=True)
class Slots:
    """Places in which runs go, one process each."""

    at_once: int
    threads: int
    """Of each process."""
    gpus: tuple[str, ...] = ()
    """What CUDA_VISIBLE_DEVICES is for each place; empty: runs are on the CPU."""
    reason: str = ""

    def environment(self, place: int) -> dict[str, str]:
        """What a run in this place has in its environment."""
        found = {"OMP_NUM_THREADS": str(self.threads)}
        return found | ({"CUDA_VISIBLE_DEVICES": self.gpus[place]} if self.gpus else {})


def slots_by_cores(runs: int, most: int | None, gpus: Sequence[str], cores: int, threads: int | None) -> Slots:
    """A place for each GPU, or for as many runs as there are cores; `threads` is what the user wants for each.

    `most` is the largest number of runs at a time that the user wants.
    """
    if gpus:
        at_once = max(1, min(len(gpus), runs, most or runs))
        reason = "one on each GPU" if at_once == len(gpus) else "as many as there are to do"
        each = threads or max(1, cores // at_once)
        return Slots(at_once=at_once, threads=each, gpus=tuple(gpus[:at_once]), reason=_wanted(reason, at_once, most))
    fit = max(1, cores // (threads or 1))
    at_once = max(1, min(fit, runs, most or runs))
    each = threads or max(1, cores // at_once)
    reason = f"{counted(each, 'thread')} each on {counted(cores, 'core')}"
    return Slots(at_once=at_once, threads=each, reason=_wanted(reason, at_once, most))


def _wanted(reason: str, at_once: int, most: int | None) -> str:
    return f"--at-once {most}" if at_once == most else reason


def within_memory(slots: Slots, peaks: Sequence[int | None], free: int | None) -> Slots:
    """The slots that the free memory of the host has room for, by the largest peaks; on GPUs all of them."""
    known = sorted((process_bytes(peak) for peak in peaks if peak is not None), reverse=True)
    if slots.gpus or free is None or not known:
        return slots
    at_once = slots.at_once
    while at_once > 1 and sum(known[:at_once]) > MEMORY_SHARE * free:
        at_once -= 1
    if at_once == slots.at_once:
        return slots
    reason = f"each may take {Bytes(known[0]).short()} of the {Bytes(free).short()} that are free"
    return replace(slots, at_once=at_once, reason=reason)


def this_machine(runs: int, most: int | None = None) -> Slots:
    """The slots of this machine by devices and cores. Threads are as OMP_NUM_THREADS says, if it says anything."""
    import torch

    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    threads = int(given) if given.isdecimal() and int(given) > 0 else None
    return slots_by_cores(runs, most, visible_gpus(torch.cuda.device_count()), len(os.sched_getaffinity(0)), threads)


def visible_gpus(count: int) -> list[str]:
    """The names of this process's GPUs, as CUDA_VISIBLE_DEVICES takes them."""
    given = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return given[:count] if given else [str(number) for number in range(count)]
