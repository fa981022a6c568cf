"""The order of rows, as a pure function: no list of indices in memory, and resuming needs one integer.

Position p of a run (row p counted over all steps) is place p % n of epoch p // n. A keyed permutation of [0, n),
another one in each epoch, says which row that is. So the rows of global step s are a function of (seed, n, s, batch)
alone. Ranks and micro-batches only cut that list: the rows are the same for any number of devices.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoestring.core.seeds import derive

Index = NDArray[np.int64]

_ROUNDS = 6


def permute(places: Index, n: int, key: int) -> Index:
    """Where a permutation of [0, n), chosen by `key`, sends each of `places`.

    A Feistel network on the smallest even number of bits that holds n. It is applied again to values outside [0, n)
    until they fall inside (fewer than four times on average), which keeps it a bijection of [0, n).
    """
    if n < 2:
        return np.zeros_like(places)
    half = np.uint64(max(1, ((n - 1).bit_length() + 1) // 2))
    mask = (np.uint64(1) << half) - np.uint64(1)
    keys = [np.uint64(derive(key, "round", r)) for r in range(_ROUNDS)]
    values = _feistel(places.astype(np.uint64), half, mask, keys)
    outside = np.flatnonzero(values >= np.uint64(n))
    while len(outside):
        values[outside] = moved = _feistel(values[outside], half, mask, keys)
        outside = outside[moved >= np.uint64(n)]
    return values.astype(np.int64)


def _feistel(values: NDArray[np.uint64], half: np.uint64, mask: np.uint64, keys: list[np.uint64]) -> NDArray[np.uint64]:
    left, right = values >> half, values & mask
    spare = np.empty_like(values)
    for key in keys:
        mixed = mix(right + key, spare)
        mixed &= mask
        left ^= mixed
        left, right = right, left
    return (left << half) | right


def mix(x: NDArray[np.uint64], spare: NDArray[np.uint64] | None = None) -> NDArray[np.uint64]:
    """The finalizer of splitmix64, in place: every input bit affects every output bit; `spare` is scratch space."""
    spare = np.empty_like(x) if spare is None else spare
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x ^= np.right_shift(x, np.uint64(shift), out=spare)
        x *= np.uint64(factor)
    x ^= np.right_shift(x, np.uint64(31), out=spare)
    return x


class RowIndex(NamedTuple):
    """Rows by number, each in an epoch: what a row holds may depend on both."""

    epochs: Index
    rows: Index

    @classmethod
    def first(cls, rows: Index) -> RowIndex:
        """Rows as they are in the first epoch."""
        return cls(np.zeros_like(rows), rows)

    def share(self, rank: int, world: int) -> RowIndex:
        """The share of one of `world` ranks: equal, disjoint shares that make up the whole."""
        size, odd = divmod(len(self.rows), world)
        if odd:
            raise ValueError(f"{len(self.rows)} rows do not divide over {world} ranks")
        part = slice(rank * size, (rank + 1) * size)
        return RowIndex(self.epochs[part], self.rows[part])


def step_rows(seed: int, n: int, step: int, batch: int) -> RowIndex:
    """The rows of a global step, in order; `n` is how many rows the source has."""
    positions = np.arange(step * batch, (step + 1) * batch, dtype=np.int64)
    epochs, places = np.divmod(positions, n)
    rows = np.empty(batch, dtype=np.int64)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        rows[here] = permute(places[here], n, derive(seed, "order", int(epoch)))
    return RowIndex(epochs, rows)


def drawn_rows(wanted: int, n: int) -> Index:
    """`wanted` of the rows [0, n), in order; all if there are no more.

    They are drawn over all of them, and depend on the two numbers alone. So every run with these rows draws the same.
    """
    if wanted >= n:
        return np.arange(n, dtype=np.int64)
    return np.sort(permute(np.arange(wanted, dtype=np.int64), n, derive(0, "drawn rows", n)))


def epoch_offset(tokens: int, length: int, seed: int, epoch: int) -> int:
    """The offset in [0, length) at which an epoch starts to cut the stream of tokens into rows.

    It moves all rows of the epoch together, so that no token is predicted twice within an epoch. A stream of fewer than
    two rows is shifted less, so that one row always remains.
    """
    return derive(seed, "shift", epoch) % min(length, tokens - length)
