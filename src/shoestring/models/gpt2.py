"""GPT-2: learned positions, LayerNorm before each part, GELU, biases, causal attention.

The same network as `GPT2LMHeadModel` of transformers.

Shapes: R rows, T positions, D width, H heads, C = D / H channels a head, F hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from shoestring.core.errors import UserError
from shoestring.core.recipe import Model
from shoestring.cost.shapes import hidden_channels, table_positions
from shoestring.models import blocks
from shoestring.models.attention import Documents, Heads, Seen, attend
from shoestring.models.blocks import LayerNorm
from shoestring.models.embedding import embedded
from shoestring.models.naming import named_back, renamed
from shoestring.models.protocol import Batch, LanguageModel, Output

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
        self.dropout = model.dropout
        self.heads = Heads(model.heads, model.heads, model.width // model.heads)
        blocks.draw_weights(self, seed, written=(2 * model.layers) ** -0.5)

    def hidden(self, inputs: Batch) -> Float[Tensor, "rows positions width"]:
        length, known = inputs.ids.shape[1], len(self.positions.weight)
        if length > known:
            raise UserError(f"a row of {length} tokens: the model knows {known} positions (model.positions)")
        documents = None
        if inputs.within and inputs.segments is not None:
            documents = Documents(inputs.segments)
            places = self.positions(documents.positions)  # R T D: positions start again in every document
        else:
            places = self.positions.weight[:length]  # T D
        x = F.dropout(embedded(self.embedding, inputs.ids) + places, self.dropout, self.training)
        x = blocks.as_stream(x)
        seen = documents and documents.seen(x, self.heads, self.dropout if self.training else 0.0)
        for block in self.blocks:
            x = blocks.run(block, x, seen)
        hidden: Tensor = self.norm(x)
        return hidden

    def output(self) -> Output:
        return Output(self.head.weight)


class Block(blocks.Block):
    """Attention, then an MLP, each on a normalised copy of the stream and added to it."""

    def __init__(self, model: Model):
        super().__init__()
        d, f = model.width, hidden_channels(model)
        self.heads, self.dropout = model.heads, model.dropout
        self.norm1 = LayerNorm(d, eps=EPSILON)
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.norm2 = LayerNorm(d, eps=EPSILON)
        self.up = nn.Linear(d, f)
        self.down = nn.Linear(f, d)

    def forward(self, x: Float[Tensor, "R T D"], seen: Seen | None = None) -> Float[Tensor, "R T D"]:
        r, t, d = x.shape
        dropout = self.dropout if self.training else 0.0
        qkv = self.qkv(self.norm1(x)).view(r, t, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each R H T C
        mixed = attend(q, k, v, seen, dropout).transpose(1, 2).reshape(r, t, d)
        x = x + F.dropout(self.out(mixed), dropout)
        return x + F.dropout(self.part(self._mlp, x), dropout)

    def _mlp(self, x: Float[Tensor, "R T D"]) -> Float[Tensor, "R T D"]:
        change: Tensor = self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return change


def gpt2_config(model: Model, vocab_size: int, length: int) -> dict[str, Any]:
    """The same network as arguments of transformers' `GPT2Config`; it names no special tokens."""
    return {
        "vocab_size": vocab_size,
        "n_positions": table_positions(model, length),
        "n_embd": model.width,
        "n_layer": model.layers,
        "n_head": model.heads,
        "n_inner": hidden_channels(model),
        "activation_function": "gelu_new",
        "layer_norm_epsilon": EPSILON,
        "embd_pdrop": model.dropout,
        "resid_pdrop": model.dropout,
        "attn_pdrop": model.dropout,
        "tie_word_embeddings": model.tied,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def to_transformers(model: GPT2) -> dict[str, Tensor]:
    """The weights under the names and in the layouts of `GPT2LMHeadModel`; a tied head is left out, as it is there."""
    own = dict(model.named_parameters())
    return renamed(own, _modules(len(model.blocks)), lambda value, mine, _: [_turned(value, mine)])


def from_transformers(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state of a `GPT2` from that of a `GPT2LMHeadModel` or `GPT2Model`; without a head of its own it is tied."""
    left = {_full_name(name): value for name, value in state.items() if not name.endswith(_BUFFERS)}
    if "transformer.wte.weight" not in left:
        raise UserError("these are no weights of a GPT-2: transformer.wte.weight is missing")
    left.setdefault("lm_head.weight", left["transformer.wte.weight"])
    layers = len([name for name in left if name.endswith("ln_1.weight")])
    return named_back(left, _modules(layers), "GPT-2", _turned)


_BUFFERS = (".attn.bias", ".attn.masked_bias")
"""Causal masks, which old files hold among the weights."""


def _full_name(name: str) -> str:
    return name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"


def _modules(layers: int) -> Iterator[tuple[str, tuple[str]]]:
    """Our name of each part, and theirs."""
    yield from (("embedding", ("transformer.wte",)), ("positions", ("transformer.wpe",)))
    parts = {"norm1": "ln_1", "qkv": "attn.c_attn", "out": "attn.c_proj", "norm2": "ln_2"}
    parts |= {"up": "mlp.c_fc", "down": "mlp.c_proj"}
    for i in range(layers):
        yield from ((f"blocks.{i}.{mine}", (f"transformer.h.{i}.{theirs}",)) for mine, theirs in parts.items())
    yield from (("norm", ("transformer.ln_f",)), ("head", ("lm_head",)))


def _turned(value: Tensor, mine: str) -> Tensor:
    """Products of a block are stored as (inputs, outputs) there, and as (outputs, inputs) here."""
    return value.t().contiguous() if value.ndim == 2 and mine.startswith("blocks.") else value
