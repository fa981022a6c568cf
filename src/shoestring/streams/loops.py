"""`hmm.plain_rows` and `tables.alias_tables` as loops for CPU cores, compiled by Numba.

Rows are made one by one, with no memory but the state.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from shoestring.streams.permutations import KINDS, LATER, SCATTER, SPREAD, Lookup, Rounds
from shoestring.streams.philox import KEY_A, KEY_B, MASK, ROUND_A, ROUND_B, Purpose
from shoestring.streams.tables import UNIT, Tables

_U32, _ALIAS, _TOKENS = np.uint64(MASK), np.uint64(0xFFFF), int(Purpose.TOKENS)
_A, _B, _KEY_A, _KEY_B = np.uint64(ROUND_A), np.uint64(ROUND_B), np.uint64(KEY_A), np.uint64(KEY_B)
_SPREAD, _SCATTER, _LATER = np.uint64(SPREAD), np.uint64(SCATTER), np.uint64(LATER)
_HALF, _SIXTEEN, _ONE, _NONE = np.uint64(32), np.uint64(16), np.uint64(1), np.uint64(0)


@njit(inline="always")
def _philox(k0: Any, k1: Any, c0: Any, c1: Any, c2: Any, c3: Any) -> Any:  # pragma: no cover
    for _ in range(10):
        low, high = c0 * _A, c2 * _B
        c0, c1, c2, c3 = (high >> _HALF) ^ c1 ^ k0, high & _U32, (low >> _HALF) ^ c3 ^ k1, low & _U32
        k0, k1 = (k0 + _KEY_A) & _U32, (k1 + _KEY_B) & _U32
    return c0, c1, c2, c3


@njit(inline="always")
def _draw(entries: Any, row: Any, cells: Any, word: Any) -> Any:  # pragma: no cover
    scaled = word * cells
    entry = entries[row * cells + (scaled >> _HALF)]
    return (scaled >> _HALF) if (scaled & _U32) < (entry >> _HALF) else entry & _ALIAS


@njit(inline="always")
def _which(kind: int, number: Any, each: Any, lowest: Any, k0: Any, k1: Any, pick: Any) -> Any:  # pragma: no cover
    """The place of a row's shuffle in the table; see `permutations.numbers`."""
    if kind == 1:
        return number // each - lowest
    word = _philox(k0, k1, number & _U32, number >> _HALF, _NONE, pick)[0]
    return (word * each) >> _HALF


@njit(inline="always")
def _turn(value: Any, word: Any, length: Any, at: Any) -> Any:  # pragma: no cover
    mixed = (value * _SPREAD + word) & _U32
    turned = at + ((((mixed ^ (mixed >> _SIXTEEN)) * _SCATTER & _U32) * length) >> _HALF)
    return turned - length if turned >= length else turned


