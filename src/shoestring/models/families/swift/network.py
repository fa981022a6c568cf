"""Swift: a Llama with parts that learn more in the same time, each of which `model.parts` can leave out.

Shapes: R rows, T positions, D width, H heads, K heads of keys and values, C = D / H channels per head, A = H + 2 K,
F hidden, G channels that a gate reads, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from shoestring.core.sections import Model, number
from shoestring.models.batch import Batch
from shoestring.models.families.llama import norm_eps
from shoestring.models.families.swift import FAMILY, parts_of
from shoestring.models.language_model import LanguageModel, Output, Rows
from shoestring.models.layers.add_norm import add_norm
from shoestring.models.layers.attention import Documents, Heads, Seen, attend
from shoestring.models.layers.blocks import (
    FIRST_DEVIATION,
    Block,
    PlainNorm,
    RMSNorm,
    draw_weights,
    no_change,
    run,
    stream_type,
)
from shoestring.models.layers.cross_entropy import Copies
from shoestring.models.layers.embedding_lookup import embedding_lookup, hide_words, seen_words
from shoestring.models.layers.linear import linear, swiglu_layer
from shoestring.models.layers.next_token import Layer, Parts, Product, Unsupported, norm_of, product_of
from shoestring.models.layers.normed_heads import add_values, normed_heads
from shoestring.models.layers.pairs import ids_before, pair_ids
from shoestring.models.layers.past import Inputs, Kept, Read
from shoestring.models.layers.pointer import Pointer
from shoestring.models.layers.rotary import Turns, frequencies, qkv_rope, turns, turns_at
from shoestring.models.layers.scaled_add_norm import scaled_add_norm
from shoestring.models.layers.short_convolution import ShortConvolution


def make_norm(model: Model, channels: int) -> RMSNorm:
    """With learned gains if the model has them."""
    kind = RMSNorm if parts_of(model).has("gains") else PlainNorm
    return kind(channels, eps=norm_eps(model))


class Scales(nn.Module):
    """Factors of the stream and of the first embedding, 1 and 0 at first."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 0.0]))


class ValueGate(nn.Module):
    """The gates of the heads before their sigmoid: W x of the first channels of x, which is 0 at first.

    A head adds 2 σ(gate) times the token's value embedding to its values (`models.layers.normed_heads`).
    """

    def __init__(self, channels: int, heads: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(heads, channels))

    def forward(self, x: Float[Tensor, "R T D"]) -> Float[Tensor, "R T K"]:
        return F.linear(x[..., : self.weight.shape[1]], self.weight)


def _inputs(seen: Seen | None, convolution: int) -> Inputs | None:
    """What is kept for the first or the second convolution of a layer, where anything is."""
    return seen.inputs[convolution] if isinstance(seen, Kept) and seen.inputs is not None else None


