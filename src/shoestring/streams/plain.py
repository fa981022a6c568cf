"""The stream of a hidden Markov model in plain torch: what `loops` (CPU) and `kernels` (GPU) must equal, byte for byte.

Shapes: n rows, L positions, H states, E symbols.

Word 2t of a row draws its state at position t, from the state before (at first, from row H of `moves`), and word 2t + 1
draws the symbol.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from shoestring.streams.permutations import Lookup
from shoestring.streams.philox import MASK, Purpose, philox


class Tables(NamedTuple):
    """What tokens are drawn from: alias tables (see `tables`)."""

    moves: Tensor
    """(H + 1, H) int64; the last row is the start."""
    emits: Tensor
    """(H, E) int64."""

    @property
    def states(self) -> int:
        return self.emits.shape[0]

    @property
    def symbols(self) -> int:
        return self.emits.shape[1]


def make(first: int, count: int, length: int, key: int, tables: Tables, symbols: Lookup, states: Lookup) -> Tensor:
    """Rows number first to first + count, (count, L) int64."""
    rows = torch.arange(count, device=tables.emits.device) + first
    state = torch.full_like(rows, tables.states)
    tokens = []
    for t in range(length):
        move, emit = philox(key, rows, t // 2, Purpose.TOKENS)[t % 2 * 2 :][:2]
        state = draw(tables.moves, state, move)
        symbol = draw(tables.emits, states.relabel(key, rows, state), emit)
        tokens.append(symbols.relabel(key, rows, symbol))
    return torch.stack(tokens, dim=1)


def draw(entries: Tensor, rows: Tensor, word: Tensor) -> Tensor:
    """An outcome from row `rows[r]` of an alias table for every word."""
    scaled = word * entries.shape[1]
    cell = scaled >> 32
    entry = entries[rows, cell]
    return torch.where(scaled & MASK < entry >> 32 & MASK, cell, entry & 0xFFFF)
