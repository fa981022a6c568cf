# mypy: ignore-errors
"""The next token of every row, from its logits; shapes and counts are those of `decoding`."""

from __future__ import annotations

import triton
import triton.language as tl

from shoestring.models.kernels.early import let_begin, wait


@triton.jit(do_not_specialize=["V"])
def top_kernel(tops, logits, V, EARLY: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """The largest logit of each of PARTS parts of a row."""
    row, part, i = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    let_begin(EARLY)
    wait(EARLY)
    x = tl.load(logits + row * V + i, mask=i < V, other=float("-inf"), cache_modifier=".cg")
    tl.store(tops + row * PARTS + part, tl.max(x, 0))


@triton.jit(do_not_specialize=["width", "V"])
def choose_kernel(
    rows, logits, noise, tops, best, index, arrived, place, width, V, temperature, DRAWN: tl.constexpr,
    EARLY: tl.constexpr, PARTS: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the next token of a row: the likeliest or, with DRAWN, one drawn by `noise`, which is exponential.

    The largest share / noise is drawn, as by `torch.multinomial`; here its logarithm is compared. Of equal ones it is
    the first. A program has one of PARTS parts of a row; the last to arrive joins what they found.
    """
    row, part, i = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    each = tl.arange(0, PADDED)
    of_parts = row * PARTS + each
    let_begin(EARLY)
    wait(EARLY)
    column = tl.load(place + 1, cache_modifier=".cg") - 1  # the output product has advanced it
    x = tl.load(logits + row * V + i, mask=i < V, other=float("-inf"), cache_modifier=".cg")
    if DRAWN:
        highest = tl.max(tl.load(tops + of_parts, mask=each < PARTS, other=float("-inf"), cache_modifier=".cg"), 0)
        x = (x - highest) / temperature - tl.log(tl.load(noise + row * V + i, mask=i < V, other=1.0))
    x = tl.where(x == x, x, float("-inf"))
    most = tl.max(x, 0)
    found = tl.min(tl.where(x == most, i, V), 0)
    if PARTS == 1:
        tl.store(rows + row * width + column, found.to(tl.int64))
    else:
        tl.store(best + row * PARTS + part, most)
        tl.store(index + row * PARTS + part, found)
        tl.debug_barrier()
        if tl.atomic_add(arrived + row, 1, sem="acq_rel") == PARTS - 1:
            tried = tl.load(best + of_parts, mask=each < PARTS, other=float("-inf"), cache_modifier=".cg")
            there = tl.load(index + of_parts, mask=each < PARTS, other=V, cache_modifier=".cg")
            found = tl.min(tl.where(tried == tl.max(tried, 0), there, V), 0)
            tl.store(rows + row * width + column, found.to(tl.int64))
            tl.store(arrived + row, 0)