class SwiftBlock(Block):
    """Attention, then an MLP, each on a normalised copy of the stream and added to it.

    The last change is returned separately: the next block adds it in one pass with its norm.
    """

    def __init__(self, model: Model, layer: int):
        super().__init__()
        parts, products = parts_of(model), FAMILY.block_products(model)
        (qkv, d), _ = products["attention"]
        (up, _), (_, f) = products["mlp"]
        self.heads, self.kv_heads = model.heads, model.kv_heads or model.heads
        self.channels, self.dropout = model.width // model.heads, number(model.dropout)
        self.attention_dropout = number(model.attention_rate)
        self.norm1, self.qkv, self.out = make_norm(model, d), nn.Linear(d, qkv, bias=False), nn.Linear(d, d, bias=False)
        self.q_norm, self.k_norm = (make_norm(model, d // model.heads) if parts.has("qk_norm") else None for _ in "qk")
        self.norm2 = make_norm(model, d)
        self.up = nn.Linear(d, up, bias=False) if parts.has("relu2") else None
        self.gate_up = None if parts.has("relu2") else nn.Linear(d, up, bias=False)
        self.down = nn.Linear(f, d, bias=False)
        gated = layer in FAMILY.value_layers(model)
        self.value_gate = ValueGate(FAMILY.gate_channels(model), self.kv_heads) if gated else None
        self.scales = Scales() if parts.has("scales") else None
        before, keys = parts.positions_before, 2 * FAMILY.key_channels(model)
        self.convolution1, self.convolution2 = (ShortConvolution(before, c) if before else None for c in (keys, d))

    def forward(
        self,
        x: Float[Tensor, "R T D"],
        change: Float[Tensor, "R T D"],
        first: Float[Tensor, "R T D"] | None,
        values: Float[Tensor, "R T KC"] | None,
        angles: Turns,
        seen: Seen | None,
        positions: Int[Tensor, "R T"] | None = None,
    ) -> tuple[Float[Tensor, "R T D"], Float[Tensor, "R T D"]]:
        """`first` is the first embedding, and `values` the value embeddings of this layer, where it has such a part.

        `positions` are those in documents, which convolutions do not mix.
        """
        if self.scales is not None and first is not None:
            x, normed = scaled_add_norm(x, change, first, self.scales.weight, self.norm1)
        else:
            x, normed = add_norm(x, change, self.norm1)
        x, normed = add_norm(x, self.dropped(self.attention(normed, values, angles, seen, positions)), self.norm2)
        if self.convolution2 is not None:
            normed = self.convolution2(normed, positions, _inputs(seen, 1))
        return x, self.dropped(self.part(self.mlp, normed))

    def attention(
        self,
        x: Float[Tensor, "R T D"],
        values: Float[Tensor, "R T KC"] | None,
        angles: Turns,
        seen: Seen | None,
        positions: Int[Tensor, "R T"] | None,
    ) -> Float[Tensor, "R T D"]:
        r, t, d = x.shape
        product = linear(x, self.qkv)
        if self.convolution1 is not None:
            product = self.convolution1(product, positions, _inputs(seen, 0))
        qkv = product.view(r, t, self.heads + 2 * self.kv_heads, self.channels)
        gates = None if self.value_gate is None or values is None else self.value_gate(x)
        if self.q_norm is not None and self.k_norm is not None:
            q, k, v = normed_heads(qkv, angles, (self.q_norm, self.k_norm), self.heads, values, gates)
        else:
            q, k, v = qkv_rope(qkv, angles, self.heads)
            v = add_values(v, values, gates)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))  # each R H T C
        mixed = attend(q, k, v, seen, self.dropping_attention).transpose(1, 2)
        return linear(mixed.reshape(r, t, d), self.out)

    def mlp(self, x: Float[Tensor, "R T D"]) -> Float[Tensor, "R T D"]:
        if self.up is not None:
            return linear(F.relu(linear(x, self.up)).square(), self.down)
        assert self.gate_up is not None, "an MLP has one of the two"
        return swiglu_layer(linear(x, self.gate_up), self.down)

    def parts(self, window: int | None, values: Tensor | None) -> Layer:
        gates = []  # zeros stand for the channels that a gate does not read
        if self.value_gate is not None and values is not None:
            weight = self.value_gate.weight
            gates = [F.pad(weight, (0, self.qkv.in_features - weight.shape[1]))]
        up, activation = (self.gate_up, "swiglu") if self.up is None else (self.up, "relu2")
        assert up is not None, "an MLP has one of the two"
        return Layer(
            norm_of(self.norm1), product_of(self.qkv, *gates), product_of(self.out), norm_of(self.norm2),
            product_of(up), activation, product_of(self.down), window,
            None if self.q_norm is None or self.k_norm is None else (self.q_norm.weight, self.k_norm.weight),
            values, None if self.scales is None else self.scales.weight,
            None if self.convolution1 is None else self.convolution1.factors(),
            None if self.convolution2 is None else self.convolution2.factors(),
        )  # fmt: skip


