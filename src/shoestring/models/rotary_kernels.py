# mypy: ignore-errors
# ruff: noqa: N803
"""Queries and keys turned, and values taken, out of one tensor; and their gradients brought back into one.

Shapes: N positions of all rows, A = heads + 2 shared heads, C channels, P = C/2 pairs of them. A program has all heads
of a few positions, so that it reads their cosines and sines once for queries and keys.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl


@no_type_check
@triton.jit
def turn_kernel(
    joint, q, k, v, cos, sin, n, length, heads, shared, BACK: tl.constexpr, P: tl.constexpr, PLACES: tl.constexpr,
    PAIRS: tl.constexpr,
):  # fmt: skip
    """From `joint` (N, A, C) to its three parts, or back; all are contiguous, and PAIRS are those of a pass."""
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


@no_type_check
@triton.jit
def move(
    joint, part, place, here, pair, before, heads, together, cosine, sine, TURN: tl.constexpr, BACK: tl.constexpr,
    P: tl.constexpr,
):  # fmt: skip
    """These pairs of a part that has so many heads before it in `joint`; TURN: by the angles of the place."""
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
    if TURN:
        x, y = a.to(tl.float32), b.to(tl.float32)
        a = (x * cosine - y * sine).to(joint.dtype.element_ty)
        b = (y * cosine + x * sine).to(joint.dtype.element_ty)
    tl.store(target, a, mask=inside)
    tl.store(target + P, b, mask=inside)
