# mypy: ignore-errors
"""The kernels of `add_norm`, `swiglu_linear`, `qkv_rope` and `embedding_lookup`: values are read once and written once.

Shapes: N positions of all rows, D or C channels, F hidden channels, V ids.
"""

from __future__ import annotations

import triton
import triton.language as tl

COLUMNS = 4096
"""Most channels of a SwiGLU that a program processes."""


@triton.jit
def add_norm_kernel(x, change, weight, total, normed, scales, d, eps, BLOCK: tl.constexpr):
    """x + change and its RMSNorm; a program processes one position."""
    row, c = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    here = c < d
    kind = total.dtype.element_ty
    a = tl.load(x + row * d + c, mask=here, other=0.0).to(tl.float32)
    b = tl.load(change + row * d + c, mask=here, other=0.0).to(tl.float32)
    added = (a + b).to(kind)
    tl.store(total + row * d + c, added, mask=here)
    wide = added.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / d + eps)
    tl.store(scales + row, scale)
    w = tl.load(weight + c, mask=here, other=0.0).to(tl.float32)
    tl.store(normed + row * d + c, (wide * scale * w).to(kind), mask=here)


@triton.jit
def add_norm_backward_kernel(to_total, to_normed, total, weight, scales, changes, sums, n, d, BLOCK: tl.constexpr):
    """`to_total` and `to_normed` are the gradients of the two outputs.

    A program processes many positions, and writes its part of the weight's gradient to its row of `sums`.
    """
    first, programs, c = tl.program_id(0).to(tl.int64), tl.num_programs(0), tl.arange(0, BLOCK)
    here = c < d
    kind = changes.dtype.element_ty
    w = tl.load(weight + c, mask=here, other=0.0).to(tl.float32)
    to_weight = tl.zeros((BLOCK,), tl.float32)
    for row in range(first, n, programs):
        at = row * d + c
        x = tl.load(total + at, mask=here, other=0.0).to(tl.float32)
        g = tl.load(to_normed + at, mask=here, other=0.0).to(tl.float32)
        r = tl.load(to_total + at, mask=here, other=0.0).to(tl.float32)
        scale = tl.load(scales + row)
        x *= scale
        to_weight += g * x
        g *= w
        mean = tl.sum(g * x, 0) / d
        tl.store(changes + at, ((g - x * mean) * scale + r).to(kind), mask=here)
    tl.store(sums + first * d + c, to_weight, mask=here)


@triton.jit
def gated_kernel(pairs, gated, f, BLOCK: tl.constexpr):
    """silu(gate) · values; `pairs`, (N, 2 F), has the gate's channels first, then those of the values."""
    row, c = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = c < f
    g = tl.load(pairs + row * 2 * f + c, mask=here, other=0.0).to(tl.float32)
    u = tl.load(pairs + row * 2 * f + f + c, mask=here, other=0.0).to(tl.float32)
    tl.store(gated + row * f + c, (g * tl.sigmoid(g) * u).to(gated.dtype.element_ty), mask=here)


@triton.jit
def gated_backward_kernel(gradient, pairs, changes, f, BLOCK: tl.constexpr):
    """Gradients of gate and values; `gradient` is overwritten by the output of the forward pass."""
    row, c = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = c < f
    g = tl.load(pairs + row * 2 * f + c, mask=here, other=0.0).to(tl.float32)
    u = tl.load(pairs + row * 2 * f + f + c, mask=here, other=0.0).to(tl.float32)
    d = tl.load(gradient + row * f + c, mask=here, other=0.0).to(tl.float32)
    s = tl.sigmoid(g)
    silu = g * s
    kind = changes.dtype.element_ty
    tl.store(changes + row * 2 * f + c, (d * u * (s + silu * (1 - s))).to(kind), mask=here)
    tl.store(changes + row * 2 * f + f + c, (d * silu).to(kind), mask=here)
    tl.store(gradient + row * f + c, (silu * u).to(kind), mask=here)


