# mypy: ignore-errors
# ruff: noqa: N803
"""Rows of a table by id, and the sums of their gradients.

Shapes: N positions, V ids, D channels. The gradients are added up in the order of their ids, and for one id in that of
positions: always the same sums. A program adds up those of ROWS neighbours in that order, as a product with a matrix of
zeros and ones. A run of one id that goes beyond its block is written by the block it begins in; what blocks after it
have of it lies in `partial`, (blocks, D), and is added by a second launch.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl


@no_type_check
@triton.jit
def gather_kernel(ids, table, out, v, d, BLOCK: tl.constexpr):
    """The row of an id that is none is not a number."""
    n, c = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(ids + n)
    known = (row >= 0) & (row < v)
    x = tl.load(table + row * d + c, mask=known & (c < d), other=float("nan"))
    tl.store(out + n * d + c, x.to(out.dtype.element_ty), mask=c < d)


@no_type_check
@triton.jit
def sum_kernel(ids, order, gradient, out, partial, n, v, d, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """`ids` are sorted, and `order` says where each one was."""
    block, c = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    lane = tl.arange(0, ROWS)
    i, wide = block * ROWS + lane, (c < d)[None, :]
    here = i < n
    row = at(ids, i, n)
    begins = (row != at(ids, i - 1, n)) | (i == 0)
    place = tl.load(order + i, mask=here, other=0)
    g = tl.load(gradient + place[:, None] * d + c[None, :], mask=here[:, None] & wide, other=0.0)
    same = (row[:, None] == row[None, :]) & here[None, :]
    sums = tl.dot(same.to(g.dtype), g, input_precision="ieee")
    known = (row >= 0) & (row < v)
    tl.store(out + row[:, None] * d + c[None, :], sums, mask=(begins & here & known)[:, None] & wide)
    left = (lane == 0) & ~begins
    tl.store(partial + block * d + c[None, :] + 0 * lane[:, None], sums, mask=left[:, None] & wide)


@no_type_check
@triton.jit
def join_kernel(ids, out, partial, n, v, d, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Add what later blocks have of the last run of a block, where it begins in this one."""
    block, c = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = at(ids, tl.minimum((block + 1) * ROWS, n) - 1, n)
    begins = (row != at(ids, block * ROWS - 1, n)) | (block == 0)
    after = block + 1
    if begins & (row >= 0) & (row < v) & (at(ids, after * ROWS, n) == row):
        total = tl.load(out + row * d + c, mask=c < d)
        while at(ids, after * ROWS, n) == row:
            total += tl.load(partial + after * d + c, mask=c < d)
            after += 1
        tl.store(out + row * d + c, total, mask=c < d)


@no_type_check
@triton.jit
def at(ids, i, n):
    """The id in this place, or one that is none."""
    return tl.load(ids + i, mask=(i >= 0) & (i < n), other=-1).to(tl.int64)
