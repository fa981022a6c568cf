"""BERT: an encoder that sees the whole row, and predicts its hidden tokens or its class.

The same networks as `BertForMaskedLM` and `BertForSequenceClassification` of transformers, for rows of one token type.

The residual stream is float32 also where products are in half precision. Every norm replaces the whole of it, so that a
stream in bf16 is rounded twice per layer, and a model that begins to learn does not leave the unigram's loss.

Shapes: R rows, T positions, D width, H heads, C = D / H channels per head, F hidden, V vocabulary or classes, N
predicted positions of all rows.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from shoestring.core.errors import UserError
from shoestring.core.sections import Model, number
from shoestring.cost.transformer import table_positions
from shoestring.models.batch import Batch
from shoestring.models.families.masked_lm import FAMILY, TOKEN_TYPES
from shoestring.models.language_model import LanguageModel, Output, Rows
from shoestring.models.layers import blocks
from shoestring.models.layers.blocks import LayerNorm
from shoestring.models.layers.cross_entropy import IGNORED
from shoestring.models.layers.embedding_lookup import embedding_lookup
from shoestring.models.layers.gelu import gelu

EPSILON = 1e-12
TILE = 64
"""On a GPU, positions go through the head in multiples of this, so that its products have few sizes."""


class MaskedLM(LanguageModel):
    """An encoder with the head of a masked model or, with `model.classes`, that of a classifier.

    Weights are drawn from `seed` on the CPU: the same on every device. Those of the encoder have the same names, and
    for the same seed the same values, with either head.
    """

    replaceable = ("transform.", "transform_norm.", "head.", "pooler.", "classifier.")

    def __init__(self, model: Model, vocab_size: int, length: int, seed: int):
        super().__init__()
        d = model.width
        self.embedding = nn.Embedding(vocab_size, d)
        self.positions = nn.Embedding(table_positions(model, length), d)
        self.types = nn.Embedding(TOKEN_TYPES, d)
        self.embedding_norm = LayerNorm(d, eps=EPSILON)
        self.blocks = nn.ModuleList(Block(model) for _ in range(model.layers))
        self.classes, self.dropout = model.classes, number(model.dropout)
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
        """The output of the last layer; no position sees padding."""
        assert not inputs.document_mask, "an encoder sees the whole of a row"
        length, known = inputs.ids.shape[1], len(self.positions.weight)
        if length > known:
            raise UserError(f"a row of {length} tokens: the model has {known} positions (model.positions)")
        x = embedding_lookup(self.embedding, inputs.ids) + self.types.weight[0] + self.positions.weight[:length]
        x = F.dropout(self.embedding_norm(x), self.dropout, self.training)
        seen = None if inputs.segments is None else seen_keys(inputs.segments)
        for block in self.blocks:
            x = blocks.run(block, x, seen)
        encoded: Tensor = x
        return encoded

    def hidden(self, inputs: Batch) -> Float[Tensor, "rows positions width"]:
        """The input of the output product: for every position; of a classifier one per row, from its first token."""
        x = self.encode(inputs)
        if not self.classes:
            return self._transformed(x)
        return F.dropout(torch.tanh(self.pooler(x[:, :1])), self.dropout, self.training)

    def output(self) -> Output:
        layer = self.classifier if self.classes else self.head
        return Output(layer.weight, layer.bias)

    def forward(self, batch: Batch | Rows, scale: Float[Tensor, ""] | None = None) -> Float[Tensor, ""]:
        """The summed loss in nats, with its gradient times `scale`.

        Only the predicted positions of a masked model go through the head. A CPU counts them. A GPU would have to be
        waited for, so `batch.most` bounds their number there; without it all positions go through the head. If there
        are more, the loss is NaN.
        """
        if self.classes:
            return super().forward(batch, scale)
        hidden, targets, places = self._where_predicted(Batch.of(batch))
        nats = self.output().loss(hidden, targets[places], scale)
        too_many = (targets != IGNORED).sum() > len(places)
        return nats * torch.ones_like(nats).masked_fill(too_many, torch.nan)  # a product: the gradient is NaN too

    def token_losses(self, batch: Batch | Rows) -> Float[Tensor, "rows predictions"]:
        """The loss of every prediction, in nats and float32; 0 where there is none."""
        if self.classes:
            return super().token_losses(batch)
        batch = Batch.of(batch)
        with blocks.scoring_mode():
            hidden, targets, places = self._where_predicted(batch)
        found = self.output().token_losses(hidden, targets[places])
        losses = found.new_zeros(len(targets)).masked_fill(targets != IGNORED, torch.nan)  # NaN: left out
        return losses.index_copy(0, places, found).view(batch.targets().shape)

    def _transformed(self, x: Float[Tensor, "R T D"]) -> Float[Tensor, "R T D"]:
        found: Tensor = self.transform_norm(gelu(self.transform(x)))
        return found

    def _where_predicted(self, batch: Batch) -> tuple[Float[Tensor, "N D"], Int[Tensor, " RT"], Int[Tensor, " N"]]:
        """The input of the output product, the targets of all positions, and the positions in the input."""
        x, targets = self.encode(batch.inputs()).flatten(0, 1), batch.targets().flatten()
        places = predicted_first(targets, batch.most)
        if len(places) < len(targets):
            x = x.index_select(0, places)
        return self._transformed(x[None])[0], targets, places


class Block(blocks.Block):
    """Attention, then an MLP, each added to the stream, which is normalised after it."""

    def __init__(self, model: Model):
        super().__init__()
        d, f = model.width, FAMILY.hidden(model)
        self.heads, self.dropout = model.heads, number(model.dropout)
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.norm1 = LayerNorm(d, eps=EPSILON)
        self.up = nn.Linear(d, f)
        self.down = nn.Linear(f, d)
        self.norm2 = LayerNorm(d, eps=EPSILON)

    def forward(self, x: Float[Tensor, "R T D"], seen: Bool[Tensor, "R 1 1 T"] | None = None) -> Float[Tensor, "R T D"]:
        r, t, d = x.shape
        q, k, v = self.qkv(x).view(r, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)  # each R H T C
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, dropout_p=self.dropping)
        change = self.out(mixed.transpose(1, 2).reshape(r, t, d))
        x = self.norm1(x + self.dropped(change))
        found: Tensor = self.norm2(x + self.dropped(self.part(self._mlp, x)))
        return found

    def _mlp(self, x: Float[Tensor, "R T D"]) -> Float[Tensor, "R T D"]:
        change: Tensor = self.down(gelu(self.up(x)))
        return change


def seen_keys(segments: Int[Tensor, "R T"]) -> Bool[Tensor, "R 1 1 T"]:
    """All keys except padding, which comes last; the first token is always seen: a row of padding stays finite."""
    first = torch.arange(segments.shape[1], device=segments.device) == 0
    return ((segments != 0) | first)[:, None, None]


def predicted_first(targets: Int[Tensor, " RT"], most: int | None) -> Int[Tensor, " N"]:
    """Positions of the predictions in order, then of others, up to `most` in whole tiles.

    Without `most`: only the predictions on a CPU, and all positions elsewhere, so that no device is waited for.
    """
    ignored = targets == IGNORED
    if most is None and targets.device.type == "cpu":
        return (~ignored).nonzero().squeeze(1)
    size = len(targets) if most is None else min(-(-most // TILE) * TILE, len(targets))
    if size == len(targets):
        return torch.arange(size, device=targets.device)
    return ignored.byte().argsort(stable=True)[:size]
