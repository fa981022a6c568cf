"""`hmm.plain_rows` as Triton kernels: one thread per row, and one per shuffle.

Tokens are packed into words of eight bytes, so that rows are written in place with few, whole stores.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from shoestring.streams.permutations import KINDS, LATER, SCATTER, SPREAD, Lookup, Rounds
from shoestring.streams.philox import Purpose
from shoestring.streams.tables import Compact

_SHUFFLES = 128
"""Threads per program of the shuffle kernel."""
_TOKENS = tl.constexpr(int(Purpose.TOKENS))
_SPREAD, _SCATTER, _LATER = tl.constexpr(SPREAD), tl.constexpr(SCATTER), tl.constexpr(LATER)


@triton.jit
def draw(heads, tails, rows, word, CELLS: tl.constexpr, BITS: tl.constexpr, inside):
    scaled = word.to(tl.uint64) * CELLS
    cell, place = (scaled >> 32).to(tl.int32), scaled.to(tl.uint32)
    at = rows * CELLS + cell
    head = tl.load(heads + at, mask=inside, other=0).to(tl.uint32, bitcast=True)
    above, threshold = place >> BITS, head >> BITS
    tie = above == threshold
    tail = tl.load(tails + at, mask=inside & tie, other=0).to(tl.uint32)  # hardly ever
    low: tl.constexpr = (1 << BITS) - 1
    mine = (above < threshold) | (tie & ((place & low) < tail))
    return tl.where(mine, cell, (head & low).to(tl.int32))


@triton.jit
def which(number, low, high, key, KIND: tl.constexpr, each, lowest, PICK: tl.constexpr):
    """The place of a row's shuffle in the table; see `permutations.numbers`."""
    at = number
    if KIND == 1:
        at = number // each - lowest
    if KIND == 2:
        word, _, _, _ = tl.philox(key, low, high, low * 0, low * 0 + PICK)
        at = ((word.to(tl.uint64) * each) >> 32).to(tl.int64)
    return at


@triton.jit
def turn(value, word, length, at):
    mixed = value * _SPREAD + word
    at += tl.umulhi((mixed ^ (mixed >> 16)) * _SCATTER, length)
    return tl.minimum(at, at - length)  # unsigned: what falls below 0 is large


