"""Families of networks: a folder each, and a line here."""

from __future__ import annotations

from typing import Any

from shoestring.core.registry import Registry, load_entry
from shoestring.core.sections import Model

_HERE = "shoestring.models.families"

FAMILIES: Registry[Any] = Registry(
    {name: f"{_HERE}.{name}:FAMILY" for name in ("llama", "swift", "gpt2", "perceiver_ar", "masked_lm", "hf")}
)


class InFolder:
    """A family whose torch modules are in `network.py` of its folder, and imported when they are needed."""

    name: str
    network: str
    """The class there."""
    has_format: bool = False
    """Whether `transformers.py` beside it has `FORMATS`."""

    def build(self, model: Model, vocabulary: int, length: int, seed: int) -> Any:
        return load_entry(f"{_HERE}.{self.name}.network:{self.network}")(model, vocabulary, length, seed)

    def formats(self) -> tuple[Any, ...]:
        found: tuple[Any, ...] = load_entry(f"{_HERE}.{self.name}.transformers:FORMATS") if self.has_format else ()
        return found