@triton.jit
def qkv_rope_kernel(
    joint, q, k, v, cos, sin, n, length, heads, shared, BACK: tl.constexpr, P: tl.constexpr, PLACES: tl.constexpr,
    PAIRS: tl.constexpr,
):  # fmt: skip
    """Split `joint`, (N, heads + 2 shared, C), into rotated q and k, and v; or, with BACK, join their gradients.

    All tensors are contiguous. P = C/2 is the number of channel pairs of a head. A program processes all heads of
    PLACES positions, PAIRS pairs at a time, so that it reads cosines and sines once for queries and keys.
    """
    place = (tl.program_id(0).to(tl.int64) * PLACES + tl.arange(0, PLACES))[:, None]
    here = place < n
    pair = tl.arange(0, PAIRS)[None, :]
    angle = place % length * P + pair % P  # PAIRS are whole heads, or there is one pass
    cosine = tl.load(cos + angle, mask=here & (pair < heads * P), other=0.0).to(tl.float32)
    sine = tl.load(sin + angle, mask=here & (pair < heads * P), other=0.0).to(tl.float32)
    if BACK:
        sine = -sine
    together = heads + 2 * shared
    for first in range(0, heads * P, PAIRS):
        move(joint, q, place, here, first + pair, 0, heads, together, cosine, sine, True, BACK, P)
    for first in range(0, shared * P, PAIRS):
        move(joint, k, place, here, first + pair, heads, shared, together, cosine, sine, True, BACK, P)
    for first in range(0, shared * P, PAIRS):
        move(joint, v, place, here, first + pair, heads + shared, shared, together, cosine, sine, False, BACK, P)


@triton.jit
def move(
    joint, part, place, here, pair, before, heads, together, cosine, sine, ROTATE: tl.constexpr, BACK: tl.constexpr,
    P: tl.constexpr,
):  # fmt: skip
    """Copy some pairs between `joint` and a part that has `before` heads ahead of it there; ROTATE: by the angles."""
    inside = here & (pair < heads * P)
    within = pair // P * (2 * P) + pair % P
    at = joint + place * (together * 2 * P) + before * (2 * P) + within
    there = part + place * (heads * 2 * P) + within
    if BACK:
        source, target = there, at
    else:
        source, target = at, there
    a = tl.load(source, mask=inside, other=0.0)
    b = tl.load(source + P, mask=inside, other=0.0)
    if ROTATE:
        x, y = a.to(tl.float32), b.to(tl.float32)
        a = (x * cosine - y * sine).to(joint.dtype.element_ty)
        b = (y * cosine + x * sine).to(joint.dtype.element_ty)
    tl.store(target, a, mask=inside)
    tl.store(target + P, b, mask=inside)


@triton.jit
def gather_kernel(ids, table, out, v, d, BLOCK: tl.constexpr):
    """Rows of a table by id; the row of an id outside the vocabulary is NaN."""
    n, c = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(ids + n)
    known = (row >= 0) & (row < v)
    x = tl.load(table + row * d + c, mask=known & (c < d), other=float("nan"))
    tl.store(out + n * d + c, x.to(out.dtype.element_ty), mask=c < d)


@triton.jit
def sum_kernel(ids, order, gradient, out, partial, n, v, d, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Add up the gradients of every id; `ids` are sorted, and `order` holds the position of each.

    Gradients are added by id, and for one id by position, so that the sums are always the same. A program adds those of
    ROWS neighbours, as a product with a matrix of zeros and ones. A run of one id that exceeds its block is written by
    the block it begins in. What later blocks have of it is stored in `partial`, (blocks, D), for `join_kernel`.
    """
    block, c = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    lane = tl.arange(0, ROWS)
    i, wide = block * ROWS + lane, (c < d)[None, :]
    here = i < n
    row = id_at(ids, i, n)
    begins = (row != id_at(ids, i - 1, n)) | (i == 0)
    place = tl.load(order + i, mask=here, other=0)
    g = tl.load(gradient + place[:, None] * d + c[None, :], mask=here[:, None] & wide, other=0.0)
    same = (row[:, None] == row[None, :]) & here[None, :]
    sums = tl.dot(same.to(g.dtype), g, input_precision="ieee")
    known = (row >= 0) & (row < v)
    tl.store(out + row[:, None] * d + c[None, :], sums, mask=(begins & here & known)[:, None] & wide)
    left = (lane == 0) & ~begins
    tl.store(partial + block * d + c[None, :] + 0 * lane[:, None], sums, mask=left[:, None] & wide)


@triton.jit
def join_kernel(ids, out, partial, n, v, d, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Add to the last run of a block, if it begins there, what later blocks have of it."""
    block, c = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = id_at(ids, tl.minimum((block + 1) * ROWS, n) - 1, n)
    begins = (row != id_at(ids, block * ROWS - 1, n)) | (block == 0)
    after = block + 1
    if begins & (row >= 0) & (row < v) & (id_at(ids, after * ROWS, n) == row):
        total = tl.load(out + row * d + c, mask=c < d)
        while id_at(ids, after * ROWS, n) == row:
            total += tl.load(partial + after * d + c, mask=c < d)
            after += 1
        tl.store(out + row * d + c, total, mask=c < d)


@triton.jit
def id_at(ids, i, n):
    """The id at a position; -1 outside."""
    return tl.load(ids + i, mask=(i >= 0) & (i < n), other=-1).to(tl.int64)
