"""GPT-2: learned positions, LayerNorm before each part, GELU, biases. The spec needs no torch."""

from __future__ import annotations

from collections import Counter

from shoestring.core.sections import OF_DROPOUT, Model
from shoestring.cost.transformer import INDEX, Setting, Transformer, Work, table_positions
from shoestring.models.families import InFolder


class GPT2Family(InFolder, Transformer):
    """The network that `Transformer` counts, with a table of positions."""

    name = "gpt2"
    network = "GPT2"
    has_format = True
    fields = Transformer.fields | {*OF_DROPOUT, "positions"}

    def parameters(self, model: Model, vocabulary: int, length: int) -> dict[str, int]:
        matrices, biases, d = self.matrices(model), self.biases(model), model.width
        return {
            "embedding": (vocabulary + table_positions(model, length)) * d,
            **{part: matrices[part] + biases[part] for part in matrices},
            "norm": (2 * model.layers + 1) * 2 * d,
            "head": 0 if model.tied else vocabulary * d,
        }

    def outside_bytes(self, model: Model, work: Work, setting: Setting) -> Counter[str]:
        found = super().outside_bytes(model, work, setting)
        found["output"] += work.processed * (4 * model.width + 8)
        found["embedding"] += work.processed * INDEX if setting.document_mask else 0
        return found


FAMILY = GPT2Family()
