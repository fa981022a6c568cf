"""What the loop, the probe and the evaluation know about a model."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from shoestring.models.cross_entropy import IGNORED, linear_cross_entropy, token_cross_entropy

Rows = Int[Tensor, "rows tokens"]
"""Token ids; a row of `length + 1` tokens makes up to `length` predictions."""


_DEVIATIONS = 5
"""Of the number of hidden tokens, how many there is room for above the mean: of batches whose tokens are hidden each on
its own, one in some millions has more."""


class Batch(NamedTuple):
    """Rows, and what of them is predicted. Its own slices are those of a tuple: rows are taken by `part`."""

    ids: Int[Tensor, "rows tokens"]
    segments: Int[Tensor, "rows tokens"] | None = None
    """Number of the document a token belongs to, 1 on in each row, 0 for padding; None: one stream, nothing is padded.

    The tokens of a document lie side by side. Padding holds any id of the vocabulary, and comes last in its row."""
    within: bool = False
    """Whether attention, positions and predictions stay within documents."""
    wanted: Int[Tensor, "rows predictions"] | None = None
    """What is to be predicted, `IGNORED` where nothing is: hidden tokens, or the class of a row in a single column.

    None: at every token the next one is predicted."""
    last: int | None = None
    """Only so many of a row's last predictions are made; None: all."""
    most: int | None = None
    """No more predictions than this are made in all, known on the host; None: not counted."""
    share: float | None = None
    """Of all positions, the share that is hidden by chance and predicted; None where it is not chance that says so."""

    @classmethod
    def of(cls, rows: Batch | Tensor | NDArray[np.integer]) -> Batch:
        """A batch as it is; rows alone are one stream."""
        return rows if isinstance(rows, Batch) else cls(torch.as_tensor(rows))

    def to(self, device: torch.device) -> Batch:
        """On a device; on a GPU this returns while the copy is still under way, from memory that cannot be swapped."""
        if device.type != "cuda":
            return self._each(lambda x: x.to(device))
        bound = None if self.wanted is None or self.wanted.is_cuda else self.bound()
        moved = self._each(lambda x: (x if x.is_cuda else x.pin_memory()).to(device, non_blocking=True))
        return moved._replace(most=bound)

    def part(self, first: int, last: int) -> Batch:
        """Rows `first` to `last`, the latter not included."""
        return self._each(lambda x: x[first:last])

    def take(self, numbers: Int[Tensor, " n"]) -> Batch:
        """Rows by number."""
        return self._each(lambda x: x[numbers.to(x.device)])

    def split(self, rows: int) -> list[Batch]:
        """Parts of so many rows; the last one may have fewer, and there is always one, as with a tensor."""
        return [self.part(first, first + rows) for first in range(0, max(1, len(self.ids)), rows)]

    def inputs(self) -> Batch:
        """What predictions are made from: every row without its last token, or all of it where targets are given."""
        if self.wanted is not None:
            return self._replace(wanted=None)
        return self._each(lambda x: x[:, :-1])

    def targets(self) -> Int[Tensor, "rows predictions"]:
        """What each prediction should be, `IGNORED` where none is made."""
        if self.wanted is not None:
            return self.wanted
        after = self.ids[:, 1:]
        whole = self.segments is None and self.last is None
        return after if whole else after.masked_fill(~self.predicted(), IGNORED)

    def predicted(self) -> Bool[Tensor, "rows predictions"]:
        """Whether each prediction is made; padding is not predicted, nor `within` a document's first token."""
        if self.wanted is not None:
            return self.wanted != IGNORED
        if self.segments is None:
            found = torch.ones_like(self.ids[:, 1:], dtype=torch.bool)
        else:
            before, after = self.segments[:, :-1], self.segments[:, 1:]
            found = (after != 0) & (after == before) if self.within else after != 0
        if self.last is not None:
            found[:, : -self.last] = False
        return found

    def predictions(self) -> int:
        """How many; segments and targets on a device are waited for."""
        if self.wanted is None and self.segments is None:
            length = self.ids.shape[1] - 1
            return len(self.ids) * (length if self.last is None else min(self.last, length))
        return int(self.predicted().sum())

    def bound(self) -> int:
        """A number of predictions that is not passed, and alike for all batches of a shape where chance hides tokens:
        tensors that differ in size from step to step leave holes in a device's memory."""
        counted = self.predictions()
        if self.wanted is None or self.share is None:
            return counted
        positions = self.wanted.numel()
        usual, deviation = positions * self.share, math.sqrt(positions * self.share * (1 - self.share))
        return max(counted, min(positions, math.ceil(usual + _DEVIATIONS * deviation)))

    def _each(self, apply: Callable[[Tensor], Tensor]) -> Batch:
        segments, wanted = (None if x is None else apply(x) for x in (self.segments, self.wanted))
        return self._replace(ids=apply(self.ids), segments=segments, wanted=wanted)


