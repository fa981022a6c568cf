"""The host: its memory, as the system tells it, the errors of too little of it, and processes that end together."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import signal
from pathlib import Path
from typing import NamedTuple

MEMINFO, STATUS = Path("/proc/meminfo"), Path("/proc/self/status")
_SET_DEATH_SIGNAL = 1
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_NEVER, _LARGEST_IN_HEAP = (1 << 31) - 1, 32 << 20
"""Bytes at the end of the heap that are given back, and of blocks outside of it: the most that the C library takes."""
_KEPT_MILLISECONDS = 60_000
_EXCEPTION = re.compile(r"(\w+\.)*\w*(Error|Exception|Died|Fault)\b")
_NO_MEMORY = (
    "out of memory",
    "ALLOC_FAILED",  # of cuBLAS and its like
    "DefaultCPUAllocator: not enough memory",
    "can't allocate memory",
    "Cannot allocate memory",
    "failed to map segment from shared object",  # a library that does not fit the address space
    "std::bad_alloc",
    "memory allocation of",  # of libraries in Rust
)
"""What libraries say in errors that have no type of their own."""


def is_out_of_memory(cause: BaseException) -> bool:
    """Whether the memory of a device or of the host did not suffice.

    Python and numpy raise MemoryError, torch on a GPU its OutOfMemoryError, torch on a CPU and the libraries of CUDA
    a RuntimeError with a message, the system an OSError.
    """
    if isinstance(cause, MemoryError) or type(cause).__name__ == "OutOfMemoryError":
        return True
    if isinstance(cause, OSError) and cause.errno == errno.ENOMEM:
        return True
    return isinstance(cause, RuntimeError | ImportError) and tells_no_memory(str(cause))


def tells_no_memory(text: str) -> bool:
    """Whether a message says that memory ran out."""
    return any(sign in text for sign in _NO_MEMORY)


def what_failed(output: str) -> str | None:
    """Of what a process wrote before it died, the line that says why: the last one that names an exception, whose
    message may go on for several lines with advice, or else the last one. None: it wrote nothing."""
    lines = output.strip().splitlines()
    return next((line for line in reversed(lines) if _EXCEPTION.match(line)), lines[-1] if lines else None)


def keep_freed_memory() -> None:
    """Keep memory that is freed for the next allocations, and not give it back to the system at once. Call this before
    torch is loaded.

    A step on a CPU frees what the next one allocates: a system that takes pages back and clears new ones took 12 % of a
    step. Torch allocates by the C library or, on ARM, by mimalloc, which reads its options as it is loaded.
    """
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", str(_KEPT_MILLISECONDS))
    with contextlib.suppress(OSError, AttributeError):
        set_option = ctypes.CDLL(None).mallopt
        set_option(_M_MMAP_THRESHOLD, _LARGEST_IN_HEAP)
        set_option(_M_TRIM_THRESHOLD, _NEVER)


def give_back() -> None:
    """Let the C library return memory that it keeps for later, where it can."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class Limit(NamedTuple):
    """A limit of the memory of this process."""

    most: int
    """Bytes."""
    room: int
    """Bytes of it that are left."""


def host_bytes() -> int | None:
    """Memory of the host, or the least limit that this process has; None: unknown."""
    known = [proc_table(MEMINFO).get("MemTotal"), *(limit.most for limit in (*group_limits(), *own_limits()))]
    return min((bytes_ for bytes_ in known if bytes_ is not None), default=None)


def free_host_bytes() -> int | None:
    """Free memory of the host within the limits of this process (`ulimit`) and its control groups; None: unknown."""
    known = [proc_table(MEMINFO).get("MemAvailable"), *(limit.room for limit in (*group_limits(), *own_limits()))]
    return min((bytes_ for bytes_ in known if bytes_ is not None), default=None)


def own_limits(status: Path = STATUS) -> list[Limit]:
    """The limits of address space (`ulimit -v`) and of data (`ulimit -d`), where they are set."""
    found = (_own_limit("RLIMIT_AS", "VmSize", status), _own_limit("RLIMIT_DATA", "VmData", status))
    return [limit for limit in found if limit is not None]


def address_space(status: Path = STATUS) -> int | None:
    """Bytes of address space that `ulimit -v` leaves; None: it is not limited."""
    limit = _own_limit("RLIMIT_AS", "VmSize", status)
    return None if limit is None else limit.room


def _own_limit(kind: str, used: str, status: Path) -> Limit | None:
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    most = resource.getrlimit(getattr(resource, kind))[0]
    if most == resource.RLIM_INFINITY:
        return None
    return Limit(most, max(0, most - proc_table(status).get(used, 0)))


def group_limits(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> list[Limit]:
    """The memory limits of this process' control groups (v1 and v2); reclaimable files count as room."""
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return []
    found = []
    for _, controllers, path in lines:
        old = "memory" in controllers.split(",")
        if not old and controllers:
            continue
        top = root / "memory" if old else root
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if old else ("memory.max", "memory.current")
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):  # the limit of an outer group holds too
            with contextlib.suppress(OSError, ValueError):
                limit, used = (int((folder / name).read_text()) for name in names)
                found.append(Limit(limit, max(0, limit - used + _cached_files(folder / "memory.stat"))))
            if folder == top:
                break
    return found


def _cached_files(path: Path) -> int:
    """Bytes of files that a control group caches and can drop."""
    with contextlib.suppress(OSError, ValueError):
        values = dict(line.split() for line in path.read_text().splitlines())
        return int(values.get("total_inactive_file", values.get("inactive_file", 0)))
    return 0


def proc_table(path: Path) -> dict[str, int]:
    """The fields of a /proc table that are given in kB, as bytes; empty where there is no such table."""
    with contextlib.suppress(OSError, ValueError):
        lines = [line.split() for line in path.read_text().splitlines()]
        return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if words[2:] == ["kB"]}
    return {}


def end_with_parent() -> None:
    """Have this process killed when the one that started it ends; only Linux has this call."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, int(signal.SIGKILL))
