"""GPT-2: learned positions, LayerNorm before each part, GELU, biases, causal attention.

The same network as `GPT2LMHeadModel` of transformers.

Shapes: R rows, T positions, D width, H heads, C = D / H channels a head, F hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from shoestring.core.errors import UserError
from shoestring.core.facts import Cost
from shoestring.core.recipe import Model
from shoestring.models import blocks
from shoestring.models.attention import Documents, attend
from shoestring.models.blocks import LayerNorm
from shoestring.models.protocol import Batch, LanguageModel, Output

EPSILON = 1e-5


def hidden_channels(model: Model) -> int:
    """F: as given, or 4 D."""
    return model.hidden or 4 * model.width


def gpt2_cost(model: Model, vocab_size: int, length: int) -> Cost:
    """Parameters by group and forward FLOPs a token, by the convention of `Cost`."""
    d, f, n = model.width, hidden_channels(model), model.layers
    products = {"attention": n * 4 * d * d, "mlp": n * 2 * d * f, "head": vocab_size * d}
    pairs = n * 2 * 2 * length * d  # queries with keys, and weights with values, each 2 T D a token and layer
    parameters = {
        "embedding": (vocab_size + (model.positions or length)) * d,
        "attention": products["attention"] + n * 4 * d,
        "mlp": products["mlp"] + n * (f + d),
        "norm": (2 * n + 1) * 2 * d,
        "head": 0 if model.tied else products["head"],
    }
    return Cost(parameters=parameters, forward_flops_per_token=2.0 * sum(products.values()) + pairs)


class GPT2(LanguageModel):
    """Next-token prediction in rows of `length`. Weights are drawn from `seed` on the CPU: the same on every device."""

    def __init__(self, model: Model, vocab_size: int, length: int, seed: int):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, model.width)
        self.positions = nn.Embedding(model.positions or length, model.width)
        self.blocks = nn.ModuleList(Block(model) for _ in range(model.layers))
        self.norm = LayerNorm(model.width, eps=EPSILON)
        self.head = nn.Linear(model.width, vocab_size, bias=False)
        if model.tied:
            self.head.weight = self.embedding.weight
        self.dropout = model.dropout
        self._draw_weights(seed, model.layers)

    @torch.no_grad()
    def _draw_weights(self, seed: int, layers: int) -> None:
        """Normal, deviation 0.02; the two matrices of a block that write to the stream by 1/√(2 layers); biases 0."""
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if parameter.ndim >= 2:
                scale = (2 * layers) ** -0.5 if name.endswith(("out.weight", "down.weight")) else 1.0
                parameter.normal_(0.0, 0.02 * scale, generator=generator)
            elif name.endswith("bias"):
                parameter.zero_()

    def hidden(self, inputs: Batch) -> Float[Tensor, "rows positions width"]:
        length, known = inputs.ids.shape[1], len(self.positions.weight)
        if length > known:
            raise UserError(f"a row of {length} tokens: the model knows {known} positions (model.positions)")
        if inputs.within and inputs.segments is not None:
            documents = Documents(inputs.segments)
            places = self.positions(documents.positions)  # R T D: positions start again in every document
        else:
            documents, places = None, self.positions.weight[:length]  # T D
        x = F.dropout(self.embedding(inputs.ids) + places, self.dropout, self.training)
        x = blocks.as_stream(x)
        for block in self.blocks:
            x = blocks.run(block, x, documents)
        hidden: Tensor = self.norm(x)
        return hidden

    def output(self) -> Output:
        return Output(self.head.weight)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        groups: dict[str, list[nn.Parameter]] = {name: [] for name in ("embedding", "attention", "mlp", "norm", "head")}
        for name, parameter in self.named_parameters():  # a tied head is the embedding, and is named once
            groups[_GROUPS[name.split(".")[-2]]].append(parameter)
        return groups


_GROUPS = {"qkv": "attention", "out": "attention", "up": "mlp", "down": "mlp", "norm1": "norm", "norm2": "norm"}
_GROUPS |= {"embedding": "embedding", "positions": "embedding", "norm": "norm", "head": "head"}


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

    def forward(self, x: Float[Tensor, "R T D"], documents: Documents | None = None) -> Float[Tensor, "R T D"]:
        r, t, d = x.shape
        dropout = self.dropout if self.training else 0.0
        qkv = self.qkv(self.norm1(x)).view(r, t, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each R H T C
        mixed = attend(q, k, v, documents, dropout).transpose(1, 2).reshape(r, t, d)
        x = x + F.dropout(self.out(mixed), dropout)
        return x + F.dropout(self.part(self._mlp, x), dropout)

    def _mlp(self, x: Float[Tensor, "R T D"]) -> Float[Tensor, "R T D"]:
        change: Tensor = self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return change


def gpt2_config(model: Model, vocab_size: int, length: int) -> dict[str, Any]:
    """The same network as arguments of transformers' `GPT2Config`; it names no special tokens."""
    return {
        "vocab_size": vocab_size,
        "n_positions": model.positions or length,
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
    own, found = dict(model.named_parameters()), {}
    for mine, theirs in _modules(len(model.blocks)):
        for kind in ("weight", "bias"):
            if f"{mine}.{kind}" in own:
                found[f"{theirs}.{kind}"] = _turned(own[f"{mine}.{kind}"].detach(), mine)
    return found


def from_transformers(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state of a `GPT2` from that of a `GPT2LMHeadModel` or `GPT2Model`; without a head of its own it is tied."""
    left = {_full_name(name): value for name, value in state.items() if not name.endswith(_BUFFERS)}
    if "transformer.wte.weight" not in left:
        raise UserError("these are no weights of a GPT-2: transformer.wte.weight is missing")
    left.setdefault("lm_head.weight", left["transformer.wte.weight"])
    layers = len([name for name in left if name.endswith("ln_1.weight")])
    found = {}
    for mine, theirs in _modules(layers):
        for kind in ("weight", "bias"):
            if f"{theirs}.{kind}" in left:
                found[f"{mine}.{kind}"] = _turned(left.pop(f"{theirs}.{kind}"), mine)
    if left:
        raise UserError(f"{', '.join(sorted(left))}: GPT-2 has no such weights")
    return found


_BUFFERS = (".attn.bias", ".attn.masked_bias")
"""Causal masks, which old files hold among the weights."""


def _full_name(name: str) -> str:
    return name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"


def _modules(layers: int) -> Iterator[tuple[str, str]]:
    """Our name of each part, and theirs."""
    yield from (("embedding", "transformer.wte"), ("positions", "transformer.wpe"))
    parts = {"norm1": "ln_1", "qkv": "attn.c_attn", "out": "attn.c_proj", "norm2": "ln_2"}
    parts |= {"up": "mlp.c_fc", "down": "mlp.c_proj"}
    for i in range(layers):
        yield from ((f"blocks.{i}.{mine}", f"transformer.h.{i}.{theirs}") for mine, theirs in parts.items())
    yield from (("norm", "transformer.ln_f"), ("head", "lm_head"))


def _turned(value: Tensor, mine: str) -> Tensor:
    """Products of a block are stored as (inputs, outputs) there, and as (outputs, inputs) here."""
    return value.t().contiguous() if value.ndim == 2 and mine.startswith("blocks.") else value
