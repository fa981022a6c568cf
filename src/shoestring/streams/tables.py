"""Distributions as integers: weights of 2⁻³², and alias tables that draw from them with one word and one comparison.

Shapes: R rows, K cells of a row, H states, E symbols.

A word w picks cell j = w·K div 2³², and its place in the cell is w·K mod 2³². A cell belongs to two outcomes: j below
its threshold, and its alias from there on. The table is made with whole numbers of words, so outcome k is drawn for
exactly `weights[k]` of the 2³² words.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoestring.core.errors import DataError

UNIT = 1 << 32
TOLERANCE = 1e-6
"""How far the sum of a row may differ from 1."""
MOST = 1 << 16
"""Cells of a row, at most: an alias has 16 bits."""

Weights = NDArray[np.int64]
Entries = NDArray[np.int64]
"""(R, K): threshold in the upper 32 bits, alias in the lower 16."""


def quantise(name: str, probabilities: NDArray[np.float64]) -> Weights:
    """Whole weights that sum to 2³², each within 2⁻³² of its probability, and zero where that is zero.

    Every row must sum to 1 within 10⁻⁶. It is divided by its exactly rounded sum, so that the weights are the same on
    every machine. Units that remain after rounding down go to the largest remainders, lower cells first.
    """
    table = np.atleast_2d(np.asarray(probabilities, dtype=np.float64))
    if not 1 <= table.shape[1] <= MOST:
        raise DataError(f"{name}: {table.shape[1]:,} outcomes; a stream draws from at most {MOST:,}")
    wrong = ~((table >= 0) & (table <= 1 + TOLERANCE))  # NaN is neither
    if wrong.any():
        row, cell = np.argwhere(wrong)[0]
        raise DataError(f"{name}[{row}, {cell}] = {table[row, cell]} is not a probability")
    sums = np.array([math.fsum(row) for row in table.tolist()])
    off = np.flatnonzero(np.abs(sums - 1) > TOLERANCE)
    if len(off):
        raise DataError(f"{name}[{off[0]}] sums to {sums[off[0]]:.9g}, not to 1; divide it by its sum")
    scaled = table / sums[:, None] * UNIT
    weights: Weights = np.floor(scaled).astype(np.int64)
    order = np.argsort(weights - scaled, axis=1, kind="stable")  # largest remainder first
    for row, left in enumerate((UNIT - weights.sum(axis=1)).tolist()):
        weights[row, order[row, :left]] += 1
    return weights


def alias_tables(weights: Weights) -> Entries:
    """The alias table of every row of weights."""
    from shoestring.streams.loops import fill_tables  # imports Numba

    made: Entries = fill_tables(np.ascontiguousarray(weights))
    return made


class Tables(NamedTuple):
    """The alias tables of a hidden Markov model."""

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


class Compact(NamedTuple):
    """An alias table with four bytes per entry, so that twice as many fit into the small caches of a GPU.

    A head holds the alias in its lowest `bits` bits, and the upper bits of the threshold above them. If a word equals
    the threshold in these upper bits, which is rare, the threshold's lowest bits in `tails` decide.
    """

    heads: Tensor
    """(R, K) int32."""
    tails: Tensor
    """(R, K) uint16."""
    bits: int

    @classmethod
    def of(cls, entries: Tensor) -> Compact:
        bits = max(1, (entries.shape[1] - 1).bit_length())
        low = (1 << bits) - 1
        threshold = entries >> 32 & 0xFFFFFFFF
        return cls((threshold & ~low | entries & 0xFFFF).to(torch.int32), (threshold & low).to(torch.uint16), bits)
