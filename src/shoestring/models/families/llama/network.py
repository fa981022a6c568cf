"""A Llama-style decoder: RMSNorm, rotary positions, SwiGLU, causal attention, grouped keys and values.

Shapes: R rows, T positions, D width, H heads, K heads of keys and values, C = D / H channels per head, F hidden,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from shoestring.core.sections import Model, number
from shoestring.models.batch import Batch
from shoestring.models.families.llama import FAMILY, norm_eps
from shoestring.models.language_model import LanguageModel, Output
from shoestring.models.layers.add_norm import add_norm
from shoestring.models.layers.attention import Documents, Heads, Seen, attend
from shoestring.models.layers.blocks import Block, RMSNorm, draw_weights, no_change, run, stream_type
from shoestring.models.layers.embedding_lookup import embedding_lookup, hide_words, seen_words
from shoestring.models.layers.linear import linear, swiglu_layer
from shoestring.models.layers.next_token import Layer, Parts, Product, norm_of, product_of
from shoestring.models.layers.past import Kept
from shoestring.models.layers.rotary import Turns, frequencies, qkv_rope, turns, turns_at
from shoestring.models.layers.short_attention import fits, short_attention


class LlamaBlock(Block):
    """Attention, then SwiGLU, each on a normalised copy of the stream and added to it.

    The last change is returned separately: the next block adds it in one pass with its norm.
    """

    def __init__(self, model: Model):
        super().__init__()
        self.heads, self.kv_heads = model.heads, model.kv_heads or model.heads
        self.channels, self.dropout = model.width // model.heads, number(model.dropout)
        self.attention_dropout = number(model.attention_rate)
        (qkv, d), _ = FAMILY.block_products(model)["attention"]
        (gate_up, _), (_, f) = FAMILY.block_products(model)["mlp"]
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
        x, normed = add_norm(x, self.dropped(self.attention(normed, angles, seen)), self.norm2)
        return x, self.dropped(self.part(self.mlp, normed))

    def attention(self, x: Float[Tensor, "R T D"], angles: Turns, seen: Seen | None) -> Float[Tensor, "R T D"]:
        r, t, d = x.shape
        qkv = linear(x, self.qkv).view(r, t, self.heads + 2 * self.kv_heads, self.channels)
        if seen is None and not self.dropping_attention and fits(qkv, self.heads):
            mixed = short_attention(qkv, *angles, self.heads)  # R T H C
        else:
            q, k, v = (part.transpose(1, 2) for part in qkv_rope(qkv, angles, self.heads))  # each R H T C
            mixed = attend(q, k, v, seen, self.dropping_attention).transpose(1, 2)
        return linear(mixed.reshape(r, t, d), self.out)

    def mlp(self, x: Float[Tensor, "R T D"]) -> Float[Tensor, "R T D"]:
        return swiglu_layer(linear(x, self.gate_up), self.down)

    def parts(self) -> Layer:
        qkv, out, gate_up, down = map(product_of, (self.qkv, self.out, self.gate_up, self.down))
        return Layer(norm_of(self.norm1), qkv, out, norm_of(self.norm2), gate_up, "swiglu", down)


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
        self.dropout, self.attention_dropout = number(model.dropout), number(model.attention_rate)
        rates = model.output_dropout or 0.0, model.word_dropout or 0.0
        self.output_dropout, self.word_dropout = map(number, rates)
        self.heads = Heads(model.heads, model.kv_heads or model.heads, model.width // model.heads)
        turning = frequencies(model.width // model.heads, model.rotary_base, model.rotary_scaling)
        self.register_buffer("frequencies", turning, persistent=False)
        draw_weights(self, seed, residual_scale=(2 * model.layers) ** -0.5)

    def hidden(self, inputs: Batch) -> Float[Tensor, "R T D"]:
        x = embedding_lookup(self.embedding, inputs.ids, stream_type(self.embedding.weight))
        if self.word_dropout and self.training:
            x = hide_words(x, seen_words(self.embedding, inputs.ids, self.word_dropout, x.dtype))
        x = F.dropout(x, self.dropout, self.training)
        angles = turns(self.frequencies, inputs.ids.shape[1])
        seen = None
        if inputs.document_mask and inputs.segments is not None:
            documents = Documents(inputs.segments)
            seen = documents.seen(x, self.heads, self.attention_dropout if self.training else 0.0)
            angles = turns_at(documents.positions, angles)
        x = self._through_blocks(x, angles, [seen] * len(self.blocks))
        return F.dropout(x, self.output_dropout, self.training)

    def past(self, length: int) -> list[Kept]:
        return [Kept(length) for _ in self.blocks]

    def read_on(self, ids: Int[Tensor, "R T"], past: list[Kept]) -> Float[Tensor, "R V"]:
        x = embedding_lookup(self.embedding, ids, stream_type(self.embedding.weight))
        angles = turns(self.frequencies, ids.shape[1], past[0].count)
        return self.output().logits(self._through_blocks(x, angles, past)[:, -1])

    def parts(self) -> Parts:
        layers, norm = [block.parts() for block in self.blocks], norm_of(self.norm)  # type: ignore[operator]
        head = Product(self.head.weight)
        return Parts(self.embedding.weight, layers, norm, head, self.heads, frequencies=self.frequencies)

    def _through_blocks(
        self, x: Float[Tensor, "R T D"], angles: Turns, seen: Sequence[Seen | None]
    ) -> Float[Tensor, "R T D"]:
        """The normalised stream after the last block; each has what its queries see."""
        change = no_change(x)
        for block, of_block in zip(self.blocks, seen):
            x, change = run(block, x, change, angles, of_block)
        return add_norm(x, change, self.norm)[1]

    def output(self) -> Output:
        return Output(self.head.weight)
