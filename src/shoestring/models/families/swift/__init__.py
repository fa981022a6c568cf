"""Swift: a Llama with parts that learn more in the same time, each of which can be left out. Needs no torch."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from shoestring.core.recipe import Recipe
from shoestring.core.sections import Model, number
from shoestring.core.specs import PartsSpec
from shoestring.cost.transformer import FLEX, INDEX, Setting, Transformer, Work
from shoestring.models.families.llama import LlamaFamily

DEFAULT = PartsSpec("qk_norm, gains")
FULL_EVERY = 4
GATE = 32
"""Channels of the stream that the gate of value embeddings reads, at most."""


def full_every(model: Model) -> int:
    """Of how many layers one sees all positions."""
    return FULL_EVERY if model.full_every is None else model.full_every


def parts_of(model: Model) -> PartsSpec:
    """The parts that a model has."""
    return DEFAULT if model.parts is None else model.parts


class SwiftFamily(LlamaFamily):
    """A Llama and its parts. Layers differ in their value embeddings and windows, both counted from the last one."""

    name = "swift"
    network = "Swift"
    fields = LlamaFamily.fields - {"bias"} | {"parts", "pairs", "pointer", "window", "full_every"}

    def problems(self, recipe: Recipe) -> list[str]:
        model, found = recipe.model, super().problems(recipe)
        if model.window is None and model.full_every is not None:
            found.append(f"model.full_every = {model.full_every}: needs model.window, the positions of local attention")
        return found

    def has_kernels(self, recipe: Recipe) -> bool:
        """Where a Llama has them, but not for squared ReLU, nor for windows."""
        parts = parts_of(recipe.model)
        heads = parts.has("qk_norm") or not parts.has("value_embeddings")
        return heads and not parts.has("relu2") and recipe.model.window is None and super().has_kernels(recipe)

    def _one_pass(self, model: Model, setting: Setting) -> bool:
        """Whether norms, angles and the addition to values are one kernel (`models.layers.normed_heads`)."""
        return setting.fused and not setting.document_mask and parts_of(model).has("qk_norm")

    def value_layers(self, model: Model) -> list[int]:
        """The layers with value embeddings: every second one, the last among them."""
        layers = range(model.layers) if parts_of(model).has("value_embeddings") else ()
        return [layer for layer in layers if (model.layers - 1 - layer) % 2 == 0]

    def pairs(self, model: Model) -> int:
        """Rows of the table for pairs of tokens; 0 without one."""
        return int(number(model.pairs)) if model.pairs else 0

    def gate_channels(self, model: Model) -> int:
        """G: channels that a gate of value embeddings reads."""
        return min(GATE, model.width)

    def pointer(self, model: Model) -> int:
        """Channels of a pointer's queries and keys; 0 without one."""
        return int(number(model.pointer)) if model.pointer else 0

    def window(self, model: Model, layer: int) -> int | None:
        """Positions that a query of a layer sees; None: all before it."""
        return None if (model.layers - 1 - layer) % full_every(model) == 0 else model.window

    def hidden(self, model: Model) -> int:
        """F: as given; 4 D for squared ReLU, and as many parameters for SwiGLU."""
        return model.hidden or (4 * model.width if parts_of(model).has("relu2") else super().hidden(model))

    def block_products(self, model: Model) -> dict[str, list[tuple[int, int]]]:
        found, d, f = super().block_products(model), model.width, self.hidden(model)
        return found | ({"mlp": [(f, d), (d, f)]} if parts_of(model).has("relu2") else {})

    def matrices(self, model: Model) -> dict[str, int]:
        found = super().matrices(model)
        gate = self.gate_channels(model) * (model.kv_heads or model.heads)
        return found | {"attention": found["attention"] + len(self.value_layers(model)) * gate}

    def parameters(self, model: Model, vocabulary: int, length: int) -> dict[str, int]:
        found, parts, d = super().parameters(model, vocabulary, length), parts_of(model), model.width
        gains = found["norm"] + parts.has("qk_norm") * 2 * model.layers * (d // model.heads)
        gains += parts.has("embedding_norm") * d
        tables = vocabulary * self.key_channels(model) * len(self.value_layers(model)) + self.pairs(model) * d
        factors, channels = model.layers * parts.positions_before, self.pointer(model)
        return found | {
            "attention": found["attention"] + factors * 2 * self.key_channels(model),
            "mlp": found["mlp"] + factors * d,
            "embedding": found["embedding"] + tables,
            "norm": gains * parts.has("gains") + 2 * model.layers * parts.has("scales"),
            "head": found["head"] + ((2 * channels + 1) * d + 1) * bool(channels),
        }

    def work(self, model: Model, vocabulary: int, length: int, predicted: float = 1.0) -> Work:
        """A query of a local layer counts with the positions of its window, those before the row too."""
        seen = [min(self.window(model, layer) or length, length) for layer in range(model.layers)]
        found = super().work(model, vocabulary, length, predicted)
        pointer = self.pointer(model) * (2 * model.width + length)  # queries, keys and their products
        return replace(found, pairs=length * sum(seen), before_output=pointer)

    def decisive(self, model: Model) -> dict[str, object]:
        every = None if model.window is None else full_every(model)
        return super().decisive(model) | {
            "parts": parts_of(model).in_order,
            "pairs": self.pairs(model),
            "pointer": self.pointer(model),
            "window": model.window,
            "full_every": every,
        }

    def logit_cap(self, model: Model) -> float | None:
        return parts_of(model).cap

    def saved_bytes(self, model: Model, length: int, setting: Setting, predicted: float = 1.0) -> dict[str, int]:
        """Also the rows of the value embeddings, and what the layers that add them save more or less than others."""
        found, layers = Counter(super().saved_bytes(model, length, setting, predicted)), len(self.value_layers(model))
        if layers:
            found["values"] = layers * setting.number * length * self.key_channels(model)
            if setting.recompute != "full":
                found["attention"] += layers * length * self._valued_bytes(model, setting)
        return dict(found)

    def recomputed_bytes(self, model: Model, length: int, setting: Setting) -> int:
        more = length * self._valued_bytes(model, setting) if self.value_layers(model) else 0
        return super().recomputed_bytes(model, length, setting) + max(0, more) * (setting.recompute == "full")

    def _valued_bytes(self, model: Model, setting: Setting) -> int:
        """Bytes per position: a gate and its sigmoid, and values apart from the product that made them."""
        s, k, heads = setting.number, self.key_channels(model), model.kv_heads or model.heads
        if self._one_pass(model, setting):
            return s * heads
        gates = (1 if setting.compiled else 2) * s * heads
        if (model.attention_rate and not setting.gpu) or self._rotated_in_one_pass(model, setting):
            return gates
        needed = parts_of(model).has("qk_norm") and (s == 4 or setting.compiled)  # by the norms
        return gates + (s * k if needed else -s * (model.width + k))

    def norm_bytes(self, model: Model, setting: Setting) -> int:
        """Without gains a norm's output is not saved; with scales the sum before them is."""
        parts, found = parts_of(model), super().norm_bytes(model, setting)
        if not (parts.has("gains") or setting.compiled or setting.fused):
            found -= 2 * 4 * model.width
        apart = parts.has("scales") and not (setting.fused or setting.compiled)
        again = setting.compiled and not setting.fused  # the norm is computed again
        convolved = parts.has("convolutions") and not again
        return found + (apart + convolved) * setting.number * model.width

    def heads_bytes(self, model: Model, work: Work, setting: Setting, prefix: int) -> int:
        """One kernel for norms, angles and values keeps its input beside its output; none is for short rows."""
        n, s, d, k = work.processed, setting.number, model.width, self.key_channels(model)
        if self._rotated_in_one_pass(model, setting):
            return s * n * (2 * d + 2 * k) + 4 * model.heads * n
        values = s * n * k * self._one_pass(model, setting)
        return super().heads_bytes(model, work, replace(setting, gpu=False), prefix) + values

    def _rotated_in_one_pass(self, model: Model, setting: Setting) -> bool:
        """Whether a Llama's kernel rotates queries and keys that have no norms."""
        return setting.fused and not setting.document_mask and not parts_of(model).has("qk_norm")

    def _attention_bytes(self, model: Model, work: Work, setting: Setting, prefix: int) -> int:
        """Also the statistics of both norms, and where they are not compiled their inputs and outputs in float32."""
        n, turned, parts = work.processed, model.width + self.key_channels(model), parts_of(model)
        found = super()._attention_bytes(model, work, setting, prefix)
        if parts.has("convolutions"):  # the product that they read
            found += n * setting.number * (model.width + 2 * self.key_channels(model))
        if not parts.has("qk_norm"):
            return found
        found += n * 4 * (model.heads + (model.kv_heads or model.heads))
        if self._one_pass(model, setting):
            return found
        plain = bool(model.attention_rate) and not setting.gpu  # products, which also keep what they read
        if setting.compiled:
            return found + plain * setting.number * n * (turned + self.key_channels(model))
        found += n * 4 * turned * (parts.has("gains") + (setting.number == 2))
        if plain and setting.number == 4:
            found += n * 4 * (turned + self.key_channels(model))
        return found

    def mlp_bytes(self, model: Model, setting: Setting) -> int:
        if not parts_of(model).has("relu2") or setting.recompute == "selective":
            return super().mlp_bytes(model, setting)
        return setting.number * (model.width + 2 * self.hidden(model))  # the ReLU, and its square

    def backward_channels(self, model: Model) -> int:
        if not parts_of(model).has("relu2"):
            return super().backward_channels(model)
        return Transformer.backward_channels(self, model)

    def outside_bytes(self, model: Model, work: Work, setting: Setting) -> Counter[str]:
        found, parts, n, d = super().outside_bytes(model, work, setting), parts_of(model), work.processed, model.width
        norm = 4 + 4 * d * (1 + parts.has("gains"))
        if not (parts.has("gains") or setting.fused):
            found["output"] -= n * 4 * d
        found["embedding"] += n * norm * parts.has("embedding_norm")
        found["embedding"] += n * INDEX * (setting.document_mask and parts.has("convolutions"))  # positions
        if model.pairs:
            found["embedding"] += n * INDEX
            found["dropout"] += n * setting.number * bool(model.word_dropout)  # factors of the tokens before
        if model.pointer:  # shares of positions, its input, what followed each, three sums and two gradients
            found["output"] += n * (4 * n + setting.number * d + INDEX + 5 * 4)
            found["output"] += n * INDEX * setting.document_mask  # targets
        if parts.has("scales") and setting.recompute != "full":  # "full" saves it as the input of the first block
            found["embedding"] += n * setting.number * d
        return found

    def shared_bytes(self, model: Model, length: int, setting: Setting) -> int:
        """The mask of local layers, where rows have no documents and no kernel skips what is outside the window."""
        flex = setting.gpu and length >= FLEX and not model.attention_rate
        local = any((self.window(model, layer) or length) < length for layer in range(model.layers))
        return setting.number * length * length if local and not (setting.document_mask or flex) else 0

    def mask_bytes(self, model: Model, work: Work, setting: Setting) -> int:
        """Masks that differ from row to row: those of local and of other layers."""
        windows = {self.window(model, layer) for layer in range(model.layers)}
        return super().mask_bytes(model, work, setting) * len(windows)


FAMILY = SwiftFamily()
