"""Perceiver AR: a long row is read by its last positions, the latents, which alone go through all layers.

In the first layer, the hybrid one, latents attend causally to the positions before them, the prefix, and to latents; in
the others to latents. Positions are learned, and rotary on half of the channels of a head. The published models
(krasserm/perceiver-io) have these very parameters, biases and norms: an own norm for the prefix, a bias where the
hybrid layer's attention ends and in the output, none elsewhere, and no norm before the output.

Shapes: R rows, T positions, M of the prefix, N latents, K keys, D width, H heads, C = D / H channels a head.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from shoestring.core.errors import UserError
from shoestring.core.recipe import Model
from shoestring.cost.shapes import hidden_channels, kept_of, latents_of
from shoestring.models.blocks import Block, LayerNorm, as_stream, draw_weights, run
from shoestring.models.embedding import embedded
from shoestring.models.protocol import Batch, LanguageModel, Loss, Output, Rows
from shoestring.models.rotary import Turns, frequencies, rotate, turns, turns_at

ROTARY_BASE = 10000.0

KeysValues = tuple[Tensor, Tensor]
"""Each (R, H, K, C); keys are turned."""


class PerceiverAR(LanguageModel):
    """Next-token prediction at the last `latents` positions of a row. Weights are drawn from `seed` on the CPU.

    Positions count from the first token of a row, so those of a row shorter than `length` are the first ones; a row no
    longer than `latents` has no prefix. In training a share `prefix_dropout` of the prefix is left out: other
    positions in each row and pass, drawn from the generator of the device, but always as many.
    """

    def __init__(self, model: Model, vocab_size: int, length: int, seed: int):
        super().__init__()
        self.length, self.latents = length, latents_of(model)
        if self.latents > length:
            raise UserError(f"model.latents = {self.latents}: must be at most data.length = {length}")
        if model.width % model.heads or model.width == model.heads:
            raise UserError(f"model.heads = {model.heads}: must divide model.width = {model.width} into 2 or more each")
        self.prefix_dropout, self.dropout = model.prefix_dropout, model.dropout
        self.embedding = nn.Embedding(vocab_size, model.width)
        self.positions = nn.Embedding(length, model.width)
        self.blocks = nn.ModuleList([HybridBlock(model), *(LatentBlock(model) for _ in range(model.layers - 1))])
        self.head = nn.Linear(model.width, vocab_size)
        if model.tied:
            self.head.weight = self.embedding.weight
        self.register_buffer(
            "_frequencies", frequencies(model.width // model.heads // 2, ROTARY_BASE), persistent=False
        )
        draw_weights(self, seed)

    def hidden(self, inputs: Batch) -> Float[Tensor, "R N D"]:
        """Of the latents."""
        if inputs.within and inputs.segments is not None:
            raise UserError("data.within: a Perceiver AR attends over whole rows; set data.within = false")
        ids = inputs.ids
        rows, places = len(ids), self._places(ids.shape[1])
        split = max(0, len(places) - self.latents)
        before = places[:split].expand(rows, -1)
        if self.training and self.prefix_dropout:
            kept = kept_of(split, self.prefix_dropout)
            before = torch.rand(before.shape, device=ids.device).topk(kept, dim=1).indices.sort(dim=1).values  # R M
        angles = self._angles(len(places))
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

    def loss(self, batch: Batch | Rows) -> Loss:
        """As of every model; only latents make predictions, so only these are counted."""
        batch = Batch.of(batch)
        return super().loss(batch._replace(last=self.latents if batch.last is None else min(batch.last, self.latents)))

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        groups, bias = super().parameter_groups(), self.head.bias
        return groups | {"head": [p for p in groups["head"] if p is not bias], "output_bias": [bias]}

    def read_prefix(self, ids: Int[Tensor, "R M"]) -> list[KeysValues | None]:
        """What the layers keep of a prefix, for `extend`: the hybrid one keys and values, the others nothing."""
        hybrid = self.blocks[0]
        assert isinstance(hybrid, HybridBlock)
        x = self._embedded(ids, self._places(ids.shape[1]))
        past: list[KeysValues | None] = [hybrid.read_prefix(x, self._angles(ids.shape[1]))]
        return past + [None] * (len(self.blocks) - 1)

    def extend(
        self, ids: Int[Tensor, "R N"], past: list[KeysValues | None]
    ) -> tuple[Float[Tensor, "R N D"], list[KeysValues | None]]:
        """More latents after those that `past` was made of: what the output product reads, and the past with them.

        They change nothing of what is before them, so that latents given at once or one by one come out the same, and
        the same as from `hidden` of the whole row.
        """
        assert past[0] is not None, "made by read_prefix"
        first = past[0][0].shape[2]
        places = self._places(first + ids.shape[1])[first:]
        cos, sin = self._angles(first + ids.shape[1])
        x, now = self._embedded(ids, places), list[KeysValues | None]()
        for block, of_layer in zip(self.blocks, past):
            assert isinstance(block, LatentBlock | HybridBlock)
            x, keys_values = block.extend(x, (cos[first:], sin[first:]), of_layer)
            now.append(keys_values)
        return x, now

    def _places(self, length: int) -> Int[Tensor, " T"]:
        if length > self.length:
            raise UserError(f"a row of {length} positions: this Perceiver AR was made for at most {self.length}")
        return torch.arange(length, device=self.embedding.weight.device)

    def _angles(self, length: int) -> Turns:
        assert isinstance(self._frequencies, Tensor)
        return turns(self._frequencies, length)

    def _embedded(self, ids: Int[Tensor, "R T"], places: Int[Tensor, "*rows T"]) -> Float[Tensor, "R T D"]:
        x = embedded(self.embedding, ids) + self.positions(places)
        return as_stream(F.dropout(x, self.dropout, self.training))


class _Layer(Block):
    """Causal attention, then an MLP, each on a normalised copy of the stream and added to it."""

    def __init__(self, model: Model, out_bias: bool):
        super().__init__()
        d, f = model.width, hidden_channels(model)
        self.heads, self.dropout = model.heads, model.dropout
        self.norm1 = LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.out = nn.Linear(d, d, bias=out_bias)
        self.norm2 = LayerNorm(d)
        self.up = nn.Linear(d, f, bias=False)
        self.down = nn.Linear(f, d, bias=False)

    def extend(
        self, x: Float[Tensor, "R N D"], angles: Turns, past: KeysValues | None
    ) -> tuple[Float[Tensor, "R N D"], KeysValues]:
        """The stream after this layer, and all keys and values: those of the past first."""
        q, k, v = self._by_head(self.qkv(self.norm1(x)))
        q, k = _turned(q, angles), _turned(k, angles)
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        mixed = attend_to_past(q, k, v, self.dropout if self.training else 0.0)
        x = x + self._dropped(self.out(mixed.transpose(1, 2).flatten(2)))
        return x + self._dropped(self.part(self.mlp, x)), (k, v)

    def mlp(self, x: Float[Tensor, "R N D"]) -> Float[Tensor, "R N D"]:
        change: Tensor = self.down(F.gelu(self.up(self.norm2(x))))
        return change

    def _by_head(self, x: Float[Tensor, "R T several_D"]) -> tuple[Tensor, ...]:
        """Parts of D channels, each R H T C."""
        r, t, several = x.shape
        d = self.qkv.in_features
        return x.view(r, t, several // d, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind()

    def _dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training) if self.dropout else x


class LatentBlock(_Layer):
    """Latents attend to latents."""

    def __init__(self, model: Model):
        super().__init__(model, out_bias=False)

    def forward(self, x: Float[Tensor, "R N D"], angles: Turns) -> Float[Tensor, "R N D"]:
        return self.extend(x, angles, None)[0]


class HybridBlock(_Layer):
    """Latents attend to the prefix and to latents."""

    def __init__(self, model: Model):
        super().__init__(model, out_bias=True)
        self.prefix_norm = LayerNorm(model.width)

    def forward(
        self, x: Float[Tensor, "R N D"], angles: Turns, prefix: Float[Tensor, "R M D"], prefix_angles: Turns
    ) -> Float[Tensor, "R N D"]:
        return self.extend(x, angles, self.read_prefix(prefix, prefix_angles))[0]

    def read_prefix(self, prefix: Float[Tensor, "R M D"], angles: Turns) -> KeysValues:
        """Its keys and values, made by the same matrix as those of latents."""
        d = self.qkv.in_features
        k, v = self._by_head(F.linear(self.prefix_norm(prefix), self.qkv.weight[d:]))
        return _turned(k, angles), v


def attend_to_past(
    q: Float[Tensor, "R H N C"], k: Float[Tensor, "R H K C"], v: Float[Tensor, "R H K C"], dropout: float = 0.0
) -> Float[Tensor, "R H N C"]:
    """Values mixed by softmax(q k / √C): the last query sees all keys, each before it one fewer."""
    queries, keys = q.shape[2], k.shape[2]
    if queries == keys:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
    seen = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, dropout_p=dropout)


def _turned(x: Float[Tensor, "R H T C"], angles: Turns) -> Float[Tensor, "R H T C"]:
    """With the first half of the channels turned, and one more where that is an odd number."""
    turned = 2 * angles[0].shape[-1]
    return torch.cat((rotate(x[..., :turned], angles), x[..., turned:]), dim=-1)
