"""Passes that are recorded once and then replayed: the host starts one thing where there were thousands.

A recording is of one shape of rows. It holds its own copy of the ids, the loss, and the gradients of all parameters;
of the passes of a step the first one writes the gradients, and those after it add to them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from shoestring.models import Batch


class Recording:
    """Forward and backward pass over rows of one shape."""

    def __init__(self, loss: Callable[[Batch], Tensor], parameters: list[nn.Parameter], like: Batch):
        self._loss, self._parameters = loss, parameters
        self.shape = like.ids.shape
        self._ids = torch.empty_like(like.ids)
        self._batch = like._replace(ids=self._ids)
        self._pool = torch.cuda.graph_pool_handle()
        self._writing, self._written = self._record(like)
        self._gradients = [p.grad for p in parameters]
        self._adding: torch.cuda.CUDAGraph | None = None
        self._added = self._written

    def _record(self, like: Batch) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        self._ids.copy_(like.ids)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                loss = self._loss(self._batch)
                loss.backward()
                found = loss.detach()
        except RuntimeError as cause:  # to end a recording that ran out of memory is another error, which hides it
            if isinstance(cause.__context__, torch.OutOfMemoryError):
                raise cause.__context__ from None
            raise
        return graph, found

    def attach(self) -> None:
        """Let the parameters have the gradients that a replay makes."""
        for p, gradient in zip(self._parameters, self._gradients, strict=True):
            p.grad = gradient

    def rehearse(self, batch: Batch) -> None:
        """Record the pass that adds, too."""
        if self._adding is None:
            self._adding, self._added = self._record(batch)

    def replay(self, batch: Batch, first: bool) -> Tensor:
        """The loss of these rows; their gradients are written, or added where they are not the first."""
        if not first:
            self.rehearse(batch)
        self._ids.copy_(batch.ids, non_blocking=True)
        graph = self._writing if first else self._adding
        assert graph is not None
        graph.replay()
        return self._written if first else self._added


class Recordings:
    """The recording of the shape that comes again and again; another shape takes its place.

    A gradient is under way from the first pass after an update until the next update; the passes that add to it replay
    the recording that began it, or none.
    """

    def __init__(self, loss: Callable[[Batch], Tensor], parameters: list[nn.Parameter]):
        self._loss, self._parameters = loss, parameters
        self._shape: torch.Size | None = None
        self._recording: Recording | None = None
        self._current: Recording | None = None
        """The one that began the gradient that is under way; None where a plain pass did."""
        self._failed = False

    def of(self, parts: list[Batch], begin: bool) -> Recording | None:
        """The recording to replay over these parts, if there is one; `begin` where there is no gradient yet."""
        if begin:
            self._current = self._ready(parts)
            if self._current is not None:
                self._current.attach()
        if self._current is not None and all(part.ids.shape == self._current.shape for part in parts):
            return self._current
        return None

    def _ready(self, parts: list[Batch]) -> Recording | None:
        """For the passes over these parts; None for rows of several kinds, and for a shape that is new.

        The first pass over a shape compiles, which cannot be recorded. What cannot be recorded at all is not tried
        again.
        """
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
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:  # something in the model waits for the device, or allocates in its own way
                self._failed = True
                for p in self._parameters:
                    p.grad = None
                torch.cuda.synchronize()
        return self._recording

    def drop(self) -> None:
        """Give its memory back."""
        self._shape = self._current = None
        if self._recording is not None:
            self._recording = None
            torch.cuda.empty_cache()
