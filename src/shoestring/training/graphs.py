"""CUDA graphs: passes are recorded once and then replayed, so that the host launches one graph and not many kernels.

A recording is for one shape of rows. It holds its own copy of the ids, the loss, and the gradients of all parameters.
The first pass of a step writes the gradients, later ones add to them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from shoestring.core.host import is_out_of_memory
from shoestring.models.batch import Batch


class Recording:
    """Forward and backward pass over rows of one shape."""

    def __init__(self, loss: Callable[[Batch], Tensor], parameters: list[nn.Parameter], like: Batch):
        self._loss, self._parameters = loss, parameters
        self.shape = like.ids.shape
        self._ids = torch.empty_like(like.ids)
        self._batch = like._replace(ids=self._ids)
        self._pool = torch.cuda.graph_pool_handle()
        self._passes = {True: self._record(like)}  # by whether it is the first of a step, which writes the gradients
        self._gradients = [p.grad for p in parameters]

    def _record(self, like: Batch) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        self._ids.copy_(like.ids)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                loss = self._loss(self._batch)
                loss.backward()
                found = loss.detach()
        except RuntimeError as cause:  # ending a recording after OutOfMemory raises an error that hides it
            if cause.__context__ is not None and is_out_of_memory(cause.__context__):
                raise cause.__context__ from None
            raise
        return graph, found

    def attach(self) -> None:
        """Give the parameters the gradients of the recording."""
        for p, gradient in zip(self._parameters, self._gradients, strict=True):
            p.grad = gradient

    def rehearse(self, batch: Batch) -> None:
        """Record also the pass that adds."""
        if False not in self._passes:
            self._passes[False] = self._record(batch)

    def replay(self, batch: Batch, first: bool) -> Tensor:
        """The loss of these rows; their gradients are written if they are the first, else added."""
        if not first:
            self.rehearse(batch)
        self._ids.copy_(batch.ids, non_blocking=True)
        graph, loss = self._passes[first]
        graph.replay()
        return loss


class Recordings:
    """The recording of the most recent shape.

    A gradient is in progress from the first pass after an update until the next update. The passes that add to it
    replay the recording that began it, or none.
    """

    def __init__(self, loss: Callable[[Batch], Tensor], parameters: list[nn.Parameter]):
        self._loss, self._parameters = loss, parameters
        self._shape: torch.Size | None = None
        self._recording: Recording | None = None
        self._current: Recording | None = None
        """The one that began the gradient in progress; None if a plain pass did."""
        self._failed = False

    def of(self, parts: list[Batch], begin: bool) -> Recording | None:
        """The recording to replay over these parts, if there is one; `begin`: there is no gradient yet."""
        if begin:
            self._current = self._ready(parts)
            if self._current is not None:
                self._current.attach()
        if self._current is not None and all(part.ids.shape == self._current.shape for part in parts):
            return self._current
        return None

    def _ready(self, parts: list[Batch]) -> Recording | None:
        """The recording for these parts; None if they differ in shape or have segments or targets, and for a new shape:
        its first pass compiles, which cannot be recorded. After a failure nothing is recorded any more."""
        plain = all(part.segments is None and part.wanted is None for part in parts)
        shapes = {part.ids.shape for part in parts}
        if self._failed or not plain or len(shapes) != 1:
            return None
        (shape,) = shapes
        if shape != self._shape:
            self.drop()
            self._shape = shape
            return None
        if self._recording is None:
            for p in self._parameters:
                p.grad = None
            try:
                self._recording = Recording(self._loss, self._parameters, parts[0])
            except RuntimeError as cause:
                if is_out_of_memory(cause):
                    raise
                self._failed = True  # something in the model waits for the device or allocates
                for p in self._parameters:
                    p.grad = None
                torch.cuda.synchronize()
        return self._recording

    def drop(self) -> None:
        """Drop the recording and free its memory."""
        self._shape = self._current = None
        if self._recording is not None:
            self._recording = None
            torch.cuda.empty_cache()
