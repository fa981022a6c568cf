"""Objects in the user's own Python files: networks and corpora that a recipe names as "file.py:name".

A run keeps a copy of such a file. The code of a run folder runs only if the user ran it before or trusts it explicitly:
opening a stranger's run must not run a stranger's code.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from shoestring.core.errors import UserError, nearest, storage_error
from shoestring.core.files import cache_folder, write_whole
from shoestring.core.specs import CodeSpec

COPIES = "code"
"""Subfolder of a run with the files that its recipe names."""
TRUST = "SHOESTRING_TRUST_CODE"
"""Environment variable: "1" runs the code of any run folder."""


def code_fingerprint(spec: CodeSpec) -> str:
    """Sixteen hexadecimal digits of the file's content."""
    path = Path(spec.file).expanduser()
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError as cause:
        raise storage_error("read", path, cause) from cause


def load_code(spec: CodeSpec, field: str) -> Any:
    """The object that `spec` names; errors name the `field` of the recipe. A file runs once per content."""
    path, digest = Path(spec.file).expanduser(), code_fingerprint(spec)
    is_copy = path.parent.name == COPIES and (path.parent.parent / "recipe.toml").is_file()
    if is_copy and os.environ.get(TRUST) != "1" and not _note(digest).is_file():
        raise UserError(
            f"{path} is code that came with a run and never ran here; read it, and if you trust it set {TRUST}=1"
        )
    name = f"shoestring_user_{path.stem}_{digest}"
    module = sys.modules.get(name)
    if module is None:
        found = importlib.util.spec_from_file_location(name, path)
        assert found is not None and found.loader is not None, "a path that ends in .py has a loader"
        module = importlib.util.module_from_spec(found)
        if str(path.parent.resolve()) not in sys.path:
            sys.path.append(str(path.parent.resolve()))  # for its imports from the same folder
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
