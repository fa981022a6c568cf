"""Registries of what a recipe names: families, optimizers, trackers, file formats, GPUs.

Each table is in the package of its entries. An entry is imported on first use, so naming one costs nothing. Another
package adds its own with `registry(kind).add(name, entry)`.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Generic, TypeVar

from shoestring.core.errors import UserError

T = TypeVar("T")

_TABLES = {
    "family": "shoestring.models.families:FAMILIES",
    "optimizer": "shoestring.training.optimizers:OPTIMIZERS",
    "tracker": "shoestring.track:TRACKERS",
    "format": "shoestring.data.read.formats:FORMATS",
    "gpu": "shoestring.cost.gpus:GPUS",
}


class Registry(Mapping[str, T], Generic[T]):
    """Entries by name; a text "module:attribute" is imported on first use."""

    def __init__(self, entries: Mapping[str, str | T]):
        self._entries: dict[str, str | T] = dict(entries)
        self.added: dict[str, str] = {}
        """Entries that were added as text, which another process can import."""

    def __getitem__(self, name: str) -> T:
        entry = self._entries[name]
        if isinstance(entry, str):
            entry = self._entries[name] = load_entry(entry)
        return entry

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, name: str, entry: str | T) -> None:
        """Register an entry under a new name."""
        if name in self._entries:
            raise UserError(f"{name!r} is registered already")
        self._entries[name] = entry
        if isinstance(entry, str):
            self.added[name] = entry

    def remove(self, name: str) -> None:
        del self._entries[name]
        self.added.pop(name, None)


@cache
def registry(kind: str) -> Registry[Any]:
    """The registry of a kind, such as "family"."""
    table: Registry[Any] = load_entry(_TABLES[kind])
    return table


def dump_added() -> str:
    """What was added as text to any registry, and where Python finds it, for `load_added` in a child process."""
    return json.dumps({"path": sys.path, "added": {kind: registry(kind).added for kind in _TABLES}})


def load_added(text: str) -> None:
    """Add what another process had added."""
    values = json.loads(text)
    sys.path.extend(folder for folder in values["path"] if folder not in sys.path)
    for kind, entries in values["added"].items():
        for name, entry in entries.items():
            registry(kind).add(name, entry)


def load_entry(path: str) -> Any:
    """The object that "module:attribute" names."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
