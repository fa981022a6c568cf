"""Weights in memory that several processes of one machine share, with a place for the gradients of each worker.

The first process alone changes the weights, under a lock; a worker copies them under the same lock, so that it never
sees half an update. The system releases the lock of a process that ends.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

_ALIGNED = 64
UNREAD = -1
"""The version of a worker that has not read the weights for its present work."""


class SharedWeights:
    """The weights by name, the gradients of each worker, how often the weights changed, and what each worker read."""

    def __init__(self, like: Mapping[str, Tensor], workers: int, file: int | None = None, keep_read: bool = False):
        """Tensors shaped `like` these, in the memory of an open file; without one, in new memory. The weights that each
        worker has read are there too if `keep_read`."""
        self._like, sizes = like, [_aligned(each.numel() * each.element_size()) for each in like.values()]
        self._size, self._head = sum(sizes), _aligned(8 * (1 + workers))
        whole = self._head + (1 + (2 if keep_read else 1) * workers) * self._size
        self.file = os.memfd_create("weights") if file is None else file
        if file is None:
            os.ftruncate(self.file, whole)
        self._memory = mmap.mmap(self.file, whole)
        numbers = np.frombuffer(self._memory, dtype=np.int64, count=1 + workers)
        self._version, self.read = numbers[:1], numbers[1:]
        """By worker: the version of the weights that its gradient is of."""
        self.weights = self._tensors(sizes, 0)
        self.gradients = [self._tensors(sizes, 1 + worker) for worker in range(workers)]
        kept = range(workers if keep_read else 0)
        self.weights_read = [self._tensors(sizes, 1 + workers + worker) for worker in kept]
        """By worker: the weights that its gradient is of; none are kept otherwise."""

    def _tensors(self, sizes: Sequence[int], place: int) -> dict[str, Tensor]:
        found, offset = {}, self._head + place * self._size
        for (name, like), size in zip(self._like.items(), sizes, strict=True):
            flat = torch.frombuffer(self._memory, dtype=like.dtype, count=like.numel(), offset=offset)
            found[name], offset = flat.view(like.shape), offset + size
        return found

    @property
    def version(self) -> int:
        """How often the weights changed."""
        return int(self._version[0])

    @contextmanager
    def changing(self) -> Iterator[None]:
        """No other process reads the weights while this one changes them."""
        with self._locked(fcntl.LOCK_EX):
            yield
            self._version[0] += 1

    @torch.no_grad()
    def copy_to(self, weights: Mapping[str, Tensor], worker: int) -> None:
        """Give a worker the weights as they are, and note their version as what it has read."""
        with self._locked(fcntl.LOCK_SH):
            self.read[worker] = self.version
            for name, tensor in weights.items():
                tensor.copy_(self.weights[name])
        if self.weights_read:
            for name, tensor in weights.items():
                self.weights_read[worker][name].copy_(tensor)

    @contextmanager
    def _locked(self, kind: int) -> Iterator[None]:
        fcntl.lockf(self.file, kind)
        try:
            yield
        finally:
            fcntl.lockf(self.file, fcntl.LOCK_UN)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
