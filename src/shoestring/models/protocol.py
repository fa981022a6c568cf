"""What the loop, the probe and the evaluation know about a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

Rows = Int[Tensor, "rows tokens"]
"""Token ids; a row of `length + 1` tokens makes up to `length` predictions."""

IGNORED = -100
"""The target where nothing is predicted; torch's cross entropy leaves it out."""


class Batch(NamedTuple):
    """Rows, and the documents that they hold. Its own slices are those of a tuple: rows are taken by `part`."""

    ids: Int[Tensor, "rows tokens"]
    segments: Int[Tensor, "rows tokens"] | None = None
    """Number of the document a token belongs to, 1 on in each row, 0 for padding; None: one stream, nothing is padded.

    The tokens of a document lie side by side. Padding holds any id of the vocabulary, and comes last in its row."""
    within: bool = False
    """Whether attention, positions and predictions stay within documents."""

    @classmethod
    def of(cls, rows: Batch | Tensor | NDArray[np.integer]) -> Batch:
        """A batch as it is; rows alone are one stream."""
        return rows if isinstance(rows, Batch) else cls(torch.as_tensor(rows))

    def to(self, device: torch.device) -> Batch:
        return self._each(lambda x: x.to(device, non_blocking=device.type == "cuda"))

    def part(self, first: int, last: int) -> Batch:
        """Rows `first` to `last`, the latter not included."""
        return self._each(lambda x: x[first:last])

    def split(self, rows: int) -> list[Batch]:
        """Parts of so many rows; the last one may have fewer, and there is always one, as with a tensor."""
        return [self.part(first, first + rows) for first in range(0, max(1, len(self.ids)), rows)]

    def inputs(self) -> Batch:
        """What the predictions are made from: every row without its last token."""
        return self._each(lambda x: x[:, :-1])

    def targets(self) -> Int[Tensor, "rows predictions"]:
        """The token after each of the inputs, `IGNORED` where it is not predicted."""
        after = self.ids[:, 1:]
        return after if self.segments is None else after.masked_fill(~self.predicted(), IGNORED)

    def predicted(self) -> Bool[Tensor, "rows predictions"]:
        """Whether the token after each of the inputs is predicted; padding is not, nor `within` a document's first."""
        if self.segments is None:
            return torch.ones_like(self.ids[:, 1:], dtype=torch.bool)
        before, after = self.segments[:, :-1], self.segments[:, 1:]
        return (after != 0) & (after == before) if self.within else after != 0

    def predictions(self) -> int:
        """How many; segments on a device are waited for."""
        return self.ids[:, 1:].numel() if self.segments is None else int(self.predicted().sum())

    def _each(self, apply: Callable[[Tensor], Tensor]) -> Batch:
        return Batch(apply(self.ids), None if self.segments is None else apply(self.segments), self.within)


class Loss(NamedTuple):
    """A loss is a sum and a count until it is divided once, over everything that belongs to a step."""

    nats: Float[Tensor, ""]
    """Summed, with the gradient."""
    predictions: int


class LanguageModel(nn.Module, ABC):
    """Base of every family."""

    @abstractmethod
    def token_losses(self, batch: Batch | Rows) -> Float[Tensor, "rows predictions"]:
        """The loss of every prediction, in nats; 0 where there is none."""

    @abstractmethod
    def logits(self, batch: Batch | Rows) -> Float[Tensor, "rows tokens vocabulary"]:
        """Of the token after each position."""

    def loss(self, batch: Batch | Rows) -> Loss:
        return Loss(self.token_losses(batch).sum(), Batch.of(batch).predictions())

    @abstractmethod
    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Every parameter in exactly one group, such as "embedding" or "attention"."""

    def decayed(self) -> list[nn.Parameter]:
        """Parameters that weight decay applies to: matrices, but no embedding."""
        groups = self.parameter_groups()
        return [p for name, group in groups.items() if name != "embedding" for p in group if p.ndim >= 2]
