"""BERT: an encoder that sees the whole of a row, and predicts hidden tokens of it or its class.

The same networks as `BertForMaskedLM` and `BertForSequenceClassification` of transformers, for rows of one token type.

Shapes: R rows, T positions, D width, H heads, C = D / H channels a head, F hidden, V vocabulary or classes, N
positions of all rows of which something is predicted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from shoestring.core.errors import UserError
from shoestring.core.recipe import Model
from shoestring.cost.shapes import TOKEN_TYPES, hidden_channels, table_positions
from shoestring.models import blocks
from shoestring.models.blocks import LayerNorm
from shoestring.models.cross_entropy import IGNORED, linear_cross_entropy, token_cross_entropy
from shoestring.models.embedding import embedded
from shoestring.models.naming import named_back, renamed
from shoestring.models.protocol import Batch, LanguageModel, Output, Rows

EPSILON = 1e-12
TILE = 64
"""Positions go through the head in multiples of this, where they are not counted: so its products have few sizes."""


class MaskedLM(LanguageModel):
    """An encoder with the head of a masked model or, with `model.classes`, that of a classifier.

    Weights are drawn from `seed` on the CPU: the same on every device. Those of the encoder have the same names, and
    for the same seed the same values, with either head.
    """

    def __init__(self, model: Model, vocab_size: int, length: int, seed: int):
        super().__init__()
        d = model.width
        self.embedding = nn.Embedding(vocab_size, d)
        self.positions = nn.Embedding(table_positions(model, length), d)
        self.types = nn.Embedding(TOKEN_TYPES, d)
        self.embedding_norm = LayerNorm(d, eps=EPSILON)
        self.blocks = nn.ModuleList(Block(model) for _ in range(model.layers))
        self.classes, self.dropout = model.classes, model.dropout
        if model.classes:
            self.pooler = nn.Linear(d, d)
            self.classifier = nn.Linear(d, model.classes)
        else:
            self.transform = nn.Linear(d, d)
            self.transform_norm = LayerNorm(d, eps=EPSILON)
            self.head = nn.Linear(d, vocab_size)
            if model.tied:
                self.head.weight = self.embedding.weight
        blocks.draw_weights(self, seed)

    def encode(self, inputs: Batch) -> Float[Tensor, "rows positions width"]:
        """The output of the last layer; padding is not seen."""
        assert not inputs.within, "an encoder sees the whole of a row"
        length, known = inputs.ids.shape[1], len(self.positions.weight)
        if length > known:
            raise UserError(f"a row of {length} tokens: the model knows {known} positions (model.positions)")
        x = embedded(self.embedding, inputs.ids) + self.types.weight[0] + self.positions.weight[:length]
        x = blocks.as_stream(F.dropout(self.embedding_norm(x), self.dropout, self.training))
        seen = None if inputs.segments is None else seen_keys(inputs.segments)
        for block in self.blocks:
            x = blocks.run(block, x, seen)
        encoded: Tensor = x
        return encoded

    def hidden(self, inputs: Batch) -> Float[Tensor, "rows positions width"]:
        """Of every position; of a classifier one a row, made from its first token."""
        x = self.encode(inputs)
        if not self.classes:
            return self._transformed(x)
        return F.dropout(torch.tanh(self.pooler(x[:, :1])), self.dropout, self.training)

    def output(self) -> Output:
        layer = self.classifier if self.classes else self.head
        return Output(layer.weight, layer.bias)

    def forward(self, batch: Batch | Rows) -> Float[Tensor, ""]:
        """The summed loss in nats, with its gradient.

        Of a masked model only the positions with a prediction go through the head. On a CPU they are counted. A GPU
        would have to be waited for, so there `batch.most` says that they are no more than so many, and without it all
        positions go. Should there be more, the loss is NaN rather than one of a part.
        """
        if self.classes:
            return super().forward(batch)
        hidden, targets, places = self._where_predicted(Batch.of(batch))
        nats = linear_cross_entropy(hidden, *self.output(), targets[places])
        too_many = (targets != IGNORED).sum() > len(places)
        return nats * torch.ones_like(nats).masked_fill(too_many, torch.nan)  # a product: the gradient is NaN too

    @torch.no_grad()
    def token_losses(self, batch: Batch | Rows) -> Float[Tensor, "rows predictions"]:
        """The loss of every prediction, in nats and float32; 0 where there is none."""
        if self.classes:
            return super().token_losses(batch)
        batch = Batch.of(batch)
        hidden, targets, places = self._where_predicted(batch)
        found = token_cross_entropy(hidden, *self.output(), targets[places])
        losses = found.new_zeros(len(targets)).masked_fill(targets != IGNORED, torch.nan)  # left out, if still so below
        return losses.index_copy(0, places, found).view(batch.targets().shape)

    def _transformed(self, x: Float[Tensor, "R T D"]) -> Float[Tensor, "R T D"]:
        found: Tensor = self.transform_norm(F.gelu(self.transform(x)))
        return found

    def _where_predicted(self, batch: Batch) -> tuple[Float[Tensor, "N D"], Int[Tensor, " RT"], Int[Tensor, " N"]]:
        """What the output product reads, the targets of all positions, and which of these are read."""
        x, targets = self.encode(batch.inputs()).flatten(0, 1), batch.targets().flatten()
        places = predicted_first(targets, batch.most)
        if len(places) < len(targets):
            x = x.index_select(0, places)
        return self._transformed(x[None])[0], targets, places

    def load_encoder(self, state: Mapping[str, Tensor]) -> list[str]:
        """Take over the encoder of a model of this family, and what fits of its head.

        Returns the names of the weights that stay as they are, all of them of the head. Nothing is changed where the
        encoders differ.
        """
        own, taken, kept, problems = self.state_dict(), dict[str, Tensor](), list[str](), list[str]()
        if not self.classes and self.head.weight is self.embedding.weight:
            del own["head.weight"]
        for name, value in own.items():
            found = state.get(name)
            if found is not None and found.shape == value.shape:
                taken[name] = found
            elif name.split(".")[0] in _HEADS:
                kept.append(name)
            elif found is None:
                problems.append(f"{name} is missing")
            else:
                problems.append(f"{name} is {tuple(found.shape)}, and {tuple(value.shape)} by the recipe")
        if problems:
            raise UserError("these are weights of another encoder: " + "; ".join(problems))
        self.load_state_dict(taken, strict=False)
        return kept


_HEADS = ("transform", "transform_norm", "head", "pooler", "classifier")


class Block(blocks.Block):
    """Attention, then an MLP, each added to the stream, which is normalised after it."""

    def __init__(self, model: Model):
        super().__init__()
        d, f = model.width, hidden_channels(model)
        self.heads, self.dropout = model.heads, model.dropout
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.norm1 = LayerNorm(d, eps=EPSILON)
        self.up = nn.Linear(d, f)
        self.down = nn.Linear(f, d)
        self.norm2 = LayerNorm(d, eps=EPSILON)

    def forward(self, x: Float[Tensor, "R T D"], seen: Bool[Tensor, "R 1 1 T"] | None = None) -> Float[Tensor, "R T D"]:
        r, t, d = x.shape
        dropout = self.dropout if self.training else 0.0
        q, k, v = self.qkv(x).view(r, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)  # each R H T C
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, dropout_p=dropout)
        change = self.out(mixed.transpose(1, 2).reshape(r, t, d))
        x = self.norm1(x + F.dropout(change, dropout))
        found: Tensor = self.norm2(x + F.dropout(self.part(self._mlp, x), dropout))
        return found

    def _mlp(self, x: Float[Tensor, "R T D"]) -> Float[Tensor, "R T D"]:
        change: Tensor = self.down(F.gelu(self.up(x)))
        return change


def seen_keys(segments: Int[Tensor, "R T"]) -> Bool[Tensor, "R 1 1 T"]:
    """All but padding, which comes last: a first token is seen in any case, so that a row of padding stays finite."""
    first = torch.arange(segments.shape[1], device=segments.device) == 0
    return ((segments != 0) | first)[:, None, None]


def predicted_first(targets: Int[Tensor, " RT"], most: int | None) -> Int[Tensor, " N"]:
    """Places of the predictions in their order, and then of other positions, up to `most` in whole tiles.

    Without `most`: of the predictions alone on a CPU, and of all positions elsewhere. So a device is never waited for.
    """
    ignored = targets == IGNORED
    if most is None and targets.device.type == "cpu":
        return (~ignored).nonzero().squeeze(1)
    size = len(targets) if most is None else min(-(-most // TILE) * TILE, len(targets))
    if size == len(targets):
        return torch.arange(size, device=targets.device)
    return ignored.byte().argsort(stable=True)[:size]


def bert_config(model: Model, vocab_size: int, length: int) -> dict[str, Any]:
    """The same network as arguments of transformers' `BertConfig`; it names no special tokens."""
    found = {
        "vocab_size": vocab_size,
        "max_position_embeddings": table_positions(model, length),
        "type_vocab_size": TOKEN_TYPES,
        "hidden_size": model.width,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "intermediate_size": hidden_channels(model),
        "hidden_act": "gelu",
        "layer_norm_eps": EPSILON,
        "hidden_dropout_prob": model.dropout,
        "attention_probs_dropout_prob": model.dropout,
        "tie_word_embeddings": model.tied,
        "pad_token_id": None,
    }
    if model.classes:
        found |= {"num_labels": model.classes, "problem_type": "single_label_classification"}
    return found


