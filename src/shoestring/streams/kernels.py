"""`hmm.plain_rows` as Triton kernels: one thread per row, and one per shuffle.

Tokens are packed into words of eight bytes, so that rows are written in place with few, whole stores.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from shoestring.streams.permutations import KINDS, Lookup
from shoestring.streams.philox import Purpose
from shoestring.streams.tables import Compact

_SHUFFLES = 128
"""Threads per program of the shuffle kernel."""
_TOKENS = tl.constexpr(int(Purpose.TOKENS))


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
    """The places of a row's shuffles in the tables; see `permutations.numbers`."""
    first, second = number, number
    if KIND == 1:
        first = number // each - lowest
    if KIND == 2:
        word, _, _, _ = tl.philox(key, low, high, low * 0, low * 0 + PICK)
        first = ((word.to(tl.uint64) * each) >> 32).to(tl.int64)
    if KIND == 3:
        square = (number >> 16) * 256 - lowest
        first = square + ((number >> 8 & 0xF0) | (number >> 4 & 0x0F))
        second = square + ((number >> 4 & 0xF0) | (number & 0x0F))
    return first, second


@triton.jit
def relabel(values, tables, at, inside):
    return tl.load(tables + at + values, mask=inside, other=0).to(tl.int32)


@triton.jit(do_not_specialize=["n", "first", "key", "sy_each", "sy_lowest", "st_each", "st_lowest"])
def tokens_kernel(
    out, n, first, words, key, moves, moves_tail, emits, emits_tail,
    sy_each, sy_lowest, sy0, sy1, st_each, st_lowest, st0, st1,
    H: tl.constexpr, E: tl.constexpr, MOVE_BITS: tl.constexpr, EMIT_BITS: tl.constexpr,
    SYMBOLS: tl.constexpr, SYMBOLS_PICK: tl.constexpr, STATES: tl.constexpr, STATES_PICK: tl.constexpr,
    BYTES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Rows first to first + n, each `words` words of eight bytes."""
    r = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = r < n
    number = first + r
    low, high = (number & 0xFFFFFFFF).to(tl.uint32), (number >> 32).to(tl.uint32)
    purpose = low * 0 + _TOKENS
    sy_a, sy_b = which(number, low, high, key, SYMBOLS, sy_each, sy_lowest, SYMBOLS_PICK)
    st_a, st_b = which(number, low, high, key, STATES, st_each, st_lowest, STATES_PICK)
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
                    emitting = relabel(emitting, st1, st_b * H, inside)
                if STATES >= 1:
                    emitting = relabel(emitting, st0, st_a * H, inside)
                symbol = draw(emits, emits_tail, emitting, emit, E, EMIT_BITS, inside)
                if SYMBOLS == 3:
                    symbol = relabel(symbol, sy1, sy_b * E, inside)
                if SYMBOLS >= 1:
                    symbol = relabel(symbol, sy0, sy_a * E, inside)
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
        SYMBOLS=KINDS.index(symbols.kind.name), SYMBOLS_PICK=int(symbols.purposes.pick),
        STATES=KINDS.index(states.kind.name), STATES_PICK=int(states.purposes.pick),
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
    tables = [*lookup.tables, missing, missing][:2]
    return [lookup.kind.number, lookup.lowest, *tables]
