"""From documents to rows, as pure functions of the documents' lengths.

The documents of a store lie one after another in one stream of tokens: document k takes the places from
sum(lengths[:k]) to sum(lengths[:k+1]). A row holds `capacity` = length + 1 tokens, one more than it predicts, in one or
more pieces of the stream:

    concat      the stream cut into windows, wherever documents end; no padding
    best_fit    documents kept whole where they fit, several per row; little padding if a row holds several
    pad         one document per row, the rest of the row is padding

`best_fit` and `pad` cut a document that is longer than a row into pieces of `capacity` tokens. Each piece starts with
the last token of the piece before, so every token except a document's first is predicted once. A document of a single
token predicts nothing: it is in no row, and counts as cropped.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from shoestring.core.errors import DataError
from shoestring.data.pack.bin_packing import Fill, Plan, fewest_rows, tokens_in
from shoestring.data.pack.order import Index
from shoestring.data.pack.pieces import Ledger, Packing

Lengths = NDArray[np.integer]
"""(documents,) tokens in each document, including the end token."""

MAX_CAPACITY = 2**31 - 1
"""Sizes of pieces are int32."""


def pad(lengths: Lengths, capacity: int) -> Packing:
    """One document per row, in order; a document longer than a row takes several rows."""
    lengths = _checked(lengths, capacity)
    counts = _count_pieces(lengths, capacity)
    rows = int(counts[2:].sum())
    at, size = np.empty(rows, dtype=np.int64), np.empty(rows, dtype=np.int32)
    _cut(lengths, capacity, at, size)
    return Packing(np.arange(rows + 1, dtype=np.int64), at, size, _ledger(lengths, counts, rows * capacity))


def best_fit(lengths: Lengths, capacity: int) -> Packing:
    """Documents kept whole where they fit, in no more rows than best-fit decreasing needs.

    Best-fit decreasing (Ding et al. 2024, "Fewer Truncations Improve Language Modeling") fills rows well if there are
    short documents. If it pads more than `bin_packing.ENOUGH`, other plans search for full rows, the longest documents
    first, and the plan with the fewest rows is used; best-fit decreasing if none has fewer. No plan can avoid padding
    if the lengths do not add up to a row, above all if a row holds one or two documents.

    The first rows hold the longest documents, so rows must be read in shuffled order. Time is linear in the documents.
    The search takes at most about half a second and 0.2 s per million documents; it is limited by a number of steps and
    not by a clock, so the same lengths always give the same rows. Beyond the result, memory grows with the rows and the
    capacity only (and `lengths` is copied if it is not int64).
    """
    return pack(lengths, capacity, fewest_rows)


def pack(lengths: Lengths, capacity: int, plan: Plan) -> Packing:
    """The rows that a plan makes of documents; the pieces of one size go to its fills in the order of the stream."""
    lengths = _checked(lengths, capacity)
    counts = _count_pieces(lengths, capacity)
    fills = np.array(plan(counts, capacity), dtype=np.int64).reshape(-1, len(Fill._fields))
    size, first, last, each = fills.T
    rows = int(last.max(initial=0))
    more = np.zeros(rows + 2, dtype=np.int64)  # pieces of row r - 1 beyond those of the row before it
    np.add.at(more, first + 1, each)
    np.subtract.at(more, last + 1, each)
    row_starts = np.cumsum(np.cumsum(more[: rows + 1]))
    pieces = int(row_starts[-1])
    at, sizes = np.empty(pieces, dtype=np.int64), np.empty(pieces, dtype=np.int32)
    first_fill = np.searchsorted(-size, -np.arange(len(counts)))  # of each size
    _place(lengths, capacity, first_fill, fills, row_starts[:-1].copy(), at, sizes)
    return Packing(row_starts, at, sizes, _ledger(lengths, counts, rows * capacity))


@njit(cache=True, nogil=True)
def _count_pieces(lengths: Index, capacity: int) -> Index:
    """How many pieces of each size the documents are cut into; sizes 0 and 1 count documents without a piece."""
    longest = 1
    for length in lengths:
        longest = max(longest, length)
    counts = np.zeros(min(longest, capacity) + 1, dtype=np.int64)
    for length in lengths:
        if length > capacity:
            whole = (length - 2) // (capacity - 1)
            counts[capacity] += whole
            length -= whole * (capacity - 1)
        counts[length] += 1
    return counts


@njit(cache=True, nogil=True)
def _cut(lengths: Index, capacity: int, piece_at: Index, piece_size: NDArray[np.int32]) -> None:
    """Write the pieces of all documents, in the order of the stream."""
    piece = end = 0
    for length in lengths:
        end += length
        while length > 1:
            piece_at[piece] = end - length
            piece_size[piece] = min(length, capacity)
            piece += 1
            length -= capacity - 1


@njit(cache=True, nogil=True)
def _place(
    lengths: Index,
    capacity: int,
    fill_of: Index,
    fills: Index,
    slots: Index,
    piece_at: Index,
    piece_size: NDArray[np.int32],
) -> None:
    """Write the pieces of all documents to the rows that the fills of their size name.

    `fill_of` holds the first fill of each size and `slots` the first place of each row; both and `fills` are modified.
    """
    each = fills[:, 3].copy()
    end = 0
    for length in lengths:
        end += length
        while length > 1:
            size = min(length, capacity)
            fill = fill_of[size]
            row = fills[fill, 1]
            slot = slots[row]
            slots[row] += 1
            piece_at[slot] = end - length
            piece_size[slot] = size
            each[fill] -= 1
            if each[fill] == 0:
                each[fill] = fills[fill, 3]
                fills[fill, 1] += 1
                if fills[fill, 1] == fills[fill, 2]:
                    fill_of[size] += 1
            length -= capacity - 1


def _ledger(lengths: Index, counts: Index, places: int) -> Ledger:
    """The ledger of documents cut into `counts` pieces, in rows of `places` places in all."""
    tokens, cropped, placed = int(lengths.sum()), int(counts[1]), tokens_in(counts)
    return Ledger(
        tokens=tokens,
        used=tokens - cropped,
        cropped=cropped,
        padded=places - placed,
        repeated=placed - (tokens - cropped),
    )


def _checked(lengths: Lengths, capacity: int) -> Index:
    if not 2 <= capacity <= MAX_CAPACITY:
        raise DataError(f"a row of {capacity:,} tokens cannot be packed; it must hold 2 to {MAX_CAPACITY:,}")
    if lengths.ndim != 1 or not np.issubdtype(lengths.dtype, np.integer):
        raise DataError(f"lengths of documents must be one row of integers, not {lengths.dtype} of {lengths.shape}")
    checked = np.ascontiguousarray(lengths, dtype=np.int64)
    if checked.min(initial=0) < 0:
        worst = int(checked.argmin())
        raise DataError(f"document {worst:,} has {checked[worst]:,} tokens; a length cannot be negative")
    return checked
