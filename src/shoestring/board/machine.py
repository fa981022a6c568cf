"""The machine that the board runs on, as it is now."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

_FIELDS = ("name", "memory.used", "memory.total", "utilization.gpu", "temperature.gpu")
_EVERY = 2.0
"""Seconds between two looks."""


class MachineNow:
    """Memory, load, and every GPU that nvidia-smi lists; looked at every few seconds at most."""

    def __init__(self) -> None:
        self._at, self._found = -_EVERY, dict[str, Any]()

    def read(self) -> dict[str, Any]:
        if time.monotonic() - self._at >= _EVERY:
            self._at = time.monotonic()
            self._found = {"host": os.uname().nodename, "cores": os.cpu_count(), **_host(), "gpus": _gpus()}
        return self._found


def _host() -> dict[str, float | None]:
    load = os.getloadavg()[0]
    try:
        lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
        sizes = {words[0].rstrip(":"): 1024 * int(words[1]) for words in lines}
        total, free = sizes["MemTotal"], sizes["MemAvailable"]
    except (OSError, KeyError, ValueError, IndexError):
        return {"load": load, "memory_bytes": None, "used_bytes": None}
    return {"load": load, "memory_bytes": total, "used_bytes": total - free}


def _gpus() -> list[dict[str, Any]]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    asked = [program, f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, timeout=5, check=True).stdout  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return []
    return [parse_gpu(line) for line in said.splitlines() if line.count(",") == len(_FIELDS) - 1]


def parse_gpu(line: str) -> dict[str, Any]:
    """A line of nvidia-smi; what it does not know is None."""
    name, *numbers = (cell.strip() for cell in line.split(","))
    used, total, busy, heat = (float(cell) if cell.replace(".", "", 1).isdigit() else None for cell in numbers)
    mib = 1 << 20
    return {
        "name": name,
        "used_bytes": None if used is None else used * mib,
        "memory_bytes": None if total is None else total * mib,
        "utilisation": None if busy is None else busy / 100,
        "celsius": heat,
    }
