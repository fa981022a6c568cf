"""A Llama-style decoder: RMSNorm, rotary positions, SwiGLU, causal attention, grouped keys and values.

Shapes: R rows, T positions, D width, H heads, K heads of keys and values, C = D / H channels a head, F hidden.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from shoestring.core.recipe import Model
from shoestring.cost.networks import block_products
from shoestring.models.add_norm import add_norm
from shoestring.models.attention import Documents, Heads, Seen, attend
from shoestring.models.blocks import Block, RMSNorm, draw_weights, run, stream_type
from shoestring.models.embedding import embedded
from shoestring.models.gated import gated_linear
from shoestring.models.linear import linear
from shoestring.models.protocol import Batch, LanguageModel, Output
from shoestring.models.rotary import Turns, frequencies, turns, turns_at
from shoestring.models.short_attention import fits, short_attention
from shoestring.models.turned_heads import turned_heads


def norm_eps(model: Model) -> float:
    """What its norms add to the mean square."""
    return 1e-5 if model.norm_eps is None else model.norm_eps


class Llama(LanguageModel):
    """Next-token prediction. Weights are drawn from `seed` on the CPU: the same on every device."""

    frequencies: Tensor

    def __init__(self, model: Model, vocab_size: int, length: int, seed: int):  # noqa: ARG002 (other families need it)
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, model.width)
        self.blocks = nn.ModuleList(LlamaBlock(model) for _ in range(model.layers))
        self.norm = RMSNorm(model.width, eps=norm_eps(model))
        self.head = nn.Linear(model.width, vocab_size, bias=False)
        if model.tied:
            self.head.weight = self.embedding.weight
        self.dropout = model.dropout
        self.heads = Heads(model.heads, model.kv_heads or model.heads, model.width // model.heads)
        turning = frequencies(model.width // model.heads, model.rotary_base, model.rotary_scaling)
        self.register_buffer("frequencies", turning, persistent=False)
        draw_weights(self, seed, written=(2 * model.layers) ** -0.5)

    def hidden(self, inputs: Batch) -> Float[Tensor, "R T D"]:
        x = embedded(self.embedding, inputs.ids, stream_type(self.embedding.weight))
        x = F.dropout(x, self.dropout, self.training)
        angles = turns(self.frequencies, inputs.ids.shape[1])
        seen = None
        if inputs.within and inputs.segments is not None:
            documents = Documents(inputs.segments)
            seen = documents.seen(x, self.heads, self.dropout if self.training else 0.0)
            angles = turns_at(documents.positions, angles)
        change = torch.zeros_like(x)
        for block in self.blocks:
            x, change = run(block, x, change, angles, seen)
        return add_norm(x, change, self.norm)[1]

    def output(self) -> Output:
        return Output(self.head.weight)


class LlamaBlock(Block):
    """Attention, then SwiGLU, each on a normalised copy of the stream and added to it.

    The last change is handed on, not added yet: adding it is one pass with the norm of the next block.
    """

    def __init__(self, model: Model):
        super().__init__()
        self.heads, self.kv_heads = model.heads, model.kv_heads or model.heads
        self.channels, self.dropout = model.width // model.heads, model.dropout
        (qkv, d), _ = block_products(model)["attention"]
        (gate_up, _), (_, f) = block_products(model)["mlp"]
        self.norm1 = RMSNorm(d, eps=norm_eps(model))
        self.qkv = nn.Linear(d, qkv, bias=model.bias)
        self.out = nn.Linear(d, d, bias=model.bias)
        self.norm2 = RMSNorm(d, eps=norm_eps(model))
        self.gate_up = nn.Linear(d, gate_up, bias=model.bias)
        self.down = nn.Linear(f, d, bias=model.bias)

    def forward(
        self, x: Float[Tensor, "R T D"], change: Float[Tensor, "R T D"], angles: Turns, seen: Seen | None
    ) -> tuple[Float[Tensor, "R T D"], Float[Tensor, "R T D"]]:
        x, normed = add_norm(x, change, self.norm1)
        x, normed = add_norm(x, self._dropped(self.attention(normed, angles, seen)), self.norm2)
        return x, self._dropped(self.part(self.mlp, normed))

    def attention(self, x: Float[Tensor, "R T D"], angles: Turns, seen: Seen | None) -> Float[Tensor, "R T D"]:
        r, t, d = x.shape
        qkv = linear(x, self.qkv).view(r, t, self.heads + 2 * self.kv_heads, self.channels)
        dropout = self.dropout if self.training else 0.0
        if seen is None and not dropout and fits(qkv, self.heads):
            mixed = short_attention(qkv, *angles, self.heads)  # R T H C
        else:
            q, k, v = (part.transpose(1, 2) for part in turned_heads(qkv, angles, self.heads))  # each R H T C
            mixed = attend(q, k, v, seen, dropout).transpose(1, 2)
        return linear(mixed.reshape(r, t, d), self.out)

    def mlp(self, x: Float[Tensor, "R T D"]) -> Float[Tensor, "R T D"]:
        return gated_linear(linear(x, self.gate_up), self.down.weight, self.down.bias)

    def _dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training) if self.dropout else x
