"""Objects in the user's own Python files: networks and corpora that a recipe names as "file.py:name".

A run keeps a copy of such a file. The code of a run folder runs only if the user ran it before or trusts it explicitly:
opening a stranger's run must not run a stranger's code. What runs is what was checked: the source is compiled from the
bytes whose fingerprint is known, never from compiled files beside it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from shoestring.core.errors import UserError, nearest, storage_error
from shoestring.core.files import cache_folder, check_readable, write_whole
from shoestring.core.specs import CodeSpec

COPIES = "code"
"""Subfolder of a run with the files that its recipe names."""
TRUST = "SHOESTRING_TRUST_CODE"
"""Environment variable: "1" runs the code of any run folder."""


_RECORDS = ("plan.json", "profile.json", "machine.json", "metrics.jsonl", "checkpoints", "DONE")
"""Names beside a recipe.toml that show a run folder, not a folder in which the user keeps recipes and code."""


def code_fingerprint(spec: CodeSpec) -> str:
    """Sixteen hexadecimal digits of the file's content."""
    path = Path(spec.file).expanduser()
    check_readable(path)
    try:
        return _digest(path.read_bytes())
    except OSError as cause:
        raise storage_error("read", path, cause) from cause


def _digest(source: bytes) -> str:
    return hashlib.sha256(source).hexdigest()[:16]


def load_code(spec: CodeSpec, field: str) -> Any:
    """The object that `spec` names; errors name the `field` of the recipe. A file runs once per content."""
    path, digest = Path(spec.file).expanduser(), code_fingerprint(spec)
    _check_trust(path, digest)
    name = f"shoestring_user_{path.stem}_{digest}"
    module = sys.modules.get(name)
    if module is None:
        found = importlib.util.spec_from_file_location(name, path, loader=_Source(name, str(path)))
        assert found is not None and found.loader is not None, "a loader was given"
        module = importlib.util.module_from_spec(found)
        _find_siblings(path)
        sys.modules[name] = module
        try:
            found.loader.exec_module(module)
        except Exception as cause:
            del sys.modules[name]
            raise UserError(f'{field} = "{spec}": {path} cannot be run ({type(cause).__name__}: {cause})') from cause
    if not hasattr(module, spec.name):
        known = [each for each in vars(module) if not each.startswith("_")]
        raise UserError(f'{field} = "{spec}": {path} has no {spec.name}; {nearest(spec.name, known)}')
    return getattr(module, spec.name)


def trust_code(spec: CodeSpec) -> None:
    """Record that the user has run the present content of the file."""
    write_whole(_note(code_fingerprint(spec)), f"{spec}\n")


def _note(digest: str) -> Path:
    return cache_folder() / "trusted" / digest


def _check_trust(path: Path, digest: str) -> None:
    """Raise UserError for code that came with a run, unless it ran here before or the user trusts it explicitly."""
    if _is_of_run(path) and os.environ.get(TRUST) != "1" and not _note(digest).is_file():
        raise UserError(
            f"{path} is code that came with a run and never ran here; read it, and if you trust it set {TRUST}=1"
        )


def _is_of_run(path: Path) -> bool:
    """Whether a file lies in a run folder, where the user's own code does not begin."""
    for where in {path.absolute(), path.resolve()}:
        for folder in where.parents:
            if (folder / "recipe.toml").is_file():
                is_copy = where.parent == folder / COPIES
                if is_copy or any((folder / name).exists() for name in _RECORDS):
                    return True
    return False


class _Source(SourceFileLoader):
    """Runs the source of a file, checked, and neither reads nor writes a compiled form of it."""

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002
        source = self.get_data(self.path)
        _check_trust(Path(self.path), _digest(source))
        code: CodeType = self.source_to_code(source, self.path)
        return code


class _Siblings:
    """Finds the modules that a run's copy imports among the other copies; each is checked before it runs."""

    def __init__(self) -> None:
        self.folders: list[Path] = []

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        files = [] if path is not None or "." in name else [folder / f"{name}.py" for folder in self.folders]
        file = next((file for file in files if file.is_file()), None)
        return None if file is None else importlib.util.spec_from_file_location(name, loader=_Source(name, str(file)))


_SIBLINGS = _Siblings()


def _find_siblings(path: Path) -> None:
    """Let a file import from its own folder, after everything that is installed."""
    folder = path.parent.resolve()
    if not _is_of_run(path):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
        return
    if _SIBLINGS not in sys.meta_path:
        sys.meta_path.append(_SIBLINGS)
    if folder not in _SIBLINGS.folders:
        _SIBLINGS.folders.append(folder)
