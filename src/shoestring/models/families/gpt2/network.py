"""GPT-2: learned positions, LayerNorm before each part, GELU, biases, causal attention.

The same network as `GPT2LMHeadModel` of transformers.

Shapes: R rows, T positions, D width, H heads, C = D / H channels per head, F hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from shoestring.core.errors import UserError
from shoestring.core.sections import Model, number
from shoestring.cost.transformer import table_positions
from shoestring.models.batch import Batch
from shoestring.models.families.gpt2 import FAMILY
from shoestring.models.language_model import LanguageModel, Output
from shoestring.models.layers import blocks
from shoestring.models.layers.attention import Documents, Heads, Seen, attend
from shoestring.models.layers.blocks import LayerNorm
from shoestring.models.layers.embedding_lookup import embedding_lookup, hide_words, seen_words
from shoestring.models.layers.gelu import gelu
from shoestring.models.layers.next_token import Layer, Parts, Product, norm_of, product_of
from shoestring.models.layers.past import Kept

EPSILON = 1e-5


class GPT2(LanguageModel):
    """Next-token prediction in rows of `length`. Weights are drawn from `seed` on the CPU: the same on every device."""

    def __init__(self, model: Model, vocab_size: int, length: int, seed: int):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, model.width)
        self.positions = nn.Embedding(table_positions(model, length), model.width)
        self.blocks = nn.ModuleList(Block(model) for _ in range(model.layers))
        self.norm = LayerNorm(model.width, eps=EPSILON)
        self.head = nn.Linear(model.width, vocab_size, bias=False)
        if model.tied:
            self.head.weight = self.embedding.weight
        self.dropout, self.attention_dropout = number(model.dropout), number(model.attention_rate)
        rates = model.output_dropout or 0.0, model.word_dropout or 0.0
        self.output_dropout, self.word_dropout = map(number, rates)
        self.heads = Heads(model.heads, model.heads, model.width // model.heads)
        blocks.draw_weights(self, seed, residual_scale=(2 * model.layers) ** -0.5)

    def hidden(self, inputs: Batch) -> Float[Tensor, "rows positions width"]:
        length = inputs.ids.shape[1]
        self._check(length)
        documents = None
        if inputs.document_mask and inputs.segments is not None:
            documents = Documents(inputs.segments)
            places = self.positions(documents.positions)  # R T D: positions restart in every document
        else:
            places = self.positions.weight[:length]  # T D
        x = embedding_lookup(self.embedding, inputs.ids)
        if self.word_dropout and self.training:
            x = hide_words(x, seen_words(self.embedding, inputs.ids, self.word_dropout, x.dtype))
        x = blocks.as_stream(F.dropout(x + places, self.dropout, self.training))
        dropped = self.attention_dropout if self.training else 0.0
        seen = None if documents is None else documents.seen(x, self.heads, dropped)
        x = self._through_blocks(x, [seen] * len(self.blocks))
        return F.dropout(x, self.output_dropout, self.training)

    def past(self, length: int) -> list[Kept]:
        return [Kept(length) for _ in self.blocks]

    def read_on(self, ids: Int[Tensor, "R T"], past: list[Kept]) -> Float[Tensor, "R V"]:
        first = past[0].count
        self._check(first + ids.shape[1])
        x = embedding_lookup(self.embedding, ids) + self.positions.weight[first : first + ids.shape[1]]
        return self.output().logits(self._through_blocks(blocks.as_stream(x), past)[:, -1])

    def parts(self) -> Parts:
        layers, norm = [block.parts() for block in self.blocks], norm_of(self.norm)  # type: ignore[operator]
        head = Product(self.head.weight)
        return Parts(self.embedding.weight, layers, norm, head, self.heads, positions=self.positions.weight)

    def _through_blocks(self, x: Float[Tensor, "R T D"], seen: Sequence[Seen | None]) -> Float[Tensor, "R T D"]:
        """The normalised stream after the last block; each has what its queries see."""
        for block, of_block in zip(self.blocks, seen):
            x = blocks.run(block, x, of_block)
        hidden: Tensor = self.norm(x)
        return hidden

    def _check(self, length: int) -> None:
        known = len(self.positions.weight)
        if length > known:
            raise UserError(f"a row of {length} tokens: the model has {known} positions (model.positions)")

    def output(self) -> Output:
        return Output(self.head.weight)


class Block(blocks.Block):
    """Attention, then an MLP, each on a normalised copy of the stream and added to it."""

    def __init__(self, model: Model):
        super().__init__()
        d, f = model.width, FAMILY.hidden(model)
        self.heads, self.dropout = model.heads, number(model.dropout)
        self.attention_dropout = number(model.attention_rate)
        self.norm1 = LayerNorm(d, eps=EPSILON)
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.norm2 = LayerNorm(d, eps=EPSILON)
        self.up = nn.Linear(d, f)
        self.down = nn.Linear(f, d)

    def forward(self, x: Float[Tensor, "R T D"], seen: Seen | None = None) -> Float[Tensor, "R T D"]:
        r, t, d = x.shape
        qkv = self.qkv(self.norm1(x)).view(r, t, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each R H T C
        mixed = attend(q, k, v, seen, self.dropping_attention).transpose(1, 2).reshape(r, t, d)
        x = x + self.dropped(self.out(mixed))
        return x + self.dropped(self.part(self._mlp, x))

    def _mlp(self, x: Float[Tensor, "R T D"]) -> Float[Tensor, "R T D"]:
        change: Tensor = self.down(gelu(self.up(self.norm2(x)), "tanh"))
        return change

    def parts(self) -> Layer:
        qkv, out, up, down = map(product_of, (self.qkv, self.out, self.up, self.down))
        return Layer(norm_of(self.norm1), qkv, out, norm_of(self.norm2), up, "gelu", down)
