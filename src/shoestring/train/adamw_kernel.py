# mypy: ignore-errors
# ruff: noqa: N803
"""AdamW on a GPU as one launch over all tensors: every value is read once, and written once where it changes.

A program has one piece of one tensor. Where tensors lie is in a table, (4, tensors): addresses of weights, gradients,
means and squares, as integers.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

PIECE = 2048
WARPS = 8


@no_type_check
@triton.jit
def at(table, row: tl.constexpr, tensors, tensor, first, i):
    """Places of a tensor; it begins at whole words of 16 bytes, as pieces do."""
    start = tl.load(table + row * tensors + tensor).to(tl.pointer_type(tl.float32)) + first
    return tl.multiple_of(start, 16) + i


@no_type_check
@triton.jit
def take(places, i, size, WHOLE: tl.constexpr):
    return tl.load(places) if WHOLE else tl.load(places, mask=i < size, other=0.0)


@no_type_check
@triton.jit
def put(places, x, i, size, WHOLE: tl.constexpr):
    if WHOLE:
        tl.store(places, x)
    else:
        tl.store(places, x, mask=i < size)


@no_type_check
@triton.jit
def adamw_kernel(
    table, tensors, sizes, owners, firsts, decays, shares, scale, refused, lr, mean_part, square_part, eps,
    PIECE: tl.constexpr,
):  # fmt: skip
    """`owners` and `firsts` say of every program which tensor it has, and from where on.

    `shares`, (2, tensors): how much of a mean and of a square is not its first value, 0; `mean_part` and `square_part`:
    what a new gradient counts for.
    """
    program = tl.program_id(0)
    if tl.load(refused) > 0:
        return
    tensor, first = tl.load(owners + program), tl.load(firsts + program)
    divisor, decay = tl.load(scale), lr * tl.load(decays + tensor)
    rate, root = lr / tl.load(shares + tensor), tl.sqrt(tl.load(shares + tensors + tensor))
    size = tl.load(sizes + tensor) - first
    if size >= PIECE:
        piece(
            table, tensors, tensor, first, size, divisor, decay, rate, root, mean_part, square_part, eps, PIECE, True
        )  # fmt: skip
    else:
        piece(
            table, tensors, tensor, first, size, divisor, decay, rate, root, mean_part, square_part, eps, PIECE, False
        )  # fmt: skip


@no_type_check
@triton.jit
def piece(
    table, tensors, tensor, first, size, divisor, decay, rate, root, mean_part, square_part, eps,
    PIECE: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """`size` is what there is of the tensor from `first` on. A WHOLE piece needs no masks, so it is moved in words."""
    i = tl.arange(0, PIECE)
    weights, gradients = at(table, 0, tensors, tensor, first, i), at(table, 1, tensors, tensor, first, i)
    means, squares = at(table, 2, tensors, tensor, first, i), at(table, 3, tensors, tensor, first, i)
    g = take(gradients, i, size, WHOLE) / divisor
    p, m, v = take(weights, i, size, WHOLE), take(means, i, size, WHOLE), take(squares, i, size, WHOLE)
    m += mean_part * (g - m)
    v += square_part * (g * g - v)
    p -= decay * p
    p -= rate * m / (tl.sqrt(v) / root + eps)
    put(weights, p, i, size, WHOLE)
    put(means, m, i, size, WHOLE)
    put(squares, v, i, size, WHOLE)
