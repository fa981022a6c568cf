"""The memory that some work takes on a device, on top of what was in use before it began."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from functools import cache

import torch

from shoestring.probe.machine import available_bytes, reset_peak, resident
from shoestring.probe.workload import Usage

_KEPT_BLOCKS = 2
"""On a CPU, how many pieces of 2 MB the C library may keep or find again: its own account of a peak is as uncertain."""


class Meter:
    """Made before the work is built.

    On a GPU: what torch's allocator holds, and the growth of the context beside it. On a CPU: the growth of what the
    process has in memory, but for pages of files; what the interpreter and its libraries hold differs between processes
    of the same work.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self._retries = 0
        self._highest = self._peak = 0
        """On a CPU: of all pages, and of those that are not of files."""
        if device.type == "cuda":
            torch.cuda.init()  # there are no statistics before
        self.reset()
        self.available = available_bytes(device)
        """Bytes that were free then; None where nobody knows."""
        self._before = self._beside_tensors()

    def reset(self) -> None:
        """Start a new peak; memory that is kept without use is given back first."""
        gc.collect()
        if self.device.type == "cpu":
            give_back()
        reset_peak(self.device)
        self._highest = self._peak = 0
        self.look()
        if self.device.type == "cuda":
            self._retries = torch.cuda.memory_stats(self.device).get("num_alloc_retries", 0)

    def look(self) -> None:
        """Note a new peak on a CPU. The system keeps that of all pages alone: to be called now and then, for the pages
        of files are those that are there when it is."""
        found = resident() if self.device.type == "cpu" else None
        if found is None:
            return
        self._peak = max(self._peak, found.now - found.files)
        if found.highest > self._highest:
            self._highest = found.highest
            self._peak = max(self._peak, found.highest - found.files)

    def usage(self) -> Usage | None:
        """Since `reset`; None where the system does not tell."""
        if self.device.type == "cuda":
            return self._cuda_usage()
        self.look()
        give_back()
        now = self._beside_tensors()
        if now is None or self._before is None:
            return None
        return Usage(
            asked=max(0, self._peak - self._before),
            reserved=max(0, self._peak - self._before),
            outside=0,
            rest=max(0, now - self._before),
            blocks=_KEPT_BLOCKS,
        )

    def _cuda_usage(self) -> Usage:
        stats = torch.cuda.memory_stats(self.device)
        assert self._before is not None, "a GPU tells"
        return Usage(
            asked=stats["allocated_bytes.all.peak"],
            reserved=stats["reserved_bytes.all.peak"],
            outside=max(0, (self._beside_tensors() or 0) - self._before),
            rest=stats["allocated_bytes.all.current"],
            blocks=stats.get("active.large_pool.peak", 0),
            squeezed=stats.get("num_alloc_retries", 0) > self._retries,
        )

    def _beside_tensors(self) -> int | None:
        """In use now: of a GPU by all but this allocator (other processes too), of a CPU by this process."""
        if self.device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self.device)
            return total - free - torch.cuda.memory_reserved(self.device)
        found = resident()
        return None if found is None else found.now - found.files


@cache
def _libc() -> ctypes.CDLL | None:
    with contextlib.suppress(OSError):
        return ctypes.CDLL(None)
    return None


def give_back() -> None:
    """Let the C library return memory that it keeps for later; does nothing where it has no such call."""
    trim = getattr(_libc(), "malloc_trim", None)
    if trim is not None:
        trim(0)
