"""Scripts in a process of their own: Triton decides once for a process whether its kernels are interpreted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run_script(folder: Path, code: str, *arguments: object, **environment: str) -> None:
    """As a file in `folder`, where Triton can read a kernel's text; it must end well."""
    script = folder / "script.py"
    script.write_text(code)
    result = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), *map(str, arguments)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
