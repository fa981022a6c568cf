"""The E-step as four fused Triton kernels: forward, backward, emission counts and transition counts.

Shapes: N sequences (a multiple of BM; padding rows have length 0), L positions, S states padded to a multiple of BN
with states of probability zero, E symbols. State tables are (L, N, S), tokens and scales (L, N), emissions (E, S).

Precision: every product is taken three times on bf16 tensor cores, `x y ≈ xh yh + xl yh + xh yl` with `x = xh + xl`,
each half bf16: sixteen bits of mantissa with the range of float32, so no scaling is needed. Tables are stored as such
pairs, in four bytes per number. Tensor cores add with truncation, so long sums are split: those of the transitions are
added to a second accumulator every PROMOTE products.

One program owns BM sequences from their first position to their last. It reads the state vectors of the position
before back from cache, and no program waits for another. The vectors stored for position t are *not* normalised:
`a_t = ((a_{t-1} A) / c_{t-1}) ∘ B[x_t]` with `c_t = Σ a_t`. The division by the sum of the position before comes after
the product, so the sum is known when it is needed.
"""

from __future__ import annotations

import triton
import triton.language as tl

PROMOTE = 8


@triton.jit
def _store_pair(high, low, at, x):
    """Store a float32 block as two halves that add up to it, within 2⁻¹⁷ where they are bf16."""
    half = x.to(high.dtype.element_ty)
    tl.store(high + at, half)
    tl.store(low + at, (x - half.to(tl.float32)).to(high.dtype.element_ty))


