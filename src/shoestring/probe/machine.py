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
from shoestring.core.facts import Machine

_PACKAGES = ("triton", "numpy", "safetensors")


def pick_device() -> torch.device:
    """The first GPU if there is one, else the CPU."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def describe_machine(device: torch.device) -> Machine:
    """What a record says about where it was made."""
    cuda = device.type == "cuda"
    versions = {"shoestring": __version__, "torch": torch.__version__}
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return Machine(
        device=device.type,
        device_name=torch.cuda.get_device_name(device) if cuda else _cpu_name(),
        threads=torch.get_num_threads(),
        memory_bytes=torch.cuda.get_device_properties(device).total_memory if cuda else _meminfo("MemTotal"),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        versions=versions,
    )


def available_bytes(device: torch.device) -> int | None:
    """Memory that is free now: of the GPU, or of the host within what its control groups allow."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = [bytes_ for bytes_ in (_meminfo("MemAvailable"), *group_room()) if bytes_ is not None]
    return min(free, default=None)


def group_room(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> list[int]:
    """What each memory limit of this process' control groups leaves, files that can go included; both versions."""
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
        for folder in (group, *group.parents):  # a limit of an outer group holds too
            with contextlib.suppress(OSError, ValueError):
                limit, used = (int((folder / name).read_text()) for name in names)
                found.append(max(0, limit - used + _cached_files(folder / "memory.stat")))
            if folder == top:
                break
    return found


def _cached_files(path: Path) -> int:
    """Bytes of files that a control group keeps in memory without need."""
    with contextlib.suppress(OSError, ValueError):
        values = dict(line.split() for line in path.read_text().splitlines())
        return int(values.get("total_inactive_file", values.get("inactive_file", 0)))
    return 0


class Resident(NamedTuple):
    """Bytes of this process that are in memory."""

    now: int
    highest: int
    """Since `reset_peak`."""
    files: int
    """Of `now`, pages of files: libraries, and stores that are read. The system takes them back when it wants to."""


def resident(status: Path = Path("/proc/self/status")) -> Resident | None:
    """None where the system does not tell."""
    try:
        text = status.read_text()
    except OSError:
        return None
    now, highest, files = (_kilobytes(text, name) for name in ("VmRSS", "VmHWM", "RssFile"))
    return None if now is None or highest is None else Resident(now, highest, files or 0)


def reset_peak(device: torch.device) -> None:
    """Start a new memory peak; on a GPU, what earlier work left cached is given back first."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # Linux: the resident peak starts anew


def peak_bytes(device: torch.device) -> int | None:
    """The highest memory in use since `reset_peak`: what the allocator held, or the process' resident size."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    return _field(Path("/proc/self/status"), "VmHWM")


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return f"{platform.machine()} CPU, {os.cpu_count()} cores"


def _meminfo(name: str) -> int | None:
    return _field(Path("/proc/meminfo"), name)


def _field(path: Path, name: str) -> int | None:
    """A field of a /proc table that is given in kB, as bytes."""
    with contextlib.suppress(OSError):
        return _kilobytes(path.read_text(), name)
    return None


def _kilobytes(table: str, name: str) -> int | None:
    with contextlib.suppress(ValueError, IndexError):
        for line in table.splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
    return None
