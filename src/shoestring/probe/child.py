"""Running a measurement in a child process that may die: what it printed before counts."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import Any

from shoestring.core.errors import Fault

_FINDING = "shoestring-finding "


def tell(finding: dict[str, Any]) -> None:
    """Called in the child: one finding on standard output."""
    print(_FINDING + json.dumps(finding), flush=True)


def listen(command: Sequence[str], timeout: float) -> tuple[list[dict[str, Any]], str | None]:
    """Called in the parent: the child's findings, and the end of what it said if it did not end well."""
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired as cause:
        raise Fault(f"measuring did not end within {timeout:.0f} s") from cause
    lines = child.stdout.splitlines()
    findings = [json.loads(line.removeprefix(_FINDING)) for line in lines if line.startswith(_FINDING)]
    if child.returncode == 0:
        return findings, None
    how = f"signal {-child.returncode}" if child.returncode < 0 else f"exit code {child.returncode}"
    said = child.stderr.strip().splitlines()
    return findings, f"{how}: {said[-1] if said else 'no message'}"
