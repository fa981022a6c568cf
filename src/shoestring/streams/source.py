"""A stream as a token source: rows in order, each read once; training and held-out rows from separate ranges."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

TRAIN, HELDOUT, TEST = 0, 1 << 62, 3 << 61
"""First row of each split; no split ever reaches the next."""
_AHEAD_BYTES = 1 << 23


class RowStream(Protocol):
    """Anything that computes rows by number."""

    length: int

    def rows(self, first: int, count: int, device: torch.device | str = "cpu") -> Tensor: ...


def on_host(rows: Tensor) -> NDArray[np.unsignedinteger]:
    """Rows in host memory; from a GPU through pinned memory, which is reused once it is free."""
    if rows.is_cuda:
        rows = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True).copy_(rows)
    tokens: NDArray[np.unsignedinteger] = rows.contiguous().numpy()
    return tokens


class StreamRows:
    """Rows from number `first` on, made on `device`, some megabytes of them ahead."""

    def __init__(self, stream: RowStream, first: int, device: torch.device):
        self._stream, self._first, self._device = stream, first, device
        self._ahead = max(1, _AHEAD_BYTES // stream.length)
        self._begin, self._block = 0, torch.empty((0, stream.length), dtype=torch.uint8, device=device)

    def order(self, seed: int, step: int, batch: int) -> NDArray[np.int64]:
        """The rows of a step, in order: they are independent of each other, so shuffling would change nothing."""
        return np.arange(step * batch, (step + 1) * batch, dtype=np.int64)

    def rows(self, indices: NDArray[np.int64]) -> Tensor:
        """Rows by number, (n, L) int64 on the stream's device."""
        runs = np.split(indices, np.flatnonzero(np.diff(indices) != 1) + 1)
        if len(runs) == 1:
            return self._next(int(indices[0]), len(indices)) if len(indices) else self._block[:0].long()
        parts = [self._stream.rows(self._first + int(run[0]), len(run), self._device).long() for run in runs]
        return torch.cat(parts)

    def _next(self, first: int, count: int) -> Tensor:
        """Consecutive rows, as training reads them, from a block that is computed ahead."""
        if not self._begin <= first <= first + count <= self._begin + len(self._block):
            many = max(count, min(self._ahead, 2 * len(self._block)))  # so that a short run computes few in vain
            self._begin, self._block = first, self._stream.rows(self._first + first, many, self._device)
        return self._block[first - self._begin :][:count].long()
