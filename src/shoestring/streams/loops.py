"""`hmm.plain_rows` as loops for CPU cores, compiled by Numba: row by row, with no memory but the state."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from shoestring.streams.permutations import KINDS, SIDE, Lookup
from shoestring.streams.philox import KEY_A, KEY_B, MASK, ROUND_A, ROUND_B, Purpose
from shoestring.streams.tables import Tables

_U32, _ALIAS, _TOKENS = np.uint64(MASK), np.uint64(0xFFFF), int(Purpose.TOKENS)
_A, _B, _KEY_A, _KEY_B = np.uint64(ROUND_A), np.uint64(ROUND_B), np.uint64(KEY_A), np.uint64(KEY_B)
_HALF, _NONE = np.uint64(32), np.uint64(0)


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
    """The places of a row's shuffles in the tables; see `permutations.numbers`."""
    if kind == 1:
        return number // each - lowest, _NONE
    if kind == 2:
        word = _philox(k0, k1, number & _U32, number >> _HALF, _NONE, pick)[0]
        return (word * each) >> _HALF, _NONE
    square = (number >> np.uint64(16)) * np.uint64(SIDE) - lowest
    four, eight, fifteen = np.uint64(4), np.uint64(8), np.uint64(15)
    line = ((number >> eight) & np.uint64(0xF0)) | ((number >> four) & fifteen)
    return square + line, square + (((number >> four) & np.uint64(0xF0)) | (number & fifteen))


@njit(cache=True, nogil=True, boundscheck=False)
def _fill(
    out: Any, first: int, key: int, h: int, e: int,
    moves: Any, emits: Any,
    sy_kind: int, sy_each: int, sy_lowest: int, sy_pick: int, sy0: Any, sy1: Any,
    st_kind: int, st_each: int, st_lowest: int, st_pick: int, st0: Any, st1: Any,
) -> None:  # fmt: skip  # pragma: no cover
    rows, length = out.shape
    k0, k1 = np.uint64(key) & _U32, np.uint64(key) >> _HALF
    states, symbols = np.uint64(h), np.uint64(e)
    sy_a = sy_b = st_a = st_b = _NONE
    for r in range(rows):
        number = np.uint64(first + r)
        c0, c1 = number & _U32, number >> _HALF
        if sy_kind:
            sy_a, sy_b = _which(sy_kind, number, np.uint64(sy_each), np.uint64(sy_lowest), k0, k1, np.uint64(sy_pick))
        if st_kind:
            st_a, st_b = _which(st_kind, number, np.uint64(st_each), np.uint64(st_lowest), k0, k1, np.uint64(st_pick))
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
                emitting = np.uint64(st1[st_b, emitting])
            if st_kind:
                emitting = np.uint64(st0[st_a, emitting])
            symbol = _draw(emits, emitting, symbols, w1)
            if sy_kind == 3:
                symbol = np.uint64(sy1[sy_b, symbol])
            if sy_kind:
                symbol = np.uint64(sy0[sy_a, symbol])
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
    tables = [table.numpy() for table in lookup.tables] + [np.zeros((1, 1), dtype)] * (2 - len(lookup.tables))
    return [KINDS.index(lookup.kind.name), lookup.kind.number, lookup.lowest, int(lookup.purposes.pick), *tables]


def _on_cores(work: Callable[[int, int], None], count: int, least: int) -> None:
    """Run `work(begin, end)` over parts of [0, count) in parallel."""
    cores = max(1, min(torch.get_num_threads(), count // least))
    edges = [count * core // cores for core in range(cores + 1)]
    if cores == 1:
        work(0, count)
        return
    with ThreadPoolExecutor(cores) as pool:
        list(pool.map(work, edges[:-1], edges[1:]))
