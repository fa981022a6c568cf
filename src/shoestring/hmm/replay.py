"""E-steps over few rows, recorded once and then replayed: to start their hundred kernels one by one takes a host about
as long as a GPU takes to run them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shoestring.hmm.fused import Counted, count_rows
from shoestring.hmm.parameters import Parameters

MOST_BYTES = 2**30
"""Of the state tables of a recording, which are kept: of more rows the kernels take longer than the host does."""
KEPT = 2
"""Recordings: the updates of an epoch differ by one row, and rows are filled up."""

_Kind = tuple[torch.Size, int, int]


class Recorder:
    """`count_rows`, with the same bits."""

    def __init__(self) -> None:
        self._recordings: dict[_Kind, _Recording | None] = {}
        """By shape, states and symbols; None for what cannot be recorded."""

    def __call__(self, parameters: Parameters, tokens: Tensor, lengths: Tensor, weights: Tensor) -> Counted:
        if tokens.numel() * parameters.states * 8 > MOST_BYTES:
            return count_rows(parameters, tokens, lengths, weights)
        kind = tokens.shape, parameters.states, parameters.symbols
        recording = self._recordings.get(kind)
        if recording is not None:
            return recording.replay(parameters, tokens, lengths, weights)
        found = count_rows(parameters, tokens, lengths, weights)
        if kind not in self._recordings:  # the kernels are compiled now, which cannot be recorded
            if len(self._recordings) >= KEPT:
                del self._recordings[next(iter(self._recordings))]
            try:
                self._recordings[kind] = _Recording(parameters, tokens, lengths, weights)
            except RuntimeError:  # of memory, too: what was just counted fitted
                self._recordings[kind] = None
        return found


class _Recording:
    """Of rows of one shape under parameters of one size; what a replay gives is good until the next."""

    def __init__(self, parameters: Parameters, *rows: Tensor):
        self._taken = [part.clone() for part in (*parameters[:3], *rows)]
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._found = count_rows(Parameters(*self._taken[:3]), *self._taken[3:])

    def replay(self, parameters: Parameters, *rows: Tensor) -> Counted:
        for kept, part in zip(self._taken, (*parameters[:3], *rows), strict=True):
            kept.copy_(part, non_blocking=True)
        self._graph.replay()
        return self._found
