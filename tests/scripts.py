"""Scripts in a process of their own: Triton decides once for a process whether its kernels are interpreted."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import os
import runpy
import sys
import warnings
from dataclasses import replace
from functools import cache, partial
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
    if importlib.util.find_spec("triton"):
        with contextlib.suppress(AttributeError):  # names of another version
            _interpret_faster()


def _interpret_faster() -> None:
    """Leave out half of what Triton's interpreter does, which changes no result.

    It computes every sum of integers again, to compare it with the limits of its type, and forgets what it found unless
    it is debugged. At every call of a function it looks for builtins among all names of a module, and makes a table of
    all types whenever it needs one.
    """
    from triton import language
    from triton.runtime import interpreter

    assert not interpreter.interpreter_builder.options.debug
    options = replace(interpreter.interpreter_builder.options, sanitize_overflow=False)
    interpreter.interpreter_builder.options = options
    look_up = interpreter._get_np_dtype
    known = cache(look_up)
    plain = language.core.dtype  # others, as pointers, have no hash
    interpreter._get_np_dtype = lambda kind: known(kind.scalar) if type(kind.scalar) is plain else look_up(kind)

    @cache
    def builtins_of(package: object) -> list[str]:
        """Asked first before any is replaced."""
        return [name for name, member in inspect.getmembers(package) if language.core.is_builtin(member)]

    def patch(package: object, builder: object, scope: object) -> None:
        for name in builtins_of(package):
            member = getattr(package, name)
            if language.core.is_builtin(member):
                interpreter._patch_attr(package, name, member, builder, scope)

    interpreter._patch_builtin = patch
