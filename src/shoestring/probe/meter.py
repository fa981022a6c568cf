"""The memory that work uses on a device, on top of what was in use before it began."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

import torch

from shoestring.core.host import give_back, is_out_of_memory
from shoestring.probe.machine import available_bytes, reset_peak, resident
from shoestring.probe.trials import Usage

_KEPT_BLOCKS = 2
"""On a CPU, blocks of 2 MB that the C library may keep or reuse: the uncertainty of a measured peak."""


class Meter:
    """Memory since the meter was made, which is before the work is built.

    On a GPU: what torch's allocator holds, and the growth of the context beside it. On a CPU: the growth of resident
    memory without pages of files, because what the interpreter and its libraries hold differs between processes.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self._retries = 0
        self._highest = self._peak = 0
        """On a CPU: the peak of all pages, and of those that are not of files."""
        if device.type == "cuda":
            torch.cuda.init()  # there are no statistics before this
        self.reset()
        self.available = available_bytes(device)
        """Free bytes at that time; None where unknown."""
        self._before = self._beside_tensors()

    def reset(self) -> None:
        """Start a new peak, after returning unused memory to the system."""
        gc.collect()
        if self.device.type == "cpu":
            give_back()
        reset_peak(self.device)
        self._highest = self._peak = 0
        self.look()
        if self.device.type == "cuda":
            self._retries = torch.cuda.memory_stats(self.device).get("num_alloc_retries", 0)

    def wait(self) -> None:
        """Return when the device has finished."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def look(self) -> None:
        """Note a new peak on a CPU; call it now and then.

        The system records the peak of all pages only; the pages of files are counted at the time of this call.
        """
        found = resident() if self.device.type == "cpu" else None
        if found is None:
            return
        self._peak = max(self._peak, found.now - found.files)
        if found.highest > self._highest:
            self._highest = found.highest
            self._peak = max(self._peak, found.highest - found.files)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Leave out what is done meanwhile on a CPU: neither its peak nor what it keeps counts."""
        self.look()
        before = None
        if self.device.type == "cpu":
            give_back()  # here too: else what the run has freed before would be given back below, and counted
            before = self._beside_tensors()
        yield
        if before is None or self._before is None:
            return
        give_back()
        reset_peak(self.device)
        found = resident()
        if found is not None:
            kept = found.now - found.files - before
            self._before, self._peak, self._highest = self._before + kept, self._peak + kept, found.highest

    @property
    def seen(self) -> int:
        """The peak that `look` has noted on a CPU, as `usage` tells it."""
        return max(0, self._peak - (self._before or 0))

    def usage(self) -> Usage | None:
        """Since `reset`; None where the system does not report it."""
        if self.device.type == "cuda":
            return self._cuda_usage()
        self.look()
        give_back()
        now = self._beside_tensors()
        if now is None or self._before is None:
            return None
        return Usage(
            asked=self.seen, reserved=self.seen, outside=0, rest=max(0, now - self._before), blocks=_KEPT_BLOCKS
        )

    def _cuda_usage(self) -> Usage:
        stats = torch.cuda.memory_stats(self.device)
        return Usage(
            asked=stats["allocated_bytes.all.peak"],
            reserved=stats["reserved_bytes.all.peak"],
            outside=max(0, (self._beside_tensors() or 0) - (self._before or 0)),
            rest=stats["allocated_bytes.all.current"],
            blocks=stats.get("active.large_pool.peak", 0),
            squeezed=stats.get("num_alloc_retries", 0) > self._retries,
        )

    def _beside_tensors(self) -> int | None:
        """Bytes in use: of a GPU by everything but this allocator (other processes too), of a CPU by this process."""
        if self.device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self.device)
            return total - free - torch.cuda.memory_reserved(self.device)
        found = resident()
        return None if found is None else found.now - found.files


@contextlib.contextmanager
def memory_errors() -> Iterator[None]:
    """Raise MemoryError where the device or the host runs out of memory."""
    try:
        yield
    except Exception as cause:
        if not is_out_of_memory(cause):
            raise
        raise MemoryError(str(cause)) from cause
