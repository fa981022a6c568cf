"""Perceiver AR: only the last positions of a long row, the latents, go through all layers.

In the first layer, the hybrid one, latents attend causally to the prefix, which are the positions before them, and to
latents; in the others only to latents. Positions are learned, and also rotary on half of the channels of a head. Norms
and biases are those of the published models (krasserm/perceiver-io): a separate norm for the prefix, biases in the last
product of the hybrid layer's attention and in the output only, and no norm before the output.

Shapes: R rows, T positions, M of the prefix, N latents, K keys, D width, H heads, C = D / H channels per head.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from shoestring.core.errors import UserError
from shoestring.core.sections import Model, number
from shoestring.models.batch import Batch
from shoestring.models.families.perceiver_ar import FAMILY, kept_of, latents_of
from shoestring.models.language_model import LanguageModel, Output
from shoestring.models.layers.attention import attend_to_past
from shoestring.models.layers.blocks import Block, LayerNorm, as_stream, draw_weights, run
from shoestring.models.layers.embedding_lookup import embedding_lookup
from shoestring.models.layers.gelu import gelu
from shoestring.models.layers.rotary import Turns, frequencies, rotate, turns, turns_at

ROTARY_BASE = 10000.0

KeysValues = tuple[Tensor, Tensor]
"""Each (R, H, K, C); keys are rotated."""


class PerceiverAR(LanguageModel):
    """Next-token prediction at the last `latents` positions of a row. Weights are drawn from `seed` on the CPU.

    Positions count from the first token of a row. A row no longer than `latents` has no prefix. In training a share
    `prefix_dropout` of the prefix is left out: always the same number of positions, but different ones in each row and
    pass, drawn from the generator of the device.
    """

    _frequencies: Tensor

    def __init__(self, model: Model, vocab_size: int, length: int, seed: int):
        super().__init__()
        self.length, self.latents = length, latents_of(model)
        if self.latents > length:
            raise UserError(f"model.latents = {self.latents}: must be at most data.length = {length}")
        if model.width % model.heads or model.width == model.heads:
            raise UserError(f"model.heads = {model.heads}: must divide model.width = {model.width} into 2 or more each")
        self.prefix_dropout, self.dropout = model.prefix_dropout, number(model.dropout)
        self.embedding = nn.Embedding(vocab_size, model.width)
        self.positions = nn.Embedding(length, model.width)
        self.blocks = nn.ModuleList(PerceiverBlock(model, hybrid=i == 0) for i in range(model.layers))
        self.head = nn.Linear(model.width, vocab_size)
        if model.tied:
            self.head.weight = self.embedding.weight
        self.register_buffer(
            "_frequencies", frequencies(model.width // model.heads // 2, ROTARY_BASE), persistent=False
        )
        draw_weights(self, seed)

    def hidden(self, inputs: Batch) -> Float[Tensor, "R N D"]:
        """The stream of the latents after the last layer."""
        if inputs.document_mask and inputs.segments is not None:
            raise UserError("data.document_mask: a Perceiver AR attends over whole rows")
        ids = inputs.ids
        rows, places = len(ids), self._places(ids.shape[1])
        split = max(0, len(places) - self.latents)
        before = places[:split].expand(rows, -1)
        if self.training and self.prefix_dropout:
            kept = kept_of(split, self.prefix_dropout)
            before = torch.rand(before.shape, device=ids.device).topk(kept, dim=1).indices.sort(dim=1).values  # R M
        angles = turns(self._frequencies, len(places))
        prefix = self._embedded(ids.gather(1, before), before)
        x = self._embedded(ids[:, split:], places[split:])
        after = angles[0][split:], angles[1][split:]
        x = run(self.blocks[0], x, after, prefix, turns_at(before, angles))
        for block in self.blocks[1:]:
            x = run(block, x, after)
        hidden: Tensor = x
        return hidden

    def output(self) -> Output:
        return Output(self.head.weight, self.head.bias)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        groups, bias = super().parameter_groups(), self.head.bias
        return groups | {"head": [p for p in groups["head"] if p is not bias], "output_bias": [bias]}

    def read_prefix(self, ids: Int[Tensor, "R M"]) -> list[KeysValues | None]:
        """The past of every layer for `extend`: keys and values in the hybrid layer, None in the others."""
        x = self._embedded(ids, self._places(ids.shape[1]))
        hybrid = cast(PerceiverBlock, self.blocks[0])
        return [hybrid.read_prefix(x, turns(self._frequencies, ids.shape[1])), *[None] * (len(self.blocks) - 1)]

    def extend(
        self, ids: Int[Tensor, "R N"], past: list[KeysValues | None]
    ) -> tuple[Float[Tensor, "R N D"], list[KeysValues | None]]:
        """The stream of further latents after the last layer, and the past with them.

        Latents given at once or one by one have the same result, which is that of `hidden` for the whole row.
        """
        assert past[0] is not None, "set by read_prefix"
        first = past[0][0].shape[2]
        places = self._places(first + ids.shape[1])[first:]
        cos, sin = turns(self._frequencies, first + ids.shape[1])
        x, now = self._embedded(ids, places), list[KeysValues | None]()
        for block, of_layer in zip(self.blocks, past):
            x, keys_values = cast(PerceiverBlock, block).extend(x, (cos[first:], sin[first:]), of_layer)
            now.append(keys_values)
        return x, now

    def _places(self, length: int) -> Int[Tensor, " T"]:
        if length > self.length:
            raise UserError(f"a row of {length} positions: this Perceiver AR has at most {self.length}")
        return torch.arange(length, device=self.embedding.weight.device)

    def _embedded(self, ids: Int[Tensor, "R T"], places: Int[Tensor, "*rows T"]) -> Float[Tensor, "R T D"]:
        x = embedding_lookup(self.embedding, ids) + self.positions(places)
        return as_stream(F.dropout(x, self.dropout, self.training))


class PerceiverBlock(Block):
    """Causal attention, then an MLP, each on a normalised copy of the stream and added to it.

    Latents attend to latents, and in the hybrid layer also to the prefix.
    """

    def __init__(self, model: Model, hybrid: bool):
        super().__init__()
        d, f = model.width, FAMILY.hidden(model)
        self.heads, self.dropout = model.heads, number(model.dropout)
        self.norm1 = LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.out = nn.Linear(d, d, bias=hybrid)
        self.norm2 = LayerNorm(d)
        self.up = nn.Linear(d, f, bias=False)
        self.down = nn.Linear(f, d, bias=False)
        if hybrid:
            self.prefix_norm = LayerNorm(d)

    def forward(
        self, x: Float[Tensor, "R N D"], angles: Turns, prefix: Tensor | None = None, prefix_angles: Turns | None = None
    ) -> Float[Tensor, "R N D"]:
        past = None if prefix is None or prefix_angles is None else self.read_prefix(prefix, prefix_angles)
        return self.extend(x, angles, past)[0]

    def read_prefix(self, prefix: Float[Tensor, "R M D"], angles: Turns) -> KeysValues:
        """Keys and values of the prefix, made by the same matrix as those of latents."""
        d = self.qkv.in_features
        k, v = self._by_head(F.linear(self.prefix_norm(prefix), self.qkv.weight[d:]))
        return _rotated(k, angles), v

    def extend(
        self, x: Float[Tensor, "R N D"], angles: Turns, past: KeysValues | None
    ) -> tuple[Float[Tensor, "R N D"], KeysValues]:
        """The stream after this layer, and all keys and values, those of the past first."""
        q, k, v = self._by_head(self.qkv(self.norm1(x)))
        q, k = _rotated(q, angles), _rotated(k, angles)
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        mixed = attend_to_past(q, k, v, self.dropping)
        x = x + self.dropped(self.out(mixed.transpose(1, 2).flatten(2)))
        return x + self.dropped(self.part(self.mlp, x)), (k, v)

    def mlp(self, x: Float[Tensor, "R N D"]) -> Float[Tensor, "R N D"]:
        change: Tensor = self.down(gelu(self.up(self.norm2(x))))
        return change

    def _by_head(self, x: Float[Tensor, "R T several_D"]) -> tuple[Tensor, ...]:
        """Split into parts of D channels, each R H T C."""
        r, t, several = x.shape
        d = self.qkv.in_features
        return x.view(r, t, several // d, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind()


def _rotated(x: Float[Tensor, "R H T C"], angles: Turns) -> Float[Tensor, "R H T C"]:
    """Rotate the first half of the channels, rounded up to an even number."""
    turned = 2 * angles[0].shape[-1]
    return torch.cat((rotate(x[..., :turned], angles), x[..., turned:]), dim=-1)
