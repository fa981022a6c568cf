"""Rows of tokens, and their predictions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy.typing import NDArray
from torch import Tensor

from shoestring.models.layers.cross_entropy import IGNORED

_DEVIATIONS = 5
"""Room for hidden tokens above their mean number, in standard deviations: one batch in some millions has more."""


class Batch(NamedTuple):
    """Rows and their predictions. Slices are those of a tuple: `part` gives rows."""

    ids: Int[Tensor, "rows tokens"]
    segments: Int[Tensor, "rows tokens"] | None = None
    """The number of each token's document, from 1 in each row, and 0 for padding; None: one stream without padding.

    The tokens of a document are contiguous. Padding has any id of the vocabulary, and comes last in its row."""
    document_mask: bool = False
    """Whether attention, positions and predictions stay within documents."""
    wanted: Int[Tensor, "rows predictions"] | None = None
    """The targets, `IGNORED` where nothing is predicted: hidden tokens, the class of a row in a single column, or the
    next tokens that are not of a prompt.

    None: the next token is predicted at every token."""
    last: int | None = None
    """Number of last predictions per row that are made; None: all."""
    most: int | None = None
    """Upper bound on the number of predictions, known on the host; None: not counted."""
    share: float | None = None
    """The share of positions that are hidden at random and predicted, or may be predicted at most; None: counted."""
    context: int = 0
    """Tokens by which rows of a text overlap: the first row predicts them, in the others `wanted` leaves them out."""

    @classmethod
    def of(cls, rows: Batch | Tensor | NDArray[np.integer]) -> Batch:
        """A batch itself, or rows as one stream."""
        return rows if isinstance(rows, Batch) else cls(torch.as_tensor(rows))

    def to(self, device: torch.device) -> Batch:
        """A copy on a device; for a GPU it is started from pinned memory, and not waited for."""
        if device.type != "cuda":
            return self._each(lambda x: x.to(device))
        bound = None if self.wanted is None or self.wanted.is_cuda else self.bound()
        moved = self._each(lambda x: (x if x.is_cuda else _pinned(x)).to(device, non_blocking=True))
        return moved._replace(most=bound)

    def copy(self) -> Batch:
        """The same in tensors of its own, on the same device."""
        return self._each(torch.clone)

    def put(self, other: Batch) -> None:
        """Write rows and targets of another batch, of the same shape, into these tensors; does not wait for it."""
        self.ids.copy_(other.ids, non_blocking=True)
        if self.wanted is not None and other.wanted is not None:
            self.wanted.copy_(other.wanted, non_blocking=True)

    def equals(self, other: Batch) -> bool:
        """Whether it has the same rows and predictions, in tensors on one device."""
        return self is other or all(
            torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else type(a) is type(b) and a == b
            for a, b in zip(self, other, strict=True)
        )

    def part(self, first: int, last: int) -> Batch:
        """Rows from `first` to before `last`."""
        return self._each(lambda x: x[first:last])

    def take(self, numbers: Int[Tensor, " n"]) -> Batch:
        """Rows by number."""
        return self._each(lambda x: x[numbers.to(x.device)])

    def split(self, rows: int) -> list[Batch]:
        """Parts of `rows` rows, at least one; the last may have fewer."""
        return [self.part(first, first + rows) for first in range(0, max(1, len(self.ids)), rows)]

    def inputs(self) -> Batch:
        """The inputs of predictions: every row without its last token, or all of it if targets are given."""
        if self.wanted is not None:
            return self._replace(wanted=None)
        return self._each(lambda x: x[:, :-1])

    def targets(self) -> Int[Tensor, "rows predictions"]:
        """The target of each prediction, `IGNORED` where none is made."""
        if self.wanted is not None:
            return self.wanted
        after = self.ids[:, 1:]
        whole = self.segments is None and self.last is None
        return after if whole else after.masked_fill(~self.predicted(), IGNORED)

    def predicted(self) -> Bool[Tensor, "rows predictions"]:
        """Whether each prediction is made: not of padding, nor with `document_mask` of the first token there."""
        if self.wanted is not None:
            return self.wanted != IGNORED
        if self.segments is None:
            made = torch.ones_like(self.ids[:, 1:], dtype=torch.bool)
        else:
            before, after = self.segments[:, :-1], self.segments[:, 1:]
            made = (after != 0) & (after == before) if self.document_mask else after != 0
        if self.last is not None:
            made[:, : -self.last] = False
        return made

    def predictions(self) -> int:
        """The number of predictions; waits for segments and targets on a device."""
        if self.wanted is None and self.segments is None:
            length = self.ids.shape[1] - 1
            return len(self.ids) * (length if self.last is None else min(self.last, length))
        return int(self.predicted().sum())

    def bound(self) -> int:
        """An upper bound on the number of predictions, equal for all batches of a shape if their share is known:
        tensors whose size changes from step to step fragment the memory of a device."""
        counted = self.predictions()
        if self.wanted is None or self.share is None:
            return counted
        positions = self.wanted.numel()
        mean, deviation = positions * self.share, math.sqrt(positions * self.share * (1 - self.share))
        return max(counted, min(positions, math.ceil(mean + _DEVIATIONS * deviation)))

    def _each(self, apply: Callable[[Tensor], Tensor]) -> Batch:
        segments, wanted = (None if x is None else apply(x) for x in (self.segments, self.wanted))
        return self._replace(ids=apply(self.ids), segments=segments, wanted=wanted)


def _pinned(x: Tensor) -> Tensor:
    """A copy in pinned memory, by one thread: `Tensor.pin_memory` takes one per core, and they wait for each other by
    milliseconds where others use the cores, as processes that compile do."""
    found = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
    np.copyto(found.numpy(), x.numpy())
    return found
