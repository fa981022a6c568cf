# mypy: ignore-errors
# ruff: noqa: N803
"""`add_norm` on a GPU: every value is read once and written once, forward and backward.

Shapes: N positions, D channels. A program holds one position at a time; backward, it goes over many of them, and adds
up the gradient of the weight on its way.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl


@no_type_check
@triton.jit
def forward_kernel(x, change, weight, total, normed, scales, d, eps, BLOCK: tl.constexpr):
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


@no_type_check
@triton.jit
def backward_kernel(to_total, to_normed, total, weight, scales, changes, sums, n, d, BLOCK: tl.constexpr):
    """`to_total` and `to_normed` are the gradients of the two outputs; `sums` has a row for every program."""
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