@triton.jit
def own(values, w0, w1, w2, w3, WIDTH: tl.constexpr, LINES: tl.constexpr, REST: tl.constexpr, ROUNDS: tl.constexpr):
    """See `permutations.Rounds`; rounds are in twos."""
    values = values.to(tl.uint32)
    line = values // WIDTH
    place = values - line * WIDTH
    for two in tl.static_range(ROUNDS // 2):
        later = (two // 2 * _LATER) & 0xFFFFFFFF
        even, odd = w0, w1
        if two % 2 == 1:
            even, odd = w2, w3
        place = turn(line, even + later, tl.where(line == LINES - 1, REST, WIDTH).to(tl.uint32), place)
        line = turn(place, odd + later, tl.where(place < REST, LINES, LINES - 1).to(tl.uint32), line)
    return (line * WIDTH + place).to(tl.int32)


@triton.jit
def relabel(values, table, at, inside):
    return tl.load(table + at + values, mask=inside, other=0).to(tl.int32)


@triton.jit(do_not_specialize=["n", "first", "key", "sy_each", "sy_lowest", "st_each", "st_lowest"])
def tokens_kernel(
    out, n, first, words, key, moves, moves_tail, emits, emits_tail,
    sy_each, sy_lowest, sy_table, st_each, st_lowest, st_table,
    H: tl.constexpr, E: tl.constexpr, MOVE_BITS: tl.constexpr, EMIT_BITS: tl.constexpr,
    SYMBOLS: tl.constexpr, SYMBOLS_WORD: tl.constexpr, SYMBOLS_SHAPE: tl.constexpr,
    STATES: tl.constexpr, STATES_WORD: tl.constexpr, STATES_SHAPE: tl.constexpr,
    BYTES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Rows first to first + n, each `words` words of eight bytes."""
    r = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = r < n
    number = first + r
    low, high = (number & 0xFFFFFFFF).to(tl.uint32), (number >> 32).to(tl.uint32)
    purpose = low * 0 + _TOKENS
    sy_at = which(number, low, high, key, SYMBOLS, sy_each, sy_lowest, SYMBOLS_WORD)
    st_at = which(number, low, high, key, STATES, st_each, st_lowest, STATES_WORD)
    if SYMBOLS == 3:
        sy0, sy1, sy2, sy3 = tl.philox(key, low, high, low * 0, low * 0 + SYMBOLS_WORD)
    if STATES == 3:
        st0, st1, st2, st3 = tl.philox(key, low, high, low * 0, low * 0 + STATES_WORD)
    state = tl.zeros([BLOCK], tl.int32) + H
    for w in range(0, words):
        packed = tl.zeros([BLOCK], tl.int64)
        for pair in tl.static_range(4 // BYTES):
            call = low * 0 + (w * (4 // BYTES) + pair)
            w0, w1, w2, w3 = tl.philox(key, low, high, call, purpose)
            for half in tl.static_range(2):
                if half == 0:
                    move, emit = w0, w1
                else:
                    move, emit = w2, w3
                state = draw(moves, moves_tail, state, move, H, MOVE_BITS, inside)
                emitting = state
                if STATES == 3:
                    emitting = own(
                        emitting, st0, st1, st2, st3,
                        STATES_SHAPE[0], STATES_SHAPE[1], STATES_SHAPE[2], STATES_SHAPE[3],
                    )  # fmt: skip
                elif STATES >= 1:
                    emitting = relabel(emitting, st_table, st_at * H, inside)
                symbol = draw(emits, emits_tail, emitting, emit, E, EMIT_BITS, inside)
                if SYMBOLS == 3:
                    symbol = own(
                        symbol, sy0, sy1, sy2, sy3,
                        SYMBOLS_SHAPE[0], SYMBOLS_SHAPE[1], SYMBOLS_SHAPE[2], SYMBOLS_SHAPE[3],
                    )  # fmt: skip
                elif SYMBOLS >= 1:
                    symbol = relabel(symbol, sy_table, sy_at * E, inside)
                packed = packed | (symbol.to(tl.int64) << ((pair * 2 + half) * 8 * BYTES))
        tl.store(out + r * words + w, packed, mask=inside)


@triton.jit(do_not_specialize=["count", "first", "key", "purpose"])
def shuffle_kernel(made, count, first, key, purpose, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Fisher and Yates' shuffle in place: `made` holds 0 to SIZE - 1 in every row."""
    n = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = n < count
    number = first + n
    low, high = (number & 0xFFFFFFFF).to(tl.uint32), (number >> 32).to(tl.uint32)
    why = low * 0 + purpose
    row = made + n * SIZE
    for call in range(0, (SIZE + 2) // 4):
        w0, w1, w2, w3 = tl.philox(key, low, high, low * 0 + call, why)
        for at in tl.static_range(4):
            word = w0 if at == 0 else w1 if at == 1 else w2 if at == 2 else w3
            last = SIZE - 1 - (call * 4 + at)
            running = inside & (last > 0)
            other = ((word.to(tl.uint64) * (last + 1)) >> 32).to(tl.int64)
            ours = tl.load(row + last, mask=running, other=0)
            theirs = tl.load(row + other, mask=running, other=0)
            tl.store(row + other, ours, mask=running)
            tl.store(row + last, theirs, mask=running)
            tl.debug_barrier()  # the next swap may read what this one wrote


def make(
    first: int, count: int, length: int, key: int, tables: tuple[Compact, Compact], symbols: Lookup, states: Lookup
) -> Tensor:
    """As `hmm.plain_rows`, in the smallest type; a view of rows whose bytes are a multiple of eight."""
    moves, emits = tables
    h, e = emits.heads.shape
    dtype = torch.uint8 if e <= 256 else torch.uint16
    words = -(-length * dtype.itemsize // 8)
    packed = torch.empty((count, words), dtype=torch.int64, device=emits.heads.device)
    cells = [*moves[:2], *emits[:2]]
    block = 1024 if count >= 1 << 20 else 128  # neighbouring rows share permutations; few rows need many processors
    tokens_kernel[(triton.cdiv(count, block),)](
        packed, count, first, words, key, *cells, *_given(symbols, packed), *_given(states, packed),
        H=h, E=e, MOVE_BITS=moves.bits, EMIT_BITS=emits.bits,
        SYMBOLS=KINDS.index(symbols.kind.name), SYMBOLS_WORD=_word(symbols), SYMBOLS_SHAPE=_shape(symbols),
        STATES=KINDS.index(states.kind.name), STATES_WORD=_word(states), STATES_SHAPE=_shape(states),
        BYTES=dtype.itemsize, BLOCK=block, num_warps=block // 32,
    )  # fmt: skip
    return packed.view(dtype)[:, :length]


def shuffles(key: int, first: int, count: int, size: int, purpose: Purpose, device: torch.device) -> Tensor:
    """As `permutations.shuffles`, in the smallest type."""
    made = torch.arange(size, device=device).to(torch.uint8 if size <= 256 else torch.uint16).repeat(count, 1)
    shuffle_kernel[(triton.cdiv(count, _SHUFFLES),)](
        made, count, first, key, int(purpose), SIZE=size, BLOCK=_SHUFFLES, num_warps=_SHUFFLES // 32
    )
    return made


def _given(lookup: Lookup, missing: Tensor) -> list[int | Tensor]:
    """A lookup as arguments; any tensor stands for a missing table."""
    return [lookup.kind.number, lookup.lowest, missing if lookup.table is None else lookup.table]


def _word(lookup: Lookup) -> int:
    """The purpose of what a row draws for its permutation."""
    return int(lookup.purposes.own if lookup.kind.name == "sequence" else lookup.purposes.pick)


def _shape(lookup: Lookup) -> tuple[int, int, int, int]:
    return tuple(Rounds.of(lookup.size)) if lookup.kind.name == "sequence" else (1, 1, 1, 0)
