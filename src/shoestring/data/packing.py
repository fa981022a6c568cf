"""From documents to rows, as pure functions of the documents' lengths.

The documents of a store lie one after another in one stream of tokens: document k takes the places from
sum(lengths[:k]) to sum(lengths[:k+1]). A row holds `capacity` = length + 1 tokens, one more than it predicts, in one or
more pieces of the stream:

    concat      the stream cut into windows; documents are not looked at, nothing is padded
    best_fit    documents kept whole where they fit, several to a row; little padding where a row holds several
    pad         one document a row, the rest of the row is padding

`best_fit` and `pad` cut a document that is longer than a row into pieces of `capacity` tokens, each of which begins
with the last token of the one before, so every token but a document's first is predicted once. A document of a single
token predicts nothing: it is in no row, and counts as cropped.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from shoestring.core.errors import DataError
from shoestring.data.order import Index

Lengths = NDArray[np.integer]
"""(documents,) tokens in each document, the end token with them."""

MAX_CAPACITY = 2**31 - 1
"""Sizes of pieces are int32."""

ENOUGH = 0.001
"""`best_fit` looks no further once it needs at most this part more rows than the tokens would fill."""

SIZES_AT_A_TIME = (32, 24, 256)
"""How many sizes are tried together to fill a row up: a plan for each number, as none is best for all lengths."""

MAX_CAPACITY_SEARCHED = 2**17
"""Longer rows are packed best-fit decreasing only; a search for full rows takes 12 bytes for each place of a row."""


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """Where the tokens went: tokens == used + cropped, and rows · capacity == used + repeated + padded."""

    tokens: int
    used: int
    """Tokens in at least one row."""
    cropped: int
    """Tokens in no row."""
    padded: int
    """Places of rows that hold no token."""
    repeated: int
    """Places of rows whose token has another place already."""


class Packing(NamedTuple):
    """Rows as pieces of the stream; the pieces of a row are in the order of the stream."""

    row_starts: Index
    """(rows + 1,): row r has the pieces row_starts[r] to row_starts[r + 1]."""
    piece_at: Index
    """(pieces,): where in the stream each piece begins."""
    piece_size: NDArray[np.int32]
    """(pieces,): tokens in each piece."""
    ledger: Ledger

    @property
    def rows(self) -> int:
        return len(self.row_starts) - 1


def concat(lengths: Lengths, capacity: int) -> Packing:
    """Windows of `capacity` tokens, each beginning with the last token of the one before; one piece a row.

    What is left at the end, too short for a row, is cropped. These are the rows of `StoreRows`.
    """
    tokens = int(_checked(lengths, capacity).sum())
    stride = capacity - 1
    rows = max(0, (tokens - 1) // stride)
    used = rows * stride + 1 if rows else 0
    ledger = Ledger(tokens=tokens, used=used, cropped=tokens - used, padded=0, repeated=max(0, rows - 1))
    at = np.arange(rows, dtype=np.int64) * stride
    return Packing(np.arange(rows + 1, dtype=np.int64), at, np.full(rows, capacity, dtype=np.int32), ledger)


def pad(lengths: Lengths, capacity: int) -> Packing:
    """One document a row, in their order; a document longer than a row takes several rows."""
    lengths = _checked(lengths, capacity)
    counts = _count_pieces(lengths, capacity)
    rows = int(counts[2:].sum())
    at, size = np.empty(rows, dtype=np.int64), np.empty(rows, dtype=np.int32)
    _cut(lengths, capacity, at, size)
    return Packing(np.arange(rows + 1, dtype=np.int64), at, size, _ledger(lengths, counts, rows * capacity))


def best_fit(lengths: Lengths, capacity: int) -> Packing:
    """Documents kept whole where they fit, in no more rows than best-fit decreasing needs.

    Best-fit decreasing (Ding et al. 2024, "Fewer Truncations Improve Language Modeling") fills rows well where there
    are short documents. Where it pads more than `ENOUGH`, other plans are made that look for full rows, the longest
    documents first, and the plan of the fewest rows is kept. What no plan avoids is padding where the lengths do not
    add up to a row, above all where a row holds one document or two. The rows are those of best-fit decreasing where
    nothing needs fewer.

    The first rows hold the longest documents, and want a shuffled order. Linear in the documents; the search takes at
    most about half a second and 0.2 s per million documents, by a count of its steps and not by a clock, so the same
    lengths have the same rows. Beyond the result, memory grows with the rows and the capacity only (and a copy of
    `lengths` is made where they are not int64).
    """
    return pack(lengths, capacity, _fewest_rows)


def document_pieces(packing: Packing, lengths: Lengths) -> Packing:
    """The same rows with their pieces cut at the ends of documents, for masks that keep documents apart."""
    lengths = _checked(lengths)
    if lengths.sum() != packing.ledger.tokens:
        raise DataError(
            f"{len(lengths):,} documents of {lengths.sum():,} tokens are not those of this packing, "
            f"which has {packing.ledger.tokens:,} tokens"
        )
    ends = np.cumsum(lengths[lengths > 0])
    stops = packing.piece_at + packing.piece_size
    document = np.searchsorted(ends, packing.piece_at, side="right")  # in which each piece begins
    parts = np.searchsorted(ends, stops, side="left") - document + 1
    starts = np.concatenate([[0], np.cumsum(parts)])
    at, size = np.empty(starts[-1], dtype=np.int64), np.empty(starts[-1], dtype=np.int32)
    _split(packing.piece_at, stops, document, ends, at, size)
    return Packing(starts[packing.row_starts], at, size, packing.ledger)


class Fill(NamedTuple):
    """Rows `first` to `last` take `each` pieces of `size` tokens."""

    size: int
    first: int
    last: int
    each: int


Plan = Callable[[Index, int], list[Fill]]
"""From counts[size] pieces of each size (2 or more) and the capacity of a row to fills, those of large sizes first."""


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


def _fewest_rows(counts: Index, capacity: int) -> list[Fill]:
    """Best-fit decreasing, or the plan of full rows that needs fewer."""
    best = best_fit_decreasing(counts, capacity)
    enough = int(-(-_tokens(counts) // capacity) * (1 + ENOUGH))
    steps = 100_000_000 + 40 * int(counts[2:].sum())  # of about 4 ns
    for at_a_time in SIZES_AT_A_TIME:
        if _rows(best) <= enough or steps <= 0 or capacity > MAX_CAPACITY_SEARCHED:
            break
        fills, steps = full_rows(counts, capacity, at_a_time, steps)
        best = min(best, fills, key=_rows)
    return best


def _rows(fills: list[Fill]) -> int:
    return max((fill.last for fill in fills), default=0)


def _tokens(counts: Index) -> int:
    return int(counts[2:] @ np.arange(2, len(counts)))


def best_fit_decreasing(counts: Index, capacity: int) -> list[Fill]:
    """Every piece, longest first, to the row with the least room that holds it, of equal rows the lowest, or a new one.

    Pieces of one size fill a row until no more fits, and then the next row with as much room. So neighbouring rows with
    equal room are kept together as a span: a size divides one span at most, and moves the others whole. Every move
    takes more than half of a span's room, which makes O(capacity · log capacity) fills, however many pieces there are.
    """
    fills: list[Fill] = []
    spans: dict[int, list[tuple[int, int]]] = {}  # by room: a heap of (first, last)
    rooms: list[int] = []  # the keys of `spans`, ascending
    rows = 0

    def put(room: int, first: int, last: int) -> None:
        if first < last:
            if room not in spans:
                spans[room] = []
                insort(rooms, room)
            heapq.heappush(spans[room], (first, last))

    def fill(size: int, room: int, first: int, last: int, each: int) -> int:
        if first < last:
            fills.append(Fill(size, first, last, each))
            put(room - each * size, first, last)
        return (last - first) * each

    for size in (np.flatnonzero(counts[2:])[::-1] + 2).tolist():
        left = int(counts[size])
        while left:
            place = bisect_left(rooms, size)
            if place < len(rooms):
                room = rooms[place]
                first, last = heapq.heappop(spans[room])
                if not spans[room]:
                    del spans[room], rooms[place]
            else:
                room, first = capacity, rows
                rows = last = first - -left // (capacity // size)
            each = room // size
            full = min(last, first + left // each)
            left -= fill(size, room, first, full, each)
            if left and full < last:
                left -= fill(size, room, full, full + 1, left)
                full += 1
            put(room, full, last)
    return fills


def full_rows(counts: Index, capacity: int, at_a_time: int, steps: int) -> tuple[list[Fill], int]:
    """A row of the longest piece left and those that best fill it up, as often as the pieces allow, and so on.

    What is left when it fits into one row, or when the steps are spent, is packed best-fit decreasing. With the fills
    goes the number of steps left.
    """
    counts = np.concatenate([[0, 0], counts[2:]])
    left = _tokens(counts)
    size_of, each_of, totals = np.zeros((3, capacity + 1), dtype=np.int32)
    fills: list[Fill] = []
    rows, longest = 0, len(counts) - 1
    while left > capacity and steps > 0:
        while not counts[longest]:
            longest -= 1
        reached, largest, spent = _fill_up(counts, longest, capacity, at_a_time, steps, size_of, each_of, totals)
        row: dict[int, int] = {}
        total = largest
        while total:
            size, each = int(size_of[total]), int(each_of[total])
            row[size] = row.get(size, 0) + each
            total -= size * each
        size_of[totals[:reached]] = 0
        last = rows + min(int(counts[size]) // each for size, each in row.items())
        for size, each in row.items():
            fills.append(Fill(size, rows, last, each))
            counts[size] -= (last - rows) * each
        left -= (last - rows) * largest
        steps -= spent
        rows = last
    rest = best_fit_decreasing(counts, capacity)
    fills += [Fill(size, rows + first, rows + last, each) for size, first, last, each in rest]
    return sorted(fills, key=lambda fill: -fill.size), steps


@njit(cache=True, nogil=True)
def _fill_up(
    counts: Index,
    longest: int,
    capacity: int,
    at_a_time: int,
    steps: int,
    size_of: NDArray[np.int32],
    each_of: NDArray[np.int32],
    totals: NDArray[np.int32],
) -> tuple[int, int, int]:
    """Write which totals a row with a piece of `longest` tokens reaches; how many, the largest, and the steps spent.

    Size after size, pieces are added to all `totals` reached by the sizes before. Each total has the size that reached
    it first, `size_of` (0: not reached), and how many pieces of it, `each_of`; without them it is a total reached
    before. The search ends at the first row that is full but for half of `ENOUGH`.

    One size of each stretch of neighbouring sizes is tried, the large ones first, and then another of each. Its place
    differs from stretch to stretch, as the totals of evenly spaced sizes fall together.
    """
    full = capacity - int(ENOUGH / 2 * capacity)
    size_of[longest], each_of[longest], totals[0] = longest, 1, longest
    reached, largest = 1, longest
    sizes = np.flatnonzero(counts[: min(longest, capacity - longest) + 1])[::-1]
    stretch = -(-len(sizes) // at_a_time)
    spent = 5_000 + (capacity - longest) // 4
    for turn in range(stretch):
        for number in range(at_a_time):
            place = number * stretch + (turn + number * number) % stretch
            if place >= len(sizes):
                continue
            if largest >= full or spent > steps:
                return reached, largest, spent
            size = sizes[place]
            most = counts[size] - 1 if size == longest else counts[size]
            spent += reached
            for before in range(reached):
                total = totals[before]
                for each in range(1, most + 1):
                    total += size
                    if total > capacity or size_of[total]:
                        break
                    size_of[total], each_of[total], totals[reached] = size, each, total
                    reached += 1
                    spent += 1
                    largest = max(largest, total)
    return reached, largest, spent


@njit(cache=True, nogil=True)
def _count_pieces(lengths: Index, capacity: int) -> Index:
    """How many pieces of each size the documents are cut into; sizes 0 and 1 count the documents that give none."""
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
    """Write the pieces of all documents where the fills of their size say.

    `fill_of` holds the first fill of each size and `slots` the first place of each row; they and `fills` are used up.
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


