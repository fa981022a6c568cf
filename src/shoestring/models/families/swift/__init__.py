"""Swift: a Llama with norms of queries and keys, which learns more in the same steps. The spec needs no torch."""

from __future__ import annotations

from dataclasses import replace

from shoestring.core.recipe import Recipe
from shoestring.core.sections import Model
from shoestring.cost.transformer import Setting, Work
from shoestring.models.families.llama import LlamaFamily


class SwiftFamily(LlamaFamily):
    """A Llama with two more gains per layer, of the channels of a head."""

    name = "swift"
    network = "Swift"
    fields = LlamaFamily.fields - {"bias"}

    def has_kernels(self, recipe: Recipe) -> bool:  # noqa: ARG002
        """Not for the norms of queries and keys."""
        return False

    def parameters(self, model: Model, vocabulary: int, length: int) -> dict[str, int]:
        found = super().parameters(model, vocabulary, length)
        return found | {"norm": found["norm"] + 2 * model.layers * (model.width // model.heads)}

    def heads_bytes(self, model: Model, work: Work, setting: Setting, prefix: int) -> int:
        """No kernel rotates them on a GPU."""
        return super().heads_bytes(model, work, replace(setting, gpu=False), prefix)

    def _attention_bytes(self, model: Model, work: Work, setting: Setting, prefix: int) -> int:
        """Also the statistics of both norms, and where they are not compiled their inputs and outputs in float32."""
        n, turned = work.processed, model.width + self.key_channels(model)
        found = super()._attention_bytes(model, work, setting, prefix)
        found += n * 4 * (model.heads + (model.kv_heads or model.heads))
        if setting.compiled:
            return found
        found += n * 4 * turned * (2 if setting.number == 2 else 1)
        if model.dropout and not setting.gpu and setting.number == 4:  # they are parts of the product, which is kept
            found += n * 4 * (turned + self.key_channels(model))
        return found


FAMILY = SwiftFamily()
