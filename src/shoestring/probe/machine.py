"""The machine: which device, how much memory, which versions."""

from __future__ import annotations

import contextlib
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import torch

from shoestring import __version__
from shoestring.core.records import Machine

_PACKAGES = ("triton", "numpy", "safetensors")
_MEMINFO, _STATUS = Path("/proc/meminfo"), Path("/proc/self/status")


def pick_device() -> torch.device:
    """The first GPU if there is one, else the CPU."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def describe_machine(device: torch.device) -> Machine:
    """The machine that a record was made on."""
    cuda = device.type == "cuda"
    versions = {"shoestring": __version__, "torch": torch.__version__}
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return Machine(
        device=device.type,
        device_name=torch.cuda.get_device_name(device) if cuda else _cpu_name(),
        threads=torch.get_num_threads(),
        memory_bytes=torch.cuda.get_device_properties(device).total_memory
        if cuda
        else _table(_MEMINFO).get("MemTotal"),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        versions=versions,
    )


def available_bytes(device: torch.device) -> int | None:
    """Free memory: of the GPU, or of the host within the limits of its control groups."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = [bytes_ for bytes_ in (_table(_MEMINFO).get("MemAvailable"), *group_room()) if bytes_ is not None]
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


class Resident(NamedTuple):
    """Resident bytes of this process."""

    now: int
    highest: int
    """Since `reset_peak`."""
    files: int
    """Of `now`, pages of files: libraries, and stores that are read. The system may drop them."""


def resident(status: Path = _STATUS) -> Resident | None:
    """None where the system does not report it."""
    table = _table(status)
    known = "VmRSS" in table and "VmHWM" in table
    return Resident(table["VmRSS"], table["VmHWM"], table.get("RssFile", 0)) if known else None


def reset_peak(device: torch.device) -> None:
    """Start a new memory peak; on a GPU, return cached memory first."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # Linux: reset the resident peak


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return f"{platform.machine()} CPU, {os.cpu_count()} cores"


def _table(path: Path) -> dict[str, int]:
    """The fields of a /proc table that are given in kB, as bytes; empty where there is no such table."""
    with contextlib.suppress(OSError, ValueError):
        lines = [line.split() for line in path.read_text().splitlines()]
        return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if words[2:] == ["kB"]}
    return {}
