# mypy: ignore-errors
# ruff: noqa: N803
"""What Muon does on a GPU beside its products, in two launches over matrices of one shape.

The first reads gradients and means once, moves the means, and writes the updates before they are orthogonalized, as one
tensor in the type of the products. The second reads the updates and the weights once, and writes the weights. A table,
(3, matrices), has the addresses of weights, gradients and means, as integers. A program processes one piece of one
matrix; pieces are numbered by the first axis of the launch, matrices by the second.
"""

from __future__ import annotations

import triton
import triton.language as tl

from shoestring.training.optimizers.adamw_kernel import put, take

PIECE = 2048
WARPS = 8


@triton.jit
def start(table, row: tl.constexpr, matrices, matrix, first):
    """A pointer into a matrix; matrices and pieces begin at whole words of 16 bytes."""
    found = tl.load(table + row * matrices + matrix).to(tl.pointer_type(tl.float32)) + first
    return tl.multiple_of(found, 16)


@triton.jit
def gather_kernel(table, matrices, size, scale, refused, momenta, updates, squares, PIECE: tl.constexpr):
    """Write `updates`, (matrices, size), and the sum of squares of each piece into `squares`, (matrices, pieces).

    `scale` divides gradients, `momenta` has a number for every matrix. Means stay if `refused`, one number, is not 0.
    """
    piece, matrix = tl.program_id(0), tl.program_id(1)
    first = piece.to(tl.int64) * PIECE
    i, rest = tl.arange(0, PIECE), size - first
    gradients, means = start(table, 1, matrices, matrix, first) + i, start(table, 2, matrices, matrix, first) + i
    found = updates + matrix.to(tl.int64) * size + first + i
    divisor, momentum, keep = tl.load(scale), tl.load(momenta + matrix), tl.load(refused) > 0
    if rest >= PIECE:
        gather_piece(gradients, means, found, i, rest, divisor, momentum, keep, squares, True)
    else:
        gather_piece(gradients, means, found, i, rest, divisor, momentum, keep, squares, False)


@triton.jit
def gather_piece(gradients, means, updates, i, rest, divisor, momentum, keep, squares, WHOLE: tl.constexpr):
    g, m = take(gradients, i, rest, WHOLE) / divisor, take(means, i, rest, WHOLE)
    moved = m + (1 - momentum) * (g - m)
    update = g + momentum * (moved - g)
    if not keep:
        put(means, moved, i, rest, WHOLE)
    put(updates, update.to(updates.dtype.element_ty), i, rest, WHOLE)
    tl.store(squares + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0), tl.sum(update * update, axis=0))


@triton.jit
def apply_kernel(
    table, matrices, size, columns, rate, decay, refused, updates, factors, rows,
    PIECE: tl.constexpr, SCALED: tl.constexpr, CAUTIOUS: tl.constexpr,
):  # fmt: skip
    """Decay the weights, and subtract `rate` times the updates, with SCALED times the factor of their row, from
    `factors`, (matrices, rows). With CAUTIOUS, only weights that the update brings nearer to 0 decay.

    `rate` and `decay` are one number each.
    """
    piece, matrix = tl.program_id(0), tl.program_id(1)
    if tl.load(refused) > 0:
        return
    first = piece.to(tl.int64) * PIECE
    i, rest = tl.arange(0, PIECE), size - first
    weights, found = start(table, 0, matrices, matrix, first) + i, updates + matrix.to(tl.int64) * size + first + i
    row = factors + matrix * rows + ((first + i) // columns).to(tl.int32)
    lr, shrink = tl.load(rate), tl.load(decay)
    if rest >= PIECE:
        apply_piece(weights, found, row, i, rest, lr, shrink, True, SCALED, CAUTIOUS)
    else:
        apply_piece(weights, found, row, i, rest, lr, shrink, False, SCALED, CAUTIOUS)


@triton.jit
def apply_piece(
    weights, updates, row, i, rest, lr, shrink, WHOLE: tl.constexpr, SCALED: tl.constexpr, CAUTIOUS: tl.constexpr
):  # fmt: skip
    update, w = take(updates, i, rest, WHOLE).to(tl.float32), take(weights, i, rest, WHOLE)
    if SCALED:
        update *= take(row, i, rest, WHOLE)
    if CAUTIOUS:
        shrink = tl.where(update * w > 0, shrink, 0.0)
    put(weights, w * (1 - shrink) - lr * update, i, rest, WHOLE)
