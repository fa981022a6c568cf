"""A torch module of the user's own: `model.family = "my_model.py:Net"`. Its memory and time are measured."""

from __future__ import annotations

from typing import Any

from shoestring.core.family import Family
from shoestring.core.records import Cost
from shoestring.core.sections import Model
from shoestring.core.specs import CodeSpec


class CustomFamily(Family):
    """The class or function that a recipe names makes the network; it gets the fields of `[model]` that it has."""

    fields = frozenset({"options", "width", "layers", "heads", "kv_heads", "hidden", "tied", "bias", "dropout"})
    recompute = ("none", "full")

    def __init__(self, spec: CodeSpec):
        self.name, self._spec = str(spec), spec

    def cost(self, model: Model, vocabulary: int, length: int, predicted: float = 1.0) -> Cost:  # noqa: ARG002
        from shoestring.models.families.custom.network import custom_cost

        return custom_cost(self._spec, model, vocabulary, length)

    def build(self, model: Model, vocabulary: int, length: int, seed: int) -> Any:
        from shoestring.models.families.custom.network import Custom

        return Custom(self._spec, model, vocabulary, length, seed)
