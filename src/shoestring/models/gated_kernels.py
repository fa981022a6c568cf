"""The gate of a SwiGLU on a GPU: every value is read once and written once, forward and backward.

Shapes: N positions, F channels. Gate and values lie side by side, (N, 2 F): the gate first.
"""
# mypy: ignore-errors
# ruff: noqa: N803

from __future__ import annotations

import triton
import triton.language as tl

COLUMNS = 4096
"""Channels that a program has at most."""


@triton.jit
def gated_kernel(pairs, gated, f, BLOCK: tl.constexpr):
    """silu(gate) · values."""
    row, c = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = c < f
    g = tl.load(pairs + row * 2 * f + c, mask=here, other=0.0).to(tl.float32)
    u = tl.load(pairs + row * 2 * f + f + c, mask=here, other=0.0).to(tl.float32)
    tl.store(gated + row * f + c, (g * tl.sigmoid(g) * u).to(gated.dtype.element_ty), mask=here)


@triton.jit
def gated_backward_kernel(gradient, pairs, changes, f, BLOCK: tl.constexpr):
    """Gradients of gate and values; `gradient`, once read, is replaced by what the forward pass gave."""
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
