"""Any causal or masked language model of `transformers`, by hub name, folder or config; counted with torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shoestring.core.family import Family
from shoestring.core.recipe import Recipe
from shoestring.core.records import Cost
from shoestring.core.sections import Model
from shoestring.models.families import InFolder


class HFFamily(InFolder, Family):
    """The shape is in the model's own config."""

    name = "hf"
    network = "HF"
    fields = frozenset({"name"})
    data_fields = frozenset({"masked", "whole_words"})
    recompute = ("none", "full")
    adapts = True

    def problems(self, recipe: Recipe) -> list[str]:
        missing = 'model.name: missing; family "hf" needs a hub name or a folder'
        return [missing] if recipe.model.name is None else []

    def begins_trained(self, model: Model) -> bool:
        """A config alone, or a folder that holds nothing but one, has random weights."""
        if model.init is not None or model.name is None:
            return model.init is not None
        place = Path(model.name).expanduser()
        return not place.exists() or (place.is_dir() and any(place.glob("*.safetensors*")))

    def predicts_hidden(self, model: Model) -> bool:
        from shoestring.models.families.hf.network import predicts_hidden, read_config

        assert model.name is not None, "checked when the recipe was read"
        return predicts_hidden(read_config(model.name), model.name)

    def cost(self, model: Model, vocabulary: int, length: int, predicted: float = 1.0) -> Cost:  # noqa: ARG002
        from shoestring.models.families.hf.counting import hf_cost

        return hf_cost(model, vocabulary, length)

    def skeleton(self, model: Model, vocabulary: int, length: int) -> Any:
        from shoestring.models.families.hf.network import HF

        return HF.skeleton(model, vocabulary, length)

    def saved_row_bytes(self, model: Model, vocabulary: int, length: int, number: int) -> dict[str, int] | None:
        from shoestring.models.families.hf.counting import hf_saved_bytes

        return hf_saved_bytes(model, vocabulary, length, number)


FAMILY = HFFamily()
