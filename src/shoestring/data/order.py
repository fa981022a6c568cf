"""The order of rows, as a pure function: no list of indices in memory, and resuming is one integer.

Position p of a run (row p counted over all steps) lies in epoch p // n at place p % n; a keyed permutation of [0, n),
another one each epoch, says which row stands there. So the rows of global step s are a function of (seed, n, s, batch)
alone, and ranks and micro-batches only cut that list: the same rows come for any number of devices.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shoestring.core.seeds import derive

Index = NDArray[np.int64]

_ROUNDS = 6


def permute(places: Index, n: int, key: int) -> Index:
    """Where a permutation of [0, n), chosen by `key`, sends each of `places`.

    A Feistel network on the smallest even number of bits that holds n; a value that falls outside walks on until it
    falls inside (fewer than four rounds on average), which keeps it a bijection of [0, n).
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
    """The finalizer of splitmix64, in place: every input bit reaches every output bit; `spare` is room to work in."""
    spare = np.empty_like(x) if spare is None else spare
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x ^= np.right_shift(x, np.uint64(shift), out=spare)
        x *= np.uint64(factor)
    x ^= np.right_shift(x, np.uint64(31), out=spare)
    return x


def step_rows(seed: int, n: int, step: int, batch: int) -> Index:
    """The row numbers of a global step, in order; `n` is how many rows the source has."""
    positions = np.arange(step * batch, (step + 1) * batch, dtype=np.int64)
    epochs, places = np.divmod(positions, n)
    rows = np.empty(batch, dtype=np.int64)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        rows[here] = permute(places[here], n, derive(seed, "order", int(epoch)))
    return rows


def rank_rows(rows: Index, rank: int, world: int) -> Index:
    """The part of a step's rows that one of `world` ranks takes: equal, disjoint, and all of them together."""
    if len(rows) % world:
        raise ValueError(f"{len(rows)} rows do not divide over {world} ranks")
    share = len(rows) // world
    return rows[rank * share : (rank + 1) * share]
