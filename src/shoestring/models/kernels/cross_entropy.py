# mypy: ignore-errors
"""`cross_entropy.plain` as a Triton kernel: one program per row, which reads it once, or twice if it is long.

Sums are float32 for any type of logits. A program overwrites the logits of its row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from shoestring.models.layers.cross_entropy import IGNORED, LogitScales

WHOLE = 8_192
"""Most columns of a row that a program holds at once."""
PIECE = 4_096
"""Columns of a longer row that it holds at a time; the cache keeps the rows in progress until they are read again."""
_IGNORED = tl.constexpr(IGNORED)


@triton.jit
def capped(x, CAP: tl.constexpr):
    """CAP · tanh(x / CAP); x if CAP is 0."""
    if CAP > 0.0:
        x = (2.0 * CAP) * tl.sigmoid(x * (2.0 / CAP)) - CAP
    return x


@triton.jit
def sloped(gradient, x, at, ids, CAP: tl.constexpr):
    """The gradient of a logit before the cap, from that of the capped logit x."""
    if CAP > 0.0:
        share = x / CAP
        gradient = tl.where(at < ids, gradient * (1.0 - share * share), 0.0)
    return gradient


@triton.jit
def read(here, at, columns, ids, KEEP: tl.constexpr, CAP: tl.constexpr):
    """Logits of a row, minus infinity beyond the ids; `columns` is a multiple of 16, so that whole words are loaded.

    KEEP is the eviction policy of the cache.
    """
    x = tl.load(here + at, mask=at < columns, other=0.0, eviction_policy=KEEP).to(tl.float32)
    return tl.where(at < ids, capped(x, CAP), float("-inf"))


@triton.jit
def losses_kernel(
    logits, targets, losses, scale, odds, columns, ids, GRADIENT: tl.constexpr, SCALED: tl.constexpr,
    COPIED: tl.constexpr, HELD: tl.constexpr, CAP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Rows of `columns` logits; only the first `ids` count. SCALED: gradients are multiplied by `scale`. COPIED: there
    are `odds`, as in `LogitScales`. HELD: a block is a whole row. CAP: as `capped`."""
    row = tl.program_id(0).to(tl.int64)
    here = logits + row * columns
    block = tl.arange(0, BLOCK)
    target = tl.load(targets + row)
    if target == _IGNORED:
        tl.store(losses + row, 0.0)
        if GRADIENT:
            if COPIED:
                tl.store(odds + row, 0.0)
            for first in range(0, columns, BLOCK):
                nothing = tl.zeros([BLOCK], logits.dtype.element_ty)
                tl.store(here + first + block, nothing, mask=first + block < columns)
        return
    known = (target >= 0) & (target < ids)
    chosen = tl.load(here + target, mask=known, other=float("nan")).to(tl.float32)
    chosen = capped(chosen, CAP)
    if HELD:
        x = read(here, block, columns, ids, "", CAP)
        top = tl.max(x, 0)
        e = tl.exp(x - top)
        total = tl.sum(e, 0)
    else:
        top = tl.full([], float("-inf"), tl.float32)
        total = tl.full([], 0.0, tl.float32)
        for first in range(0, ids, BLOCK):
            x = read(here, first + block, columns, ids, "evict_last", CAP)
            higher = tl.maximum(top, tl.max(x, 0))
            total = total * tl.exp(top - higher) + tl.sum(tl.exp(x - higher), 0)
            top = higher
    loss = tl.log(total) + top - chosen
    of_logits = 1.0  # their share of the target's probability
    if COPIED:
        both = loss + tl.load(odds + row)
        of_logits = tl.sigmoid(-both)
        loss -= tl.maximum(both, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(both)))
    tl.store(losses + row, loss)
    if GRADIENT:
        tl.debug_barrier()  # every thread has read the chosen logit
        one = tl.load(scale) if SCALED else 1.0
        if COPIED:
            tl.store(odds + row, one * (of_logits - 1.0))
            one *= of_logits
        share = one / total
        if HELD:
            gradient = sloped(e * share - tl.where(block == target, one, 0.0), x, block, ids, CAP)
            tl.store(here + block, gradient.to(logits.dtype.element_ty), mask=block < columns)
        else:
            for first in range(0, columns, BLOCK):
                at = first + block
                x = read(here, at, columns, ids, "evict_first", CAP)
                gradient = sloped(tl.exp(x - top) * share - tl.where(at == target, one, 0.0), x, at, ids, CAP)
                made = gradient.to(logits.dtype.element_ty)
                tl.store(here + at, made, mask=at < columns, eviction_policy="evict_first")


def columns(ids: int) -> int:
    """Columns of logits for a number of ids: a multiple of 16 or 64, for tensor cores and whole loads."""
    tile = 64 if ids >= 1024 else 16
    return -(-ids // tile) * tile


def fused(logits: Tensor, ids: int, targets: Tensor, losses: Tensor, gradient: bool, scales: LogitScales) -> None:
    """As `cross_entropy.plain`; the gradient of columns from `ids` on is 0, and all tensors are contiguous."""
    rows, width = logits.shape
    held, scale, odds = width <= WHOLE, scales.gradient, scales.odds
    block = triton.next_power_of_2(width) if held else PIECE
    with torch.cuda.device_of(logits):
        losses_kernel[(rows,)](
            logits, targets, losses, losses if scale is None else scale, losses if odds is None else odds, width, ids,
            GRADIENT=gradient, SCALED=scale is not None, COPIED=odds is not None, HELD=held, CAP=scales.cap or 0.0,
            BLOCK=block, num_warps=min(16, max(1, block // 512)),
        )  # fmt: skip
