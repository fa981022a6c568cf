"""CUDA graphs: passes are recorded once and then replayed, so that the host launches one graph and not many kernels.

A recording is for one shape of rows. It holds its own copy of the rows, the loss, and the gradients of all parameters.
The first pass of a step writes the gradients, later ones add to them. The update of the weights from these gradients is
recorded too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

import torch
from torch import Tensor, nn

from shoestring.core.host import is_out_of_memory
from shoestring.models.batch import Batch
from shoestring.models.logits_model import first_line
from shoestring.models.recording import after_failure, record

Shape = tuple[torch.Size, torch.Size | None, int | None]


def shape_of(batch: Batch) -> Shape:
    """What a recording is for: the shapes of rows and targets, and the bound on the predictions."""
    return batch.ids.shape, None if batch.wanted is None else batch.wanted.shape, batch.most


Result = TypeVar("Result")
Apply = Callable[[Tensor], tuple[Tensor, ...]]
"""Updates the weights from their gradients and the sums of a step."""


class Recording:
    """Forward and backward pass over rows of one shape, and the update that follows."""

    def __init__(self, loss: Callable[[Batch], Tensor], parameters: list[nn.Parameter], like: Batch):
        self._loss, self._parameters = loss, parameters
        self.shape = shape_of(like)
        self._batch = like.copy()
        self._pool = torch.cuda.graph_pool_handle()
        self._passes = {True: self._record(like)}  # by whether it is the first of a step, which writes the gradients
        self._gradients = [p.grad for p in parameters]
        self._updates: dict[Hashable, tuple[Tensor, torch.cuda.CUDAGraph, tuple[Tensor, ...]] | None] = {}
        """By their kind; None after the first of a kind."""

    def _record(self, like: Batch) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        self._batch.put(like)

        def both() -> Tensor:
            loss = self._loss(self._batch)
            loss.backward()
            return loss.detach()

        return self._recorded(both)

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
        self._batch.put(batch)
        graph, loss = self._passes[first]
        graph.replay()
        return loss

    def update(self, sums: Tensor, apply: Apply, kind: Hashable) -> tuple[Tensor, ...] | None:
        """The result of `apply`, which the next call overwrites; None for the first call of a kind, which is not
        recorded: what is made once, such as tables of addresses, is then there."""
        if kind not in self._updates:
            self._updates[kind] = None
            return None
        recorded = self._updates[kind]
        if recorded is None:
            kept = sums.clone()
            recorded = self._updates[kind] = kept, *self._recorded(lambda: apply(kept))
        kept, graph, found = recorded
        kept.copy_(sums)
        graph.replay()
        return found

    def _recorded(self, run: Callable[[], Result]) -> tuple[torch.cuda.CUDAGraph, Result]:
        return record(run, self._pool)


class Recordings:
    """The recording of the most recent shape.

    A gradient is in progress from the first pass after an update until the next update. The passes that add to it
    replay the recording that began it, or none.
    """

    def __init__(self, loss: Callable[[Batch], Tensor], parameters: list[nn.Parameter], apply: Apply | None = None):
        """Without `apply`, updates are not recorded."""
        self._loss, self._parameters, self._apply = loss, parameters, apply
        self._shape: Shape | None = None
        self._recording: Recording | None = None
        self._current: Recording | None = None
        """The one that began the gradient in progress; None if a plain pass did."""
        self.failure: str | None = None
        """Why a pass could not be recorded. Nothing is recorded after it."""

    def of(self, parts: list[Batch], begin: bool) -> Recording | None:
        """The recording to replay over these parts, if there is one; `begin`: there is no gradient yet."""
        if begin:
            self._current = self._ready(parts)
            if self._current is not None:
                self._current.attach()
        if self._current is not None and all(shape_of(part) == self._current.shape for part in parts):
            return self._current
        return None

    def _ready(self, parts: list[Batch]) -> Recording | None:
        """The recording for these parts; None if they differ in shape or have segments, and for a new shape: its first
        pass compiles, which cannot be recorded. After a failure nothing is recorded any more."""
        shapes = {shape_of(part) for part in parts}
        if self.failure is not None or any(part.segments is not None for part in parts) or len(shapes) != 1:
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
                self.failure = first_line(cause.__context__ or cause)  # something waits for the device, or compiles
                for p in self._parameters:
                    p.grad = None
                after_failure()
        return self._recording

    def update(self, sums: Tensor, kind: Hashable = None) -> tuple[Tensor, ...] | None:
        """Replay the update from the gradient in progress; None if it is not recorded.

        Updates of different kinds do different things with the same gradients, and are recorded apart.
        """
        if self._current is None or self._apply is None:
            return None
        try:
            return self._current.update(sums, self._apply, kind)
        except RuntimeError:  # as for passes, or there is no memory for it
            self._apply = None
            after_failure()
            return None

    def drop(self) -> None:
        """Drop the recording and free its memory."""
        self._shape = self._current = None
        if self._recording is not None:
            self._recording = None
            torch.cuda.empty_cache()
