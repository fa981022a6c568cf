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
from shoestring.core.compiled_code import keep_compiled_code
from shoestring.core.host import STATUS, free_host_bytes, host_bytes, proc_table
from shoestring.core.records import Machine

_PACKAGES = ("triton", "numpy", "safetensors")


def pick_device() -> torch.device:
    """The first GPU if there is one, else the CPU. Kernels that are compiled for a GPU are kept in the user's cache."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    keep_compiled_code(torch.__version__)
    return torch.device("cuda", 0)


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
        memory_bytes=torch.cuda.get_device_properties(device).total_memory if cuda else host_bytes(),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        versions=versions,
    )


def available_bytes(device: torch.device) -> int | None:
    """Free memory: of the GPU, or of the host within the limits of this process."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return free_host_bytes()


class Resident(NamedTuple):
    """Resident bytes of this process."""

    now: int
    highest: int
    """Since `reset_peak`."""
    files: int
    """Of `now`, pages of files: libraries, and stores that are read. The system may drop them."""


def resident(status: Path = STATUS) -> Resident | None:
    """None where the system does not report it."""
    table = proc_table(status)
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
