"""Scripts in a process of their own: Triton decides once for a process whether its kernels are interpreted."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from functools import partial
from pathlib import Path

from commands import Started


def run_script(folder: Path, code: str, *arguments: object, interpret: bool = False) -> None:
    """As a file in `folder`, where Triton can read a kernel's text; it must end well.

    Only where kernels are interpreted must the process load torch and Triton itself.
    """
    script = folder / "script.py"
    script.write_text(code)
    given = [str(argument) for argument in arguments]
    if not interpret:
        started = Started(given, folder, {}, partial(runpy.run_path, str(script), run_name="__main__"))
        _, said = started.communicate()
        assert started.returncode == 0, said[-3000:]
        return
    result = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), *given],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
