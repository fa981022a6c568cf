"""The order of rows, as a pure function: no list of indices in memory, and resuming needs one integer.

Position p of a run (row p counted over all steps) is place p % n of epoch p // n. A keyed permutation of [0, n),
another one in each epoch, says which row that is. So the rows of global step s are a function of (seed, n, s, batch)
alone. Ranks and micro-batches only cut that list: the rows are the same for any number of devices.

A run may get more rows at some position. From there on it reads what it has not read yet, old rows and new ones mixed,
and then everything in further epochs. So its rows are a function of (seed, pools, s, batch).
"""

from __future__ import annotations

from collections.abc import Sequence
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

    def share(self, rank: int, world: int, even: bool = True) -> RowIndex:
        """The share of one of `world` ranks: equal, disjoint shares that make up the whole; equal up to one row, where
        they need not be `even`."""
        count = len(self.rows)
        if even and count % world:
            raise ValueError(f"{count} rows do not divide over {world} ranks")
        part = slice(count * rank // world, count * (rank + 1) // world)
        return RowIndex(self.epochs[part], self.rows[part])


class Pool(NamedTuple):
    """The rows that a run has from a position on, until the next pool: [0, rows)."""

    position: int
    rows: int


def step_rows(seed: int, n: int | Sequence[Pool], step: int, batch: int) -> RowIndex:
    """The rows of a global step, in order; `n` is how many rows the source has, or how many it had from where on."""
    positions = np.arange(step * batch, (step + 1) * batch, dtype=np.int64)
    if isinstance(n, int) or len(n) == 1:
        return _in_epochs(seed, n if isinstance(n, int) else n[0].rows, positions)
    phases = _phases(n)
    which = np.searchsorted([phase.position for phase in phases], positions, side="right") - 1
    return _joined([_in_phase(seed, phases[: k + 1], positions[which == k]) for k in np.unique(which)])


def _in_epochs(seed: int, n: int, positions: Index, first: int = 0) -> RowIndex:
    """The rows at positions in epochs over n rows, which are numbered from `first` on."""
    epochs, places = np.divmod(positions, n)
    epochs += first
    rows = np.empty_like(positions)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        rows[here] = permute(places[here], n, derive(seed, "order", int(epoch)))
    return RowIndex(epochs, rows)


def _joined(parts: Sequence[RowIndex]) -> RowIndex:
    return RowIndex(*(np.concatenate(part) for part in zip(*parts, strict=True)))


class _Phase(NamedTuple):
    """The part of a run that reads one pool: a first pass over what was not read yet, then epochs over all rows."""

    position: int
    rows: int
    before: int
    """Rows of the pool before it."""
    begun: int
    """Where the first pass before was left."""
    rest: int
    """What it had left, which this first pass reads too."""
    epoch: int
    """The number of the first pass."""

    @property
    def first(self) -> int:
        """Rows of the first pass."""
        return self.rest + self.rows - self.before


def _phases(pools: Sequence[Pool]) -> list[_Phase]:
    phases = [_Phase(0, pools[0].rows, before=0, begun=0, rest=0, epoch=0)]
    for position, rows in pools[1:]:
        last = phases[-1]
        read = position - last.position
        rest = max(0, last.first - read)
        epoch = last.epoch if rest else last.epoch + 1 + (read - last.first) // last.rows
        phases.append(_Phase(position, rows, before=last.rows, begun=read, rest=rest, epoch=epoch))
    return phases


def _in_phase(seed: int, phases: Sequence[_Phase], positions: Index) -> RowIndex:
    """The rows at positions in the last one of `phases`, in order."""
    phase = phases[-1]
    places = positions - phase.position
    cut = np.searchsorted(places, phase.first)
    first = RowIndex(np.full(cut, phase.epoch), _first_pass(seed, phases, places[:cut]))
    return _joined([first, _in_epochs(seed, phase.rows, places[cut:] - phase.first, phase.epoch + 1)])


def _first_pass(seed: int, phases: Sequence[_Phase], places: Index) -> Index:
    """The rows at these places of the first pass of the last phase."""
    *before, phase = phases
    names = ("pool", len(before)) if before else (phase.epoch,)
    drawn = permute(places, phase.first, derive(seed, "order", *names))
    rows, old = drawn - phase.rest + phase.before, drawn < phase.rest
    if old.any():
        rows[old] = _first_pass(seed, before, drawn[old] + phase.begun)
    return rows


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