class Loss(NamedTuple):
    """A loss is a sum and a count until it is divided once, over everything that belongs to a step."""

    nats: Float[Tensor, ""]
    """Summed, with the gradient."""
    predictions: int


class Output(NamedTuple):
    """The product that turns what the network made of a position into a logit for every id."""

    weight: Float[Tensor, "vocabulary width"]
    bias: Float[Tensor, " vocabulary"] | None = None


_PARTS = {
    "embedding": ("embedding", "positions", "types"),
    "attention": ("qkv", "out"),
    "mlp": ("up", "gate_up", "down"),
    "norm": ("norm", "norm1", "norm2", "prefix_norm", "embedding_norm", "transform_norm"),
    "head": ("head", "transform", "pooler", "classifier"),
}
"""The modules of our families by group."""


class LanguageModel(nn.Module, ABC):
    """Base of every family.

    The output product is kept apart from the rest, so that losses can be made without all logits in memory at once.
    """

    blocks: nn.ModuleList
    """The layers, one after another: what is compiled, recomputed and sharded one by one."""

    @abstractmethod
    def hidden(self, inputs: Batch) -> Float[Tensor, "rows positions width"]:
        """What the output product reads: of every position, or of the last ones, or of one a row."""

    @abstractmethod
    def output(self) -> Output:
        """The output product."""

    def loss(self, batch: Batch | Rows) -> Loss:
        """Of all predictions, with its gradient; `predictions` waits for a device that holds segments or targets."""
        return Loss(self(batch), Batch.of(batch).predictions())

    def forward(self, batch: Batch | Rows) -> Float[Tensor, ""]:
        """The summed loss in nats, with its gradient."""
        hidden, targets = self._hidden_and_targets(Batch.of(batch))
        return linear_cross_entropy(hidden.flatten(0, 1), *self.output(), targets.flatten())

    @torch.no_grad()
    def token_losses(self, batch: Batch | Rows) -> Float[Tensor, "rows predictions"]:
        """The loss of every prediction, in nats and float32; 0 where there is none."""
        batch = Batch.of(batch)
        hidden, targets = self._hidden_and_targets(batch)
        losses = token_cross_entropy(hidden.flatten(0, 1), *self.output(), targets.flatten()).view(targets.shape)
        return F.pad(losses, (batch.targets().shape[1] - targets.shape[1], 0))

    def logits(self, inputs: Batch | Rows) -> Float[Tensor, "rows positions vocabulary"]:
        """Of what comes after each position that `hidden` gives."""
        weight, bias = self.output()
        return F.linear(self.hidden(Batch.of(inputs)), weight, bias)

    def _hidden_and_targets(self, batch: Batch) -> tuple[Tensor, Tensor]:
        hidden = self.hidden(batch.inputs())
        return hidden, batch.targets()[:, -hidden.shape[1] :]

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Every parameter in exactly one group, such as "embedding" or "attention": by the name of its module."""
        groups: dict[str, list[nn.Parameter]] = {group: [] for group in _PARTS}
        group_of = {part: group for group, parts in _PARTS.items() for part in parts}
        for name, parameter in self.named_parameters():  # a tied head is the embedding, and is named once
            groups[group_of[name.split(".")[-2]]].append(parameter)
        return groups

    def decayed(self) -> list[nn.Parameter]:
        """Parameters that weight decay applies to: matrices, but no embedding."""
        groups = self.parameter_groups()
        return [p for name, group in groups.items() if name != "embedding" for p in group if p.ndim >= 2]