@njit(inline="always")
def _own(value: Any, shape: Any, w: Any) -> Any:  # pragma: no cover
    """See `permutations.Rounds`, of this shape; `w` has the row's words, and rounds are in twos."""
    width, lines, rest = shape[0], shape[1], shape[2]
    line, place = value // width, value % width
    for two in range(int(shape[3]) // 2):
        later = np.uint64(two >> 1) * _LATER
        even, odd = (w[2], w[3]) if two & 1 else (w[0], w[1])
        place = _turn(line, even + later, rest if line == lines - _ONE else width, place)
        line = _turn(place, odd + later, lines if place < rest else lines - _ONE, line)
    return line * width + place


@njit(inline="always")
def _kept(value: Any, own: Any, seen: Any, row: Any, shape: Any, w: Any) -> Any:  # pragma: no cover
    """As `_own`, computed once per row: `seen` has the last row that needed each value."""
    if seen[value] != row:
        seen[value] = row
        own[value] = _own(value, shape, w)
    return own[value]


@njit(cache=True, nogil=True, boundscheck=False)
def _fill(
    out: Any, first: int, key: int, h: int, e: int,
    moves: Any, emits: Any,
    sy_kind: int, sy_each: int, sy_lowest: int, sy_word: int, sy_shape: Any, sy_table: Any,
    st_kind: int, st_each: int, st_lowest: int, st_word: int, st_shape: Any, st_table: Any,
) -> None:  # fmt: skip  # pragma: no cover
    rows, length = out.shape
    k0, k1 = np.uint64(key) & _U32, np.uint64(key) >> _HALF
    states, symbols = np.uint64(h), np.uint64(e)
    sy_at = st_at = _NONE
    sy_own, sy_seen = np.zeros(e if sy_kind == 3 else 0, np.uint64), np.zeros(e if sy_kind == 3 else 0, np.int64)
    st_own, st_seen = np.zeros(h if st_kind == 3 else 0, np.uint64), np.zeros(h if st_kind == 3 else 0, np.int64)
    sy_w, st_w = (_NONE, _NONE, _NONE, _NONE), (_NONE, _NONE, _NONE, _NONE)
    for r in range(rows):
        number = np.uint64(first + r)
        c0, c1 = number & _U32, number >> _HALF
        if sy_kind == 3:
            sy_w = _philox(k0, k1, c0, c1, _NONE, np.uint64(sy_word))
        elif sy_kind:
            sy_at = _which(sy_kind, number, np.uint64(sy_each), np.uint64(sy_lowest), k0, k1, np.uint64(sy_word))
        if st_kind == 3:
            st_w = _philox(k0, k1, c0, c1, _NONE, np.uint64(st_word))
        elif st_kind:
            st_at = _which(st_kind, number, np.uint64(st_each), np.uint64(st_lowest), k0, k1, np.uint64(st_word))
        state = states
        w2 = w3 = _NONE
        for t in range(length):
            if t & 1 == 0:
                w0, w1, w2, w3 = _philox(k0, k1, c0, c1, np.uint64(t >> 1), np.uint64(_TOKENS))
            else:
                w0, w1 = w2, w3
            state = _draw(moves, state, states, w0)
            emitting = state
            if st_kind == 3:
                emitting = _kept(state, st_own, st_seen, r + 1, st_shape, st_w)
            elif st_kind:
                emitting = np.uint64(st_table[st_at, state])
            symbol = _draw(emits, emitting, symbols, w1)
            if sy_kind == 3:
                symbol = _kept(symbol, sy_own, sy_seen, r + 1, sy_shape, sy_w)
            elif sy_kind:
                symbol = np.uint64(sy_table[sy_at, symbol])
            out[r, t] = symbol


@njit(cache=True, nogil=True, boundscheck=False)
def _shuffle(made: Any, first: int, key: int, purpose: int) -> None:  # pragma: no cover
    count, size = made.shape
    k0, k1 = np.uint64(key) & _U32, np.uint64(key) >> _HALF
    for n in range(count):
        number = np.uint64(first + n)
        c0, c1 = number & _U32, number >> _HALF
        for k in range(size):
            made[n, k] = k
        w0 = w1 = w2 = w3 = _NONE
        for step in range(size - 1):
            if step & 3 == 0:
                w0, w1, w2, w3 = _philox(k0, k1, c0, c1, np.uint64(step >> 2), np.uint64(purpose))
            else:
                w0, w1, w2 = w1, w2, w3
            last = size - 1 - step
            other = (w0 * np.uint64(last + 1)) >> _HALF
            made[n, last], made[n, other] = made[n, other], made[n, last]


def make(first: int, count: int, length: int, key: int, tables: Tables, symbols: Lookup, states: Lookup) -> Tensor:
    """As `hmm.plain_rows`, on as many cores as torch uses, in the smallest type."""
    out = np.empty((count, length), np.uint8 if tables.symbols <= 256 else np.uint16)
    cells = [table.numpy().reshape(-1).view(np.uint64) for table in tables]
    given = [*cells, *_given(symbols, out.dtype), *_given(states, out.dtype)]

    def part(begin: int, end: int) -> None:
        _fill(out[begin:end], first + begin, key, tables.states, tables.symbols, *given)

    _on_cores(part, count, 1024)
    return torch.from_numpy(out)


def shuffles(key: int, first: int, count: int, size: int, purpose: Purpose, device: torch.device) -> Tensor:
    """As `permutations.shuffles`, in the smallest type."""
    assert device.type == "cpu"
    made = np.empty((count, size), np.uint8 if size <= 256 else np.uint16)
    _on_cores(lambda begin, end: _shuffle(made[begin:end], first + begin, key, int(purpose)), count, 1024)
    return torch.from_numpy(made)


def _given(lookup: Lookup, dtype: Any) -> list[Any]:
    """A lookup as arguments; an empty table stands for a missing one."""
    kind, purposes = lookup.kind, lookup.purposes
    own = kind.name == "sequence"
    shape = np.array(Rounds.of(lookup.size) if own else (1, 1, 1, 0), np.uint64)
    table = np.zeros((1, 1), dtype) if lookup.table is None else lookup.table.numpy()
    word = purposes.own if own else purposes.pick
    return [KINDS.index(kind.name), kind.number, lookup.lowest, int(word), shape, table]


def _on_cores(work: Callable[[int, int], None], count: int, least: int) -> None:
    """Run `work(begin, end)` over parts of [0, count) in parallel."""
    cores = max(1, min(torch.get_num_threads(), count // least))
    edges = [count * core // cores for core in range(cores + 1)]
    if cores == 1:
        work(0, count)
        return
    with ThreadPoolExecutor(cores) as pool:
        list(pool.map(work, edges[:-1], edges[1:]))


@njit(cache=True)
def fill_tables(weights: Any) -> Any:  # pragma: no cover
    """See `tables.alias_tables`."""
    rows, cells = weights.shape
    entries = np.empty((rows, cells), np.int64)
    left, room = np.empty(cells, np.int64), np.empty(cells, np.int64)
    small, large = np.empty(cells, np.int64), np.empty(cells, np.int64)
    for cell in range(cells):  # words that fall into it
        room[cell] = ((cell + 1) * UNIT + cells - 1) // cells - (cell * UNIT + cells - 1) // cells
    for row in range(rows):
        smalls = larges = 0
        for cell in range(cells):
            left[cell] = weights[row, cell]
            entries[row, cell] = cell
            if left[cell] < room[cell]:
                small[smalls] = cell
                smalls += 1
            elif left[cell] > room[cell]:
                large[larges] = cell
                larges += 1
        while smalls:  # fill the room of a small cell with words of a large one
            smalls -= 1
            larges -= 1
            low, high = small[smalls], large[larges]
            entries[row, low] = left[low] * cells << 32 | high
            left[high] -= room[low] - left[low]
            if left[high] < room[high]:
                small[smalls] = high
                smalls += 1
            elif left[high] > room[high]:
                larges += 1
    return entries