@njit(cache=True, nogil=True)
def _split(
    begins: Index, stops: Index, documents: Index, ends: Index, piece_at: Index, piece_size: NDArray[np.int32]
) -> None:
    """Write the parts of pieces that begin in `documents` and are cut at the `ends` of documents."""
    part = 0
    for begin, stop, document in zip(begins, stops, documents):
        while begin < stop:
            end = min(stop, ends[document])
            piece_at[part] = begin
            piece_size[part] = end - begin
            begin = end
            document += 1
            part += 1


def _ledger(lengths: Index, counts: Index, places: int) -> Ledger:
    """The ledger of documents cut into `counts` pieces, laid into `places` places."""
    tokens, cropped, placed = int(lengths.sum()), int(counts[1]), _tokens(counts)
    return Ledger(
        tokens=tokens,
        used=tokens - cropped,
        cropped=cropped,
        padded=places - placed,
        repeated=placed - (tokens - cropped),
    )


def _checked(lengths: Lengths, capacity: int = 2) -> Index:
    if not 2 <= capacity <= MAX_CAPACITY:
        raise DataError(f"a row of {capacity:,} tokens cannot be packed; it must hold 2 to {MAX_CAPACITY:,}")
    if lengths.ndim != 1 or not np.issubdtype(lengths.dtype, np.integer):
        raise DataError(f"lengths of documents must be one row of integers, not {lengths.dtype} of {lengths.shape}")
    checked = np.ascontiguousarray(lengths, dtype=np.int64)
    if checked.min(initial=0) < 0:
        worst = int(checked.argmin())
        raise DataError(f"document {worst:,} has {checked[worst]:,} tokens; a length cannot be negative")
    return checked
