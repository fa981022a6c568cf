# mypy: ignore-errors
# ruff: noqa: RUF005 (Triton does not unpack)
"""The kernels of `short_convolution`: what a program reads again for the positions beside its own is in the cache.

Shapes: N positions of all rows, T of a row, D channels, J positions before a position's own. Channels before `first`
are left as they are. A tile has ROWS positions of BLOCK channels; sums are float32.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _places(positions, n, count, length, DOCUMENTS: tl.constexpr):
    """The position of each in its document, or in its row; negative beyond the last."""
    if DOCUMENTS:
        return tl.load(positions + n, mask=n < count, other=-1).to(tl.int32)
    return tl.where(n < count, n % length, -1)


@triton.jit
def short_convolution_kernel(
    x, factors, positions, out, count, length, d, first, J: tl.constexpr, DOCUMENTS: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """x_t + Σ_j w_j x_{t−j}; a program makes one tile."""
    n, c = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mixed = (c >= first) & (c < d)
    at, place = n.to(tl.int64)[:, None] * d + c[None, :], _places(positions, n, count, length, DOCUMENTS)
    here = (n < count)[:, None] & (c < d)[None, :]
    total = tl.load(x + at, mask=here, other=0.0).to(tl.float32)
    for j in tl.static_range(1, J + 1):
        w = tl.load(factors + (j - 1) * (d - first) + c - first, mask=mixed, other=0.0).to(tl.float32)
        before = tl.load(x + at - j * d, mask=(place >= j)[:, None] & mixed[None, :], other=0.0)
        total += w[None, :] * before.to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=here)


@triton.jit
def short_convolution_backward_kernel(
    outer, x, factors, positions, to_x, sums, count, length, d, first, J: tl.constexpr, DOCUMENTS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """`outer` is the gradient of the output; a program makes many tiles, and its part of the gradient of `factors`.

    Products for that are kept apart for each position of a tile, and added up once.
    """
    begin, c = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mixed, weights, for_factors = (c >= first) & (c < d), (), ()
    for j in tl.static_range(J):
        w = tl.load(factors + j * (d - first) + c - first, mask=mixed, other=0.0).to(tl.float32)
        weights, for_factors = weights + (w[None, :],), for_factors + (tl.zeros((ROWS, BLOCK), tl.float32),)
    for tile in range(begin, tl.cdiv(count, ROWS), tl.num_programs(0)):
        n = tile * ROWS + tl.arange(0, ROWS)
        at, place = n.to(tl.int64)[:, None] * d + c[None, :], _places(positions, n, count, length, DOCUMENTS)
        here, more = (n < count)[:, None] & (c < d)[None, :], ()
        given = tl.load(outer + at, mask=here, other=0.0).to(tl.float32)
        total = given
        for j in tl.static_range(1, J + 1):
            if DOCUMENTS:
                reads = _places(positions, n + j, count, length, DOCUMENTS) >= j
            else:
                reads = (place + j < length) & (n + j < count)
            reached = tl.load(outer + at + j * d, mask=reads[:, None] & mixed[None, :], other=0.0)
            total += weights[j - 1] * reached.to(tl.float32)
            before = tl.load(x + at - j * d, mask=(place >= j)[:, None] & mixed[None, :], other=0.0)
            more = more + (for_factors[j - 1] + given * before.to(tl.float32),)
        for_factors = more
        tl.store(to_x + at, total.to(to_x.dtype.element_ty), mask=here)
    for j in tl.static_range(J):
        into = sums + (begin.to(tl.int64) * J + j) * (d - first) + c - first
        tl.store(into, tl.sum(for_factors[j], 0), mask=mixed)
