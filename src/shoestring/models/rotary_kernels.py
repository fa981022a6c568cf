# mypy: ignore-errors
# ruff: noqa: N803
"""Queries and keys turned, and values taken, out of one tensor; and their gradients brought back into one.

Shapes: R rows, T positions, A heads in all, C channels, P = C/2 pairs of them. A program has all queries, all keys
or all values of a few positions.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

TILE = 2048
"""Pairs that a program holds."""
WARPS = 4


@no_type_check
@triton.jit
def move_kernel(
    joint, q, k, v, cos, sin, length, blocks, heads, shared, q_row, q_place, q_head, k_row, k_place, k_head,
    v_row, v_place, v_head,
    BACK: tl.constexpr, P: tl.constexpr, PAIRS: tl.constexpr, HEADS: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    """From `joint` (R, T, A, C) to its three parts, or back; each part has strides of its own."""
    part = tl.program_id(1)
    if part == 0:
        move(joint, q, cos, sin, length, blocks, 0, heads, heads + 2 * shared, q_row, q_place, q_head,
             True, BACK, P, PAIRS, HEADS, PLACES)  # fmt: skip
    elif part == 1:
        move(joint, k, cos, sin, length, blocks, heads, shared, heads + 2 * shared, k_row, k_place, k_head,
             True, BACK, P, PAIRS, HEADS, PLACES)  # fmt: skip
    else:
        move(joint, v, cos, sin, length, blocks, heads + shared, shared, heads + 2 * shared, v_row, v_place, v_head,
             False, BACK, P, PAIRS, HEADS, PLACES)  # fmt: skip


@no_type_check
@triton.jit
def move(
    joint, part, cos, sin, length, blocks, first, heads, together, row_stride, place_stride, head_stride,
    TURN: tl.constexpr, BACK: tl.constexpr, P: tl.constexpr, PAIRS: tl.constexpr, HEADS: tl.constexpr,
    PLACES: tl.constexpr,
):  # fmt: skip
    """TURN: by the angles of the place; on the way back the other way round."""
    program = tl.program_id(0)
    row = (program // blocks).to(tl.int64)
    place = program % blocks * PLACES + tl.arange(0, PLACES)[:, None, None]
    head, c = tl.arange(0, HEADS)[None, :, None], tl.arange(0, PAIRS)[None, None, :]
    inside = (place < length) & (head < heads) & (c < P)
    at = joint + row * length * together * (2 * P) + (place * together + first + head) * (2 * P) + c
    there = part + row * row_stride + place * place_stride + head * head_stride + c
    if BACK:
        source, target = there, at
    else:
        source, target = at, there
    a = tl.load(source, mask=inside, other=0.0)
    b = tl.load(source + P, mask=inside, other=0.0)
    if TURN:
        seen = (place < length) & (c < P)
        cosine = tl.load(cos + place * P + c, mask=seen, other=0.0).to(tl.float32)
        sine = tl.load(sin + place * P + c, mask=seen, other=0.0).to(tl.float32)
        if BACK:
            sine = -sine
        x, y = a.to(tl.float32), b.to(tl.float32)
        a = (x * cosine - y * sine).to(joint.dtype.element_ty)
        b = (y * cosine + x * sine).to(joint.dtype.element_ty)
    tl.store(target, a, mask=inside)
    tl.store(target + P, b, mask=inside)
