# mypy: ignore-errors
# ruff: noqa: N803
"""AdamW on a GPU as one launch over all tensors: every value is read once, and written once if it changes.

A program processes one piece of one tensor. A table, (4, tensors), has the addresses of weights, gradients, means and
squares, as integers. A worker with a share of a batch divides by the moments of the whole (`batch_moments.py`): with
HALVES the table also has the addresses of the gradients of its first half, and of d.
"""

from __future__ import annotations

import triton
import triton.language as tl

PIECE = 2048
WARPS = 8


@triton.jit
def at(table, row: tl.constexpr, tensors, tensor, first, i):
    """Pointers into a tensor; tensors and pieces begin at whole words of 16 bytes."""
    start = tl.load(table + row * tensors + tensor).to(tl.pointer_type(tl.float32)) + first
    return tl.multiple_of(start, 16) + i


@triton.jit
def take(places, i, size, WHOLE: tl.constexpr):
    return tl.load(places) if WHOLE else tl.load(places, mask=i < size, other=0.0)


@triton.jit
def put(places, x, i, size, WHOLE: tl.constexpr):
    if WHOLE:
        tl.store(places, x)
    else:
        tl.store(places, x, mask=i < size)


@triton.jit
def adamw_kernel(
    table, tensors, sizes, owners, firsts, decays, shares, scale, refused, rates, apart, mean_part, square_part, eps,
    others, factors, PIECE: tl.constexpr, SHARED: tl.constexpr = False, HALVES: tl.constexpr = False,
):  # fmt: skip
    """`owners` and `firsts` hold the tensor and the first element of every program.

    `shares`, (2, tensors), are the bias corrections of means and squares; `mean_part` and `square_part` are the weights
    of a new gradient. `rates` has a number for every tensor, or one for all if `apart` is 0. `scale` and `refused` are
    one number each. With SHARED, `others` is the share of the other workers, 1 - 1 / n; with HALVES, `factors` has the
    two numbers that make δ.
    """
    program = tl.program_id(0)
    if tl.load(refused) > 0:
        return
    tensor, first = tl.load(owners + program), tl.load(firsts + program)
    divisor, lr = tl.load(scale), tl.load(rates + apart * tensor)
    decay = lr * tl.load(decays + tensor)
    share, root = tl.load(shares + tensor), tl.sqrt(tl.load(shares + tensors + tensor))
    size = tl.load(sizes + tensor) - first
    if size >= PIECE:
        piece(
            table, tensors, tensor, first, size, divisor, decay, lr, share, root, mean_part, square_part, eps,
            others, factors, PIECE, True, SHARED, HALVES
        )  # fmt: skip
    else:
        piece(
            table, tensors, tensor, first, size, divisor, decay, lr, share, root, mean_part, square_part, eps,
            others, factors, PIECE, False, SHARED, HALVES
        )  # fmt: skip


@triton.jit
def piece(
    table, tensors, tensor, first, size, divisor, decay, lr, share, root, mean_part, square_part, eps, others,
    factors, PIECE: tl.constexpr, WHOLE: tl.constexpr, SHARED: tl.constexpr, HALVES: tl.constexpr,
):  # fmt: skip
    """`size` is the rest of the tensor from `first` on. A WHOLE piece needs no masks, and is moved in words."""
    i = tl.arange(0, PIECE)
    weights, gradients = at(table, 0, tensors, tensor, first, i), at(table, 1, tensors, tensor, first, i)
    means, squares = at(table, 2, tensors, tensor, first, i), at(table, 3, tensors, tensor, first, i)
    summed = take(gradients, i, size, WHOLE)
    g = summed / divisor
    p, m, v = take(weights, i, size, WHOLE), take(means, i, size, WHOLE), take(squares, i, size, WHOLE)
    m += mean_part * (g - m)
    v += square_part * (g * g - v)
    p -= decay * p
    of_batch = v
    if SHARED and HALVES:
        noises = at(table, 5, tensors, tensor, first, i)
        half, d = take(at(table, 4, tensors, tensor, first, i), i, size, WHOLE), take(noises, i, size, WHOLE)
        difference = tl.load(factors) * half - tl.load(factors + 1) * summed
        d += square_part * (difference * difference - d)
        put(noises, d, i, size, WHOLE)
        of_batch = v - others * tl.minimum(v, d)
    elif SHARED:
        signal = m / share * root  # without its bias, and with that of the root of v
        of_batch = v + others * (signal * signal - v)
    p -= lr / share * m / (tl.sqrt(of_batch) / root + eps)
    put(weights, p, i, size, WHOLE)
    put(means, m, i, size, WHOLE)
    put(squares, v, i, size, WHOLE)