@triton.jit
def _product(
    high, low, table_high, table_low, columns, S: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """BM rows of a pair, starting at `high` and `low`, times some columns of an (S, S) pair."""
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    row = tl.arange(0, BM)
    for k in range(0, S, BK):
        inner = k + tl.arange(0, BK)
        at = row[:, None] * S + inner[None, :]
        of = inner[:, None] * S + columns[None, :]
        xh = tl.load(high + at)
        xl = tl.load(low + at)
        th = tl.load(table_high + of)
        acc = tl.dot(xh, th, acc)
        acc = tl.dot(xl, th, acc)
        acc = tl.dot(xh, tl.load(table_low + of), acc)
    return acc


@triton.jit
def forward_kernel(
    tokens, lengths, start, emission, table_high, table_low, a_high, a_low, scale,
    N, L, S: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Write a (L, N, S) as a pair, and scale (L, N): c_t, or 1 beyond a row's end."""
    row = tl.arange(0, BM)
    mine = tl.program_id(0).to(tl.int64) * BM  # offsets into a state table need 64 bits, those within a block do not
    length = tl.load(lengths + mine + row)
    token = tl.load(tokens + mine + row)
    total = tl.zeros((BM,), dtype=tl.float32)
    for first in range(0, S, BN):
        columns = first + tl.arange(0, BN)
        at = row[:, None] * S + columns[None, :]
        value = tl.load(start + columns)[None, :] * tl.load(emission + token[:, None] * S + columns[None, :])
        value = tl.where((length > 0)[:, None], value, 0.0)
        total += tl.sum(value, 1)
        _store_pair(a_high + mine * S, a_low + mine * S, at, value)
    tl.store(scale + mine + row, tl.where(length > 0, total, 1.0))
    for t in range(1, L):
        tl.debug_barrier()
        inverse = tl.where(total > 0, 1.0 / total, 0.0)
        before = (mine + (t - 1) * N) * S
        here = before + N * S
        token = tl.load(tokens + mine + t * N + row)
        inverse = tl.where(t < length, inverse, 0.0)
        total = tl.zeros((BM,), dtype=tl.float32)
        for first in range(0, S, BN):
            columns = first + tl.arange(0, BN)
            value = _product(a_high + before, a_low + before, table_high, table_low, columns, S, BM, BN, BK)
            emit = tl.load(emission + token[:, None] * S + columns[None, :])
            value = value * inverse[:, None] * emit
            total += tl.sum(value, 1)
            _store_pair(a_high + here, a_low + here, row[:, None] * S + columns[None, :], value)
        tl.store(scale + mine + t * N + row, tl.where(t < length, total, 1.0))


@triton.jit
def backward_kernel(
    tokens, lengths, weights, emission, table_high, table_low, scale, w_high, w_low,
    N, L, S: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Write w (L, N, S) as a pair: w_t = B[x_t] ∘ β_t / (c_t c_{t-1}), with c_{-1} = 1; `table` is transposed.

    Both counts are sums of products with a: transitions from t are a_t × w_{t+1}, and the posterior of t is
    a_t w_t c_{t-1} / B[x_t]. Everything is linear in β, so a row's weight is only in its last β.
    """
    row = tl.arange(0, BM)
    mine = tl.program_id(0).to(tl.int64) * BM
    length = tl.load(lengths + mine + row)
    weight = tl.load(weights + mine + row)
    here = (mine + (L - 1) * N) * S
    token = tl.load(tokens + mine + (L - 1) * N + row)
    both = _inverse(scale + mine + row, L - 1, N)
    ending = tl.where(length == L, weight * both, 0.0)
    for first in range(0, S, BN):
        columns = first + tl.arange(0, BN)
        emit = tl.load(emission + token[:, None] * S + columns[None, :])
        _store_pair(w_high + here, w_low + here, row[:, None] * S + columns[None, :], emit * ending[:, None])
    for step in range(1, L):
        tl.debug_barrier()
        t = L - 1 - step
        after = (mine + (t + 1) * N) * S
        token = tl.load(tokens + mine + t * N + row)
        both = _inverse(scale + mine + row, t, N)
        ending = tl.where(t == length - 1, weight * both, 0.0)
        going = tl.where(t < length - 1, tl.load(scale + mine + t * N + row) * both, 0.0)
        for first in range(0, S, BN):
            columns = first + tl.arange(0, BN)
            value = _product(w_high + after, w_low + after, table_high, table_low, columns, S, BM, BN, BK)
            emit = tl.load(emission + token[:, None] * S + columns[None, :])
            value = emit * (value * going[:, None] + ending[:, None])
            at = row[:, None] * S + columns[None, :]
            _store_pair(w_high + after - N * S, w_low + after - N * S, at, value)


@triton.jit
def _inverse(scale, t, N):
    """1 / (c_t c_{t-1}), with c_{-1} = 1, or 0 where a token was impossible."""
    c = tl.load(scale + t * N)
    before = tl.where(t > 0, tl.load(scale + tl.maximum(t - 1, 0) * N), 1.0)
    return tl.where((c > 0) & (before > 0), 1.0 / (c * before), 0.0)


@triton.jit
def emission_kernel(
    order, begins, ends, a_high, a_low, w_high, w_low, scale, out, N,
    S: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """out (pieces, S): Σ a w c_{t-1} over the places `order[begin:end]` of each piece, which all hold one symbol."""
    piece = tl.program_id(0)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    begin = tl.load(begins + piece)
    end = tl.load(ends + piece)
    total = tl.zeros((BN,), dtype=tl.float32)
    for k in range(begin, end, BK):
        index = k + tl.arange(0, BK)
        inside = index < end
        place = tl.load(order + index, mask=inside, other=0)
        before = tl.load(scale + place - N, mask=inside & (place >= N), other=1.0)
        at = place[:, None] * S + columns[None, :]
        here = inside[:, None]
        a = tl.load(a_high + at, mask=here, other=0.0).to(tl.float32)
        a += tl.load(a_low + at, mask=here, other=0.0).to(tl.float32)
        w = tl.load(w_high + at, mask=here, other=0.0).to(tl.float32)
        w += tl.load(w_low + at, mask=here, other=0.0).to(tl.float32)
        total += tl.sum(a * w * before[:, None], 0)
    tl.store(out + piece.to(tl.int64) * S + columns, total)


@triton.jit
def transition_kernel(
    a_high, a_low, w_high, w_low, out, K, SPAN,
    S: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PROMOTE: tl.constexpr,
):  # fmt: skip
    """out (splits, S, S): Σ_k a[k, i] w[k, j] over the rows k of each split, SPAN rows long; K is a multiple of BK."""
    left = tl.program_id(0) * BM + tl.arange(0, BM)
    right = tl.program_id(1) * BN + tl.arange(0, BN)
    begin = tl.program_id(2).to(tl.int64) * SPAN
    end = tl.minimum(begin + SPAN, K)
    inner = tl.arange(0, BK)
    of_a = inner[:, None] * S + left[None, :]
    of_w = inner[:, None] * S + right[None, :]
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for span in range(begin, end, BK * PROMOTE):
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(span, tl.minimum(span + BK * PROMOTE, end), BK):
            ah = tl.trans(tl.load(a_high + k * S + of_a))
            wh = tl.load(w_high + k * S + of_w)
            acc = tl.dot(ah, wh, acc)
            acc = tl.dot(tl.trans(tl.load(a_low + k * S + of_a)), wh, acc)
            acc = tl.dot(ah, tl.load(w_low + k * S + of_w), acc)
        total += acc
    at = left[:, None] * S + right[None, :]
    tl.store(out + tl.program_id(2).to(tl.int64) * S * S + at, total)
