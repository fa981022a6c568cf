"""BERT: an encoder that predicts hidden tokens of a row, or its class. The spec needs no torch."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from shoestring.core.family import LEAST_WARMUP
from shoestring.core.recipe import Recipe
from shoestring.core.sections import Model
from shoestring.cost.transformer import INDEX, Setting, Transformer, Work, table_positions
from shoestring.models.families import InFolder

TOKEN_TYPES = 2
"""Token types in the table of BERT's published weights. All tokens are of type 0."""

WIDE = 4
"""Bytes per number of the residual stream, whatever the precision of products: each norm rounds the whole of it, and
in bf16 what a part adds would be lost."""


class MaskedFamily(InFolder, Transformer):
    """A norm after each part, and a head of its own."""

    name = "masked_lm"
    network = "MaskedLM"
    has_format = True
    fields = Transformer.fields | {"positions", "classes"}
    data_fields = frozenset({"masked", "whole_words", "label"})
    document_mask = False
    norm_in_mlp = False
    warmup = LEAST_WARMUP
    lr_factor = 0.4
    """With norms after each part. A 64×2 model stays at the unigram's loss with 5e-3 to 1e-2, where a Llama learns.
    BERT has 1e-4 where GPT-3 of that size has 6e-4."""

    def problems(self, recipe: Recipe) -> list[str]:
        found = super().problems(recipe)
        if (recipe.data.label is None) != (recipe.model.classes is None):
            found.append("data.label and model.classes: give both, or none of the two")
        return found

    def predicts_hidden(self, model: Model) -> bool:  # noqa: ARG002
        return True

    def parameters(self, model: Model, vocabulary: int, length: int) -> dict[str, int]:
        matrices, biases, d = self.matrices(model), self.biases(model), model.width
        if model.classes:
            output = model.classes * (d + 1)
        else:
            output = vocabulary * (1 if model.tied else d + 1)
        return {
            "embedding": (vocabulary + table_positions(model, length) + TOKEN_TYPES) * d,
            **{part: matrices[part] + biases[part] for part in matrices},
            "norm": (2 * model.layers + (1 if model.classes else 2)) * 2 * d,
            "head": d * d + d + output,
        }

    def work(self, model: Model, vocabulary: int, length: int, predicted: float = 1.0) -> Work:
        """A classifier's head reads one position per row."""
        return replace(
            super().work(model, model.classes or vocabulary, length, predicted),
            predictions=1 if model.classes else predicted * length,
            before_output=model.width * model.width,
        )

    def stream_bytes(self, model: Model, work: Work, setting: Setting, prefix: int) -> int:  # noqa: ARG002
        return WIDE * model.width * work.processed

    def norm_bytes(self, model: Model, setting: Setting) -> int:
        """Compiled: the normalised sums and their scales."""
        return 2 * (4 + WIDE * model.width) if setting.compiled else super().norm_bytes(model, setting)

    def backward_bytes(self, model: Model, length: int, setting: Setting) -> int:
        """The stream's gradient, and those of the MLP's output and hidden layer."""
        return length * (WIDE * model.width + setting.number * (model.width + self.hidden(model)))

    def mlp_bytes(self, model: Model, setting: Setting) -> int:
        return WIDE * model.width if setting.recompute == "selective" else super().mlp_bytes(model, setting)

    def outside_bytes(self, model: Model, work: Work, setting: Setting) -> Counter[str]:
        found, t, s, d = super().outside_bytes(model, work, setting), work.length, setting.number, model.width
        found["embedding"] += t * (4 * d + 8) - INDEX
        if model.classes:
            found["output"] = s * d * (2 + (t if s == WIDE else 1))  # a copy of the first token, or a view of all
        else:
            some = INDEX if work.predictions < t else 0
            found["output"] = int(work.predictions * (3 * s * d + 4 * d + 8 + some))
        return found


FAMILY = MaskedFamily()