class Swift(LanguageModel):
    """Next-token prediction. Weights are drawn from `seed` on the CPU: the same on every device."""

    frequencies: Tensor

    def __init__(self, model: Model, vocab_size: int, length: int, seed: int):  # noqa: ARG002 (other families need it)
        super().__init__()
        parts, channels = parts_of(model), model.width // model.heads
        self.embedding = nn.Embedding(vocab_size, model.width)
        pairs = FAMILY.pairs(model)
        self.pair_embedding = nn.Embedding(pairs, model.width) if pairs else None
        self.embedding_norm = make_norm(model, model.width) if parts.has("embedding_norm") else None
        self._valued, keys = FAMILY.value_layers(model), FAMILY.key_channels(model)
        self.value_embedding = nn.Embedding(vocab_size, keys * len(self._valued)) if self._valued else None
        self.blocks = nn.ModuleList(SwiftBlock(model, layer) for layer in range(model.layers))
        self.norm = make_norm(model, model.width)
        self.head = nn.Linear(model.width, vocab_size, bias=False)
        if model.tied:
            self.head.weight = self.embedding.weight
        pointer = FAMILY.pointer(model)
        self.pointer = Pointer(model.width, pointer) if pointer else None
        self.cap, self.scaled = parts.cap, parts.has("scales")
        self.dropout, self.attention_dropout = number(model.dropout), number(model.attention_rate)
        rates = model.output_dropout or 0.0, model.word_dropout or 0.0
        self.output_dropout, self.word_dropout = map(number, rates)
        self.heads = Heads(model.heads, model.kv_heads or model.heads, channels)
        self.windows = [FAMILY.window(model, layer) for layer in range(model.layers)]
        self._positions_before = parts.positions_before
        turning = frequencies(channels, model.rotary_base, model.rotary_scaling)
        self.register_buffer("frequencies", turning, persistent=False)
        draw_weights(self, seed, residual_scale=(2 * model.layers) ** -0.5)
        if self.pointer is not None:
            self.pointer.begin(FIRST_DEVIATION)
        self._set_to_zero(("value_gate",) + (("out", "down") if parts.has("zero_outputs") else ()))

    @torch.no_grad()
    def _set_to_zero(self, names: tuple[str, ...]) -> None:
        for name, parameter in self.blocks.named_parameters():
            if name.split(".")[-2] in names:
                parameter.zero_()
        if self.pair_embedding is not None:
            self.pair_embedding.weight.zero_()

    def hidden(self, inputs: Batch) -> Float[Tensor, "R T D"]:
        angles = turns(self.frequencies, inputs.ids.shape[1])
        segments, positions = inputs.segments if inputs.document_mask else None, None
        if segments is not None:
            positions = Documents(segments).positions
            angles = turns_at(positions, angles)
        words = None
        if self.word_dropout and self.training:
            kind = stream_type(self.embedding.weight)
            words = seen_words(self.embedding, inputs.ids, self.word_dropout, kind)
        x = self._embedded(inputs.ids, words, positions)
        mixed = positions if self._positions_before else None
        x = self._through_blocks(inputs.ids, x, angles, self._seen(x, segments), words, mixed)
        return F.dropout(x, self.output_dropout, self.training)

    def copies(self, inputs: Batch, hidden: Float[Tensor, "R T D"], targets: Int[Tensor, "R T"]) -> Copies | None:
        if self.pointer is None:
            return None
        documents = inputs.segments if inputs.document_mask else None
        found: Copies = self.pointer(hidden, inputs.ids, targets, documents)
        return found

    def logits(self, inputs: Batch | Rows) -> Float[Tensor, "R T V"]:
        batch = Batch.of(inputs)
        hidden = self.hidden(batch)
        found = self.output().logits(hidden)
        if self.pointer is None:
            return found
        return self.pointer.mixed(found, hidden, batch.ids, batch.segments if batch.document_mask else None)

    def last_logits(self, inputs: Batch | Rows) -> Float[Tensor, "R V"]:
        if self.pointer is None:
            return super().last_logits(inputs)
        return self.logits(inputs)[:, -1]

    def past(self, length: int) -> list[Kept]:
        before, read = self._positions_before, None if self.pointer is None else Read(length)
        return [
            Kept(length, window, (Inputs(before), Inputs(before)) if before else None, read if layer == 0 else None)
            for layer, window in enumerate(self.windows)
        ]

    def read_on(self, ids: Int[Tensor, "R T"], past: list[Kept]) -> Float[Tensor, "R V"]:
        first = past[0]
        angles = turns(self.frequencies, ids.shape[1], first.count)
        x = self._embedded(ids, newest=first.newest)
        first.newest = ids[:, -1:]
        hidden = self._through_blocks(ids, x, angles, past)
        found = self.output().logits(hidden[:, -1])
        if self.pointer is None or first.read is None:
            return found
        first.read.add(self.pointer.read(hidden)[1], ids)
        return self.pointer.mixed_last(found, hidden, first.read)

    def parts(self) -> Parts:
        if self.pointer is not None:
            raise Unsupported("no kernels for a pointer")
        values = dict[int, Tensor]()
        if self.value_embedding is not None:
            values |= zip(self._valued, self.value_embedding.weight.chunk(len(self._valued), dim=-1))
        layers = [
            block.parts(window, values.get(layer))  # type: ignore[operator]
            for layer, (block, window) in enumerate(zip(self.blocks, self.windows))
        ]
        head, first = Product(self.head.weight), None if self.embedding_norm is None else norm_of(self.embedding_norm)
        return Parts(
            self.embedding.weight, layers, norm_of(self.norm), head, self.heads, self.cap, embedding_norm=first,
            frequencies=self.frequencies,
            pair_embedding=None if self.pair_embedding is None else self.pair_embedding.weight,
        )  # fmt: skip

    def output(self) -> Output:
        return Output(self.head.weight, cap=self.cap)

    def _embedded(
        self,
        ids: Int[Tensor, "R T"],
        words: Float[Tensor, "R T 1"] | None = None,
        positions: Int[Tensor, "R T"] | None = None,
        newest: Int[Tensor, "R 1"] | None = None,
    ) -> Float[Tensor, "R T D"]:
        """The first stream. No pair reaches beyond position 0; `newest` is the token before the first id."""
        x = embedding_lookup(self.embedding, ids, stream_type(self.embedding.weight))
        if self.pair_embedding is not None:
            vocabulary, size = self.embedding.num_embeddings, self.pair_embedding.num_embeddings
            pairs = pair_ids(ids_before(ids, vocabulary, positions, newest), ids, vocabulary, size)
            rows = embedding_lookup(self.pair_embedding, pairs, x.dtype)
            x = x + (rows if words is None else rows * F.pad(words[:, :-1], (0, 0, 1, 0), value=1.0))
        if words is not None:
            x = hide_words(x, words)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        return F.dropout(x, self.dropout, self.training)

    def _seen(self, x: Float[Tensor, "R T D"], segments: Int[Tensor, "R T"] | None) -> list[Seen | None]:
        """The mask of every layer: one object for all layers with the same."""
        length, found = x.shape[1], dict[int | None, Seen | None]()
        if segments is None:
            segments = torch.zeros(1, length, dtype=torch.int64, device=x.device)  # one document, the same in all rows
            found = {window: None for window in self.windows if window is None or window >= length}
        for window in self.windows:
            if window not in found:
                documents = Documents(segments, window)
                found[window] = documents.seen(x, self.heads, self.attention_dropout if self.training else 0.0)
        return [found[window] for window in self.windows]

    def _through_blocks(
        self,
        ids: Int[Tensor, "R T"],
        x: Float[Tensor, "R T D"],
        angles: Turns,
        seen: Sequence[Seen | None],
        words: Float[Tensor, "R T 1"] | None = None,
        positions: Int[Tensor, "R T"] | None = None,
    ) -> Float[Tensor, "R T D"]:
        """The normalised stream after the last block; each has what its queries see. `words` are factors of values."""
        change, first = no_change(x), x.view_as(x) if self.scaled else None  # one object twice would be another graph
        values = dict[int, Tensor]()
        if self.value_embedding is not None:
            rows = embedding_lookup(self.value_embedding, ids, x.dtype)
            if words is not None:  # a word that is not seen has no values either
                rows = rows * words
            values |= zip(self._valued, rows.chunk(len(self._valued), dim=-1))
        for layer, (block, of_block) in enumerate(zip(self.blocks, seen)):
            x, change = run(block, x, change, first, values.get(layer), angles, of_block, positions)
        return add_norm(x, change, self.norm)[1]
