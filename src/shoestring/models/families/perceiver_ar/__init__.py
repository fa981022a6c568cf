"""Perceiver AR: a long row is read by its last positions, the latents. The spec needs no torch."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from shoestring.core.recipe import Recipe
from shoestring.core.sections import Model
from shoestring.cost.transformer import INDEX, Setting, Transformer, Work
from shoestring.models.families import InFolder


def latents_of(model: Model) -> int:
    """The most latents of a row."""
    assert model.latents is not None, "checked when the recipe was read"
    return model.latents


def kept_of(prefix: int, dropout: float) -> int:
    """How many positions of a prefix are kept in training."""
    return prefix - int(prefix * dropout)


class PerceiverFamily(InFolder, Transformer):
    """The first layer has a prefix; all layers see the latents alone."""

    adapts = False  # keys and values of a prefix are made by a part of a matrix
    name = "perceiver_ar"
    network = "PerceiverAR"
    fields = Transformer.fields | {"latents", "prefix_dropout"}
    document_mask = False

    def problems(self, recipe: Recipe) -> list[str]:
        model, length, found = recipe.model, recipe.data.length, super().problems(recipe)
        if not found and model.width < 2 * model.heads:
            found.append(f"model.heads = {model.heads}: must divide model.width = {model.width} into 2 or more each")
        if model.latents is None:
            found.append("model.latents: missing; a Perceiver AR predicts so many of the last positions of a row")
        elif model.latents > length:
            found.append(f"model.latents = {model.latents}: must be at most data.length = {length}")
        return found

    def last_predictions(self, model: Model) -> int:
        return latents_of(model)

    def parameters(self, model: Model, vocabulary: int, length: int) -> dict[str, int]:
        """The hybrid layer has a norm for the prefix, and a bias where its attention ends; there is no last norm."""
        matrices, d = self.matrices(model), model.width
        return {
            "embedding": (vocabulary + length) * d,
            "attention": matrices["attention"] + d,
            "mlp": matrices["mlp"],
            "norm": (2 * model.layers + 1) * 2 * d,
            "head": 0 if model.tied else vocabulary * d,
            "output_bias": vocabulary,
        }

    def work(self, model: Model, vocabulary: int, length: int, predicted: float = 1.0) -> Work:
        latents = min(latents_of(model), length)
        kept = kept_of(length - latents, model.prefix_dropout)
        return replace(
            super().work(model, vocabulary, latents, predicted),
            length=length,
            embedded=latents + kept,
            prefix_products=kept * 2 * model.width * model.width,
            pairs=model.layers * latents * latents + latents * kept,
        )

    def stream_bytes(self, model: Model, work: Work, setting: Setting, prefix: int) -> int:
        return super().stream_bytes(model, work, setting, prefix) + self.angle_bytes(model, prefix)

    def heads_bytes(self, model: Model, work: Work, setting: Setting, prefix: int) -> int:
        n, s, d, h = work.processed, setting.number, model.width, model.heads
        keys = n + prefix
        twice = 2 * s * d * n  # by heads, and then as the next product reads it
        own = s * d * (n + 2 * keys) if prefix else s * d * n * 5  # joined to the prefix's, or beside the plain ones
        mask = h * n * keys if prefix and setting.gpu else 0  # a GPU's attention has it for every head, a byte each
        return self.angle_bytes(model, prefix) + own + twice + 4 * h * n + mask

    def angle_bytes(self, model: Model, prefix: int) -> int:
        """The prefix is another in every row."""
        return prefix * 2 * 4 * (model.width // model.heads // 4)

    def outside_bytes(self, model: Model, work: Work, setting: Setting) -> Counter[str]:
        found, prefix = super().outside_bytes(model, work, setting), work.embedded - work.processed
        found["embedding"] += prefix * INDEX * (2 if model.prefix_dropout else 1)
        return found


FAMILY = PerceiverFamily()
