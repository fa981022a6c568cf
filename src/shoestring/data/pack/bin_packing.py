"""Plans to pack documents into few rows: how many pieces of each size every row takes.

A plan knows how many pieces there are of each size, but not their documents, so its cost grows with the number of sizes
and hardly with the number of pieces. `packing` cuts documents into pieces and places each according to the plan.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from shoestring.data.pack.order import Index

ENOUGH = 0.001
"""`fewest_rows` stops searching once it needs at most this fraction more rows than the tokens would fill."""

SIZES_AT_A_TIME = (32, 24, 256)
"""How many sizes are tried together to fill a row: one plan for each number, as none is best for all lengths."""

MAX_CAPACITY_SEARCHED = 2**17
"""Longer rows are packed by best-fit decreasing only: a search for full rows takes 12 bytes per place of a row."""


class Fill(NamedTuple):
    """Rows `first` to `last` take `each` pieces of `size` tokens."""

    size: int
    first: int
    last: int
    each: int


Plan = Callable[[Index, int], list[Fill]]
"""From counts[size] pieces of each size (2 or more) and the capacity of a row to fills, those of large sizes first."""


def fewest_rows(counts: Index, capacity: int) -> list[Fill]:
    """Best-fit decreasing, or a plan of full rows that needs fewer rows."""
    best = best_fit_decreasing(counts, capacity)
    enough = int(-(-tokens_in(counts) // capacity) * (1 + ENOUGH))
    steps = 100_000_000 + 40 * int(counts[2:].sum())  # of about 4 ns
    for at_a_time in SIZES_AT_A_TIME:
        if _rows(best) <= enough or steps <= 0 or capacity > MAX_CAPACITY_SEARCHED:
            break
        fills, steps = full_rows(counts, capacity, at_a_time, steps)
        best = min(best, fills, key=_rows)
    return best


def _rows(fills: list[Fill]) -> int:
    return max((fill.last for fill in fills), default=0)


def tokens_in(counts: Index) -> int:
    """The tokens of all pieces."""
    return int(counts[2:] @ np.arange(2, len(counts)))


def best_fit_decreasing(counts: Index, capacity: int) -> list[Fill]:
    """Put every piece, longest first, into the row with the least sufficient room (the first of equals), or a new one.

    Pieces of one size fill a row until no more fits, and then the next row with as much room. So neighbouring rows with
    equal room are kept together as a span: a size divides at most one span, and moves the others whole. Every move
    takes more than half of a span's room, which gives O(capacity · log capacity) fills for any number of pieces.
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
    """Rows of the longest piece left and those that best fill the rest, as often as the pieces allow, and so on.

    The rest, once it fits into one row or the steps are used up, is packed by best-fit decreasing. Returns the fills
    and the number of steps left.
    """
    counts = np.concatenate([[0, 0], counts[2:]])
    left = tokens_in(counts)
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
    """Write the totals that a row with a piece of `longest` tokens can reach; how many, the largest, and steps spent.

    Size by size, pieces are added to all `totals` reached before. For each total, `size_of` holds the size that reached
    it first (0: not reached) and `each_of` the number of pieces of that size; the total without these pieces was
    reached before. The search ends at the first row that is full except for half of `ENOUGH`.

    One size of each stretch of neighbouring sizes is tried, large sizes first, and then another of each. Its place
    differs between stretches, because the totals of evenly spaced sizes coincide.
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
