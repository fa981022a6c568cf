"""Bytes that a forward pass keeps for the backward pass, of one row, counted operation by operation.

Two ways of running differ in what they keep. *Eager* is torch's autograd, operation after operation, as on a CPU.
*Compiled* is what remains when a block is divided into its two passes with the fewest bytes between them, as
torch.compile does: a norm is then made again from the stream in place of being kept in float32. `tests/cost/
test_activations.py` compares both with what torch really keeps.

Letters: D width, K channels of keys, F hidden, H heads, T positions, N latents, M positions of a prefix, s bytes of a
number in the stream.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from shoestring.core.recipe import Model
from shoestring.cost.networks import Work, network_work
from shoestring.cost.shapes import hidden_channels, key_channels

SHORT = 128
"""Positions of a row for which Llama's attention is a kernel of its own on a GPU (`models.short_attention`)."""
FLEX = 128
"""Positions from which on a GPU attends within documents without a mask (`models.attention`)."""
INDEX = 8
"""Bytes of an id or a position."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How passes are run."""

    number: Literal[2, 4]
    """Bytes of a number in the stream: bf16 or fp32."""
    compiled: bool
    gpu: bool
    recompute: Literal["none", "selective", "full"] = "none"
    within: bool = False
    """Attention stays within documents."""

    @property
    def fused(self) -> bool:
        """Whether Llama's kernels are used: the addition with its norm, the gate with its product, turned heads."""
        return self.gpu and self.number == 2


def kept_bytes(model: Model, length: int, setting: Setting, predicted: float = 1.0) -> dict[str, int]:
    """Of one row of `length` predictions, by part of the network; `predicted` as for `cost.networks.network_cost`."""
    work = network_work(model, 1, length, predicted)
    found = Counter(_outside(model, work, setting))
    for prefix in _prefixes(model, work):
        found.update(_block(model, work, setting, prefix))
    return {part: int(size) for part, size in found.items() if size}


def recomputed_bytes(model: Model, length: int, setting: Setting) -> int:
    """Of one row: what the backward pass of a block makes again, beside what was kept: of the block with the most."""
    if setting.recompute == "none":
        return 0
    work = network_work(model, 1, length)
    plain = Setting(number=setting.number, compiled=setting.compiled, gpu=setting.gpu, within=setting.within)
    blocks = [_block(model, work, plain, prefix) for prefix in _prefixes(model, work)]
    if setting.recompute == "selective":
        return max(int(block["mlp"]) for block in blocks)
    return max(sum(int(size) for size in block.values()) for block in blocks)


def backward_bytes(model: Model, length: int, setting: Setting) -> int:
    """Of one row: gradients within the backward pass of an MLP, where it needs the most."""
    d, f, s = model.width, hidden_channels(model), setting.number
    # of a SwiGLU the product's gradient, and those of both of its inputs; of another its one input's, in place
    channels = d + 3 * f if model.family == "llama" else 2 * d + f
    return network_work(model, 1, length).processed * s * channels


def _prefixes(model: Model, work: Work) -> list[int]:
    """Of every layer: positions of a prefix that it sees."""
    return [work.embedded - work.processed] + [0] * (model.layers - 1)


def _block(model: Model, work: Work, setting: Setting, prefix: int) -> dict[str, int]:
    """Of one layer and row, by part."""
    n, s, d = work.processed, setting.number, model.width
    if setting.recompute == "full":
        streams = 2 if model.family == "llama" else 1  # a Llama's block is handed the last change apart
        return {"stream": s * d * (streams * n + prefix) + _turns(model, prefix)}
    return {
        "norms": n * _norms(model, setting) + prefix * _prefix_norm(d, setting),
        "attention": _attention(model, work, setting, prefix),
        "mlp": n * _mlp(model, setting),
        "dropout": 2 * n * d * (s if not setting.gpu else 1) if model.dropout else 0,  # a number or a byte a channel
    }


