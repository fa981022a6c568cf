"""The memory of the host, as the system tells it."""

from __future__ import annotations

import contextlib
from pathlib import Path

MEMINFO = Path("/proc/meminfo")


def free_host_bytes() -> int | None:
    """Free memory of the host within the limits of this process' control groups; None: unknown."""
    free = [bytes_ for bytes_ in (proc_table(MEMINFO).get("MemAvailable"), *group_room()) if bytes_ is not None]
    return min(free, default=None)


def group_room(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> list[int]:
    """Bytes that each memory limit of this process' control groups (v1 and v2) leaves, reclaimable files included."""
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
                found.append(max(0, limit - used + _cached_files(folder / "memory.stat")))
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
