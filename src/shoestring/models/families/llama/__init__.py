"""Llama: RMSNorm, rotary positions, SwiGLU, grouped keys and values. The spec needs no torch."""

from __future__ import annotations

from collections import Counter

from shoestring.core.recipe import Recipe
from shoestring.core.sections import OF_DROPOUT, Model
from shoestring.cost.transformer import Setting, Transformer, Work
from shoestring.models.families import InFolder

SHORT = 128
"""Positions of a row for which attention is a kernel of its own on a GPU (`models.layers.short_attention`)."""


def norm_eps(model: Model) -> float:
    """What its norms add to the mean square."""
    return 1e-5 if model.norm_eps is None else model.norm_eps


class LlamaFamily(InFolder, Transformer):
    """Two norms of one vector each, a gated MLP, and the kernels that fuse them on a GPU."""

    name = "llama"
    network = "Llama"
    has_format = True
    fields = Transformer.fields | {*OF_DROPOUT, "kv_heads", "bias", "rotary_base", "rotary_scaling", "norm_eps"}
    even_heads = True
    norm_in_mlp = False

    def problems(self, recipe: Recipe) -> list[str]:
        model = recipe.model
        found = super().problems(recipe)
        if model.kv_heads is not None and model.heads % model.kv_heads:
            found.append(f"model.kv_heads = {model.kv_heads}: must divide model.heads = {model.heads}")
        return found

    def hidden(self, model: Model) -> int:
        """F: as given, or 8/3 D up to a multiple of 32, which makes three matrices as large as two of 4 D."""
        return model.hidden or -(-8 * model.width // (3 * 32)) * 32

    def key_channels(self, model: Model) -> int:
        return model.width // model.heads * (model.kv_heads or model.heads)

    def block_products(self, model: Model) -> dict[str, list[tuple[int, int]]]:
        """The first matrix of the MLP makes the gate too."""
        found, d, f = super().block_products(model), model.width, self.hidden(model)
        return found | {"mlp": [(2 * f, d), (d, f)]}

    def parameters(self, model: Model, vocabulary: int, length: int) -> dict[str, int]:  # noqa: ARG002
        matrices, biases = self.matrices(model), self.biases(model)
        return {
            "embedding": vocabulary * model.width,
            **{part: matrices[part] + model.bias * biases[part] for part in matrices},
            "norm": (2 * model.layers + 1) * model.width,
            "head": 0 if model.tied else vocabulary * model.width,
        }

    def decisive(self, model: Model) -> dict[str, object]:
        scaling = model.rotary_scaling
        parts = ["none"] if scaling is None else [scaling.kind, *(str(float(n)) for n in scaling.place.split(":"))]
        return super().decisive(model) | {
            "kv_heads": model.kv_heads or model.heads,
            "bias": model.bias,
            "rotary_base": model.rotary_base,
            "norm_eps": norm_eps(model),
            "rotary_scaling": ":".join(parts),
        }

    def backward_channels(self, model: Model) -> int:
        """The product's gradient, and those of both of its inputs."""
        return model.width + 3 * self.hidden(model)

    def has_kernels(self, recipe: Recipe) -> bool:
        """Not in fp32, nor for documents and recomputation."""
        train = recipe.train
        plain = train.recompute == "none" and not recipe.data.document_mask
        return plain and train.products("cuda", has_bf16=True) != "fp32"

    def stream_bytes(self, model: Model, work: Work, setting: Setting, prefix: int) -> int:
        """A block is handed the last change apart."""
        return super().stream_bytes(model, work, setting, prefix) + setting.number * model.width * work.processed

    def norm_bytes(self, model: Model, setting: Setting) -> int:
        d = model.width
        if setting.compiled or setting.fused:
            return 2 * 4 + 2 * setting.number * d
        return 2 * (4 + 2 * 4 * d)

    def heads_bytes(self, model: Model, work: Work, setting: Setting, prefix: int) -> int:  # noqa: ARG002
        n, s, d, k = work.processed, setting.number, model.width, self.key_channels(model)
        made, mixed = s * n * (d + 2 * k), s * d * n
        if setting.fused and n <= SHORT and not setting.document_mask and not model.attention_rate:
            return made + mixed
        again = 0 if setting.fused and not setting.document_mask else s * n * (d + k)  # queries and keys, rotated
        return made + again + mixed + 4 * model.heads * n

    def mlp_bytes(self, model: Model, setting: Setting) -> int:
        d, f, s = model.width, self.hidden(model), setting.number
        if setting.recompute == "selective":
            return s * d
        between = 2 if setting.fused else 3 if setting.compiled else 4
        return s * (d + between * f)  # gate and values; the product of both; the gate's silu

    def outside_bytes(self, model: Model, work: Work, setting: Setting) -> Counter[str]:
        found, n, d = super().outside_bytes(model, work, setting), work.processed, model.width
        found["output"] += n * (setting.number * d + 4 if setting.fused else 2 * 4 * d + 4)
        if setting.document_mask:
            found["embedding"] += n * 2 * 4 * (d // model.heads // 2)
        return found

    def embedded_number(self, setting: Setting) -> int:
        return setting.number


FAMILY = LlamaFamily()