def _norms(model: Model, setting: Setting) -> int:
    """Bytes a position: their inputs and their statistics."""
    d, s = model.width, setting.number
    statistics, kept_input = (4, 2 * 4 * d) if model.family == "llama" else (8, 4 * d)  # eager: in float32
    inside = setting.recompute == "selective" and _norm_in_mlp(model)  # the second one is made again with the MLP
    norms = 1 if inside else 2
    if setting.compiled or (setting.fused and model.family == "llama"):
        return norms * statistics + 2 * s * d  # the stream, and the change that is added to it
    return norms * (statistics + kept_input)


def _prefix_norm(d: int, setting: Setting) -> int:
    return 8 + (setting.number * d if setting.compiled else 4 * d)


def _attention(model: Model, work: Work, setting: Setting, prefix: int) -> int:
    """Bytes of a row: what the first product reads, queries, keys and values, and what is mixed of them."""
    n, s, d, k, h = work.processed, setting.number, model.width, key_channels(model), model.heads
    read, mixed = s * d * (n + prefix), s * d * n
    turned = _turns(model, prefix)
    keys = n + prefix
    if model.dropout and not setting.gpu:  # plain products in float32, with all weights, three times
        return read + mixed + turned + 4 * d * (n + 2 * keys) + 3 * 4 * h * n * keys
    sums = 4 * h * n
    mask = 0
    if setting.within and (not setting.gpu or n < FLEX):
        mask = s * n * n
    if model.family == "llama":
        made = s * n * (d + 2 * k)
        if setting.fused and n <= SHORT and not setting.within and not model.dropout:
            return read + made + mixed
        again = 0 if setting.fused and not setting.within else s * n * (d + k)  # queries and keys, turned
        return read + made + again + mixed + sums + mask
    if model.family == "perceiver_ar":
        twice = 2 * mixed  # by heads, and then as the next product reads it
        own = s * d * (n + 2 * keys) if prefix else s * d * n * 5  # joined to the prefix's, or beside the unturned ones
        if prefix and setting.gpu:  # a GPU's attention has the mask of latents and prefix for every head, a byte each
            mask = h * n * keys
        return read + turned + own + twice + sums + mask
    return read + 3 * s * d * n + mixed + sums + mask


def _turns(model: Model, prefix: int) -> int:
    """Cosines and sines of a row's own positions: a Perceiver AR's prefix is another in every row."""
    return prefix * 2 * 4 * (model.width // model.heads // 4) if prefix else 0


def _mlp(model: Model, setting: Setting) -> int:
    """Bytes a position: what its products read, and what is between them."""
    d, f, s = model.width, hidden_channels(model), setting.number
    if setting.recompute == "selective":
        return 0 if setting.compiled and _norm_in_mlp(model) else s * d  # its input
    if model.family == "llama":
        between = 2 if setting.fused else 3 if setting.compiled else 4
        return s * (d + between * f)  # gate and values; the product of both; the gate's silu
    return s * (d + 2 * f)


def _norm_in_mlp(model: Model) -> bool:
    """Whether the second norm is a part of what "selective" computes again."""
    return model.family in ("gpt2", "perceiver_ar")


def _outside(model: Model, work: Work, setting: Setting) -> dict[str, int]:
    """Of a row, before the first layer and after the last one, where nothing is compiled."""
    t, n, s, d = work.length, work.processed, setting.number, model.width
    prefix = work.embedded - n
    found = Counter({"embedding": INDEX * (t + 1), "output": s * d * n})
    if model.dropout:
        found["dropout"] += work.embedded * d * (1 if setting.gpu else s if model.family == "llama" else 4)
    if model.family == "llama":
        found["output"] += n * (s * d + 4 if setting.fused else 2 * 4 * d + 4)
        if setting.within:
            found["embedding"] += n * 2 * 4 * (d // model.heads // 2)
    elif model.family == "gpt2":
        found["output"] += n * (4 * d + 8)
        found["embedding"] += n * INDEX if setting.within else 0
    elif model.family == "perceiver_ar":
        found["embedding"] += prefix * INDEX * (2 if model.prefix_dropout else 1)
    else:
        found["embedding"] += t * (4 * d + 8) - INDEX
        if model.classes:
            found["output"] = s * d * (t + 2)
        else:
            some = INDEX if work.predictions < t else 0
            found["output"] = int(work.predictions * (3 * s * d + 4 * d + 8 + some))
    return found
