"""Scripts in a process of their own: Triton decides once for a process whether its kernels are interpreted."""

from __future__ import annotations

import os
import runpy
import sys
import warnings
from functools import partial
from pathlib import Path

from commands import Started


def run_script(folder: Path, code: str, *arguments: object, interpret: bool = False) -> None:
    """As a file in `folder`, where Triton can read a kernel's text; it must end well."""
    script = folder / "script.py"
    script.write_text(code)
    given = [str(argument) for argument in arguments]
    started = Started(given, folder, {}, partial(_run, str(script), interpret))
    _, said = started.communicate()
    assert started.returncode == 0, said[-3000:]


def _run(script: str, interpret: bool) -> None:
    """In the new process, which has loaded no kernel of ours yet."""
    if interpret:
        _load_triton_anew()
        warnings.simplefilter("ignore")
    runpy.run_path(script, run_name="__main__")


def _load_triton_anew() -> None:
    """It decides while it is loaded, also for functions of its own; what of it is compiled decides nothing."""
    os.environ["TRITON_INTERPRET"] = "1"
    for name in [name for name in sys.modules if name.partition(".")[0] == "triton"]:
        if not name.startswith("triton._C"):
            del sys.modules[name]
