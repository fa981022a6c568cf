"""Benchmark records: every published number names machine, versions, commit, command and date."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from shoestring.core.schema import encode
from shoestring.probe.machine import describe_machine, pick_device

ROOT = Path(__file__).resolve().parent.parent


def commit() -> str:
    """The commit measured, marked where the tree has changes; BENCH_COMMIT where that is given, for a machine whose
    copy of the repository is older than its files."""
    if named := os.environ.get("BENCH_COMMIT"):
        return named
    try:
        head = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        paths = ["git", "status", "--porcelain", "--", "src", "bench", "pyproject.toml"]
        changed = subprocess.run(paths, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
        return head.stdout.strip() + ("+changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def write(name: str, values: dict[str, Any], folder: Path | None = None) -> Path:
    """Write results/NAME-DEVICE.json; `folder` is another place to write to."""
    machine = describe_machine(pick_device())
    record = {
        "schema": f"shoestring.bench.{name}/1",
        "machine": encode(machine),
        "commit": commit(),
        "command": command(),
        "date": time.strftime("%Y-%m-%d"),
        **values,
    }
    device = "cpu" if machine.device == "cpu" else machine.device_name.lower().replace("nvidia ", "").replace(" ", "-")
    path = (folder or ROOT / "results") / f"{name}-{device}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2) + "\n")
    print(f"wrote {path}")
    return path


def earlier(name: str, folder: Path | None = None) -> dict[str, Any]:
    """Results by name of this machine's record that is to be added to: in `folder`, or else among the results."""
    here = describe_machine(pick_device()).device_name
    for place in (folder, ROOT / "results"):
        for file in sorted(place.glob(f"{name}-*.json")) if place is not None else ():
            old = json.loads(file.read_text())
            if old["machine"]["device_name"] == here and old["schema"] == f"shoestring.bench.{name}/1":
                results: dict[str, Any] = old["results"]
                return results
    return {}


def command() -> str:
    return " ".join(["python", *_told(sys.argv)])


def _told(arguments: list[str]) -> list[str]:
    """The command without where its record and runs went, and what it was resumed from."""
    for option in ("--out", "--work", "--resume", "--minutes"):
        if option in arguments:
            at = arguments.index(option)
            arguments = arguments[:at] + arguments[at + 2 :]
    return list(map(_relative, arguments))


def _relative(argument: str) -> str:
    path = Path(argument)
    try:
        inside = path.exists() and path.resolve().is_relative_to(ROOT)
    except OSError:  # longer than a name of a file may be
        return argument
    return str(path.resolve().relative_to(ROOT)) if inside else argument