def to_transformers(model: MaskedLM) -> dict[str, Tensor]:
    """The weights under the names and in the layouts of `BertForMaskedLM` or `BertForSequenceClassification`.

    What is tied there is left out: the decoder's matrix, and the second name of its bias.
    """
    own = dict(model.named_parameters())
    found = renamed(own, _modules(len(model.blocks)), lambda value, _, count: value.chunk(count))
    if "cls.predictions.decoder.bias" in found:
        found["cls.predictions.bias"] = found["cls.predictions.decoder.bias"]
        if "cls.predictions.decoder.weight" in found:  # not tied: the bias there has two names, each with its own copy
            found["cls.predictions.bias"] = found["cls.predictions.bias"].clone()
        else:
            del found["cls.predictions.decoder.bias"]
    return found


def from_transformers(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state of a `MaskedLM` from that of any BERT of transformers, with whatever heads that has.

    `MaskedLM.load_encoder` takes of it what it needs. The decoder of a masked model without a matrix of its own is
    tied. The head that tells whether two sentences follow each other has no place here.
    """
    left = {_full_name(name): value for name, value in state.items() if not name.endswith(_BUFFERS)}
    left = {name: value for name, value in left.items() if not name.startswith("cls.seq_relationship.")}
    if "bert.embeddings.word_embeddings.weight" not in left:
        raise UserError("these are no weights of a BERT: bert.embeddings.word_embeddings.weight is missing")
    if "cls.predictions.bias" in left:
        left.setdefault("cls.predictions.decoder.weight", left["bert.embeddings.word_embeddings.weight"])
        left.setdefault("cls.predictions.decoder.bias", left["cls.predictions.bias"])
        del left["cls.predictions.bias"]
    layers = len([name for name in left if name.endswith("intermediate.dense.weight")])
    return named_back(left, _modules(layers), "BERT")


_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")
"""Constants, which old files hold among the weights."""


def _full_name(name: str) -> str:
    """As transformers writes it today: with the encoder's prefix, and without the old names of a norm's parameters."""
    for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
        name = name.removesuffix(old) + new if name.endswith(old) else name
    return name if name.startswith(("bert.", "cls.", "classifier.")) else f"bert.{name}"


def _modules(layers: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Our name of each part, and theirs: three for the product that makes queries, keys and values."""
    embeddings, head = "bert.embeddings", "cls.predictions"
    yield "embedding", (f"{embeddings}.word_embeddings",)
    yield "positions", (f"{embeddings}.position_embeddings",)
    yield "types", (f"{embeddings}.token_type_embeddings",)
    yield "embedding_norm", (f"{embeddings}.LayerNorm",)
    for i in range(layers):
        mine, theirs = f"blocks.{i}", f"bert.encoder.layer.{i}"
        yield f"{mine}.qkv", tuple(f"{theirs}.attention.self.{name}" for name in ("query", "key", "value"))
        yield f"{mine}.out", (f"{theirs}.attention.output.dense",)
        yield f"{mine}.norm1", (f"{theirs}.attention.output.LayerNorm",)
        yield f"{mine}.up", (f"{theirs}.intermediate.dense",)
        yield f"{mine}.down", (f"{theirs}.output.dense",)
        yield f"{mine}.norm2", (f"{theirs}.output.LayerNorm",)
    yield "transform", (f"{head}.transform.dense",)
    yield "transform_norm", (f"{head}.transform.LayerNorm",)
    yield "head", (f"{head}.decoder",)
    yield "pooler", ("bert.pooler.dense",)
    yield "classifier", ("classifier",)
