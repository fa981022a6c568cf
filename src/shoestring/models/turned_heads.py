"""Queries, keys and values out of one product, the first two turned by their positions: one pass on a GPU.

The product itself need not be kept then. Shapes: R rows, T positions, H query heads, K of keys and as many of values,
A = H + 2 K, C channels a head.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from shoestring.models.rotary import Turns, rotate

_HAS_TRITON = importlib.util.find_spec("triton") is not None
Heads = tuple[Float[Tensor, "R T H C"], Float[Tensor, "R T K C"], Float[Tensor, "R T K C"]]


def turned_heads(qkv: Float[Tensor, "R T A C"], angles: Turns, heads: int) -> Heads:
    """Queries, keys and values, where the third axis of `qkv` holds their heads in this order."""
    shared = (qkv.shape[2] - heads) // 2
    fast = _HAS_TRITON and qkv.is_cuda and qkv.dtype in (torch.bfloat16, torch.float16) and qkv.shape[3] % 2 == 0
    if fast and angles[0].ndim == 2:
        q, k, v = torch.ops.shoestring.turned_heads(qkv, *angles, heads)
        return q, k, v
    q, k, v = qkv.split((heads, shared, shared), dim=2)
    return rotate(q, angles, heads=2), rotate(k, angles, heads=2), v


def _forward(qkv: Tensor, cos: Tensor, sin: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    qkv = qkv.contiguous()
    parts = _empty(qkv, cos, sin, heads)
    _move(qkv, parts, cos, sin, back=False)
    return parts


def _backward(q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    parts = [part if part.stride(3) == 1 else part.contiguous() for part in (q, k, v)]
    qkv = _joined(q, k, v, cos, sin)
    _move(qkv, parts, cos, sin, back=True)
    return qkv


def _move(qkv: Tensor, parts: Any, cos: Tensor, sin: Tensor, back: bool) -> None:
    from shoestring.models import rotary_kernels as kernels

    rows, length, _, channels = qkv.shape
    q, k, v = parts
    heads, shared, pairs = q.shape[2], k.shape[2], channels // 2
    most, wide = _power(max(heads, shared)), _power(pairs)
    places = max(1, kernels.TILE // (most * wide))
    blocks = -(-length // places)
    kernels.move_kernel[(rows * blocks, 3)](
        qkv, q, k, v, cos, sin, length, blocks, heads, shared, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        BACK=back, P=pairs, PAIRS=wide, HEADS=most, PLACES=places, num_warps=kernels.WARPS,
    )  # fmt: skip


def _power(number: int) -> int:
    """The next power of two."""
    return 1 << (number - 1).bit_length()


def _empty(qkv: Tensor, cos: Tensor, sin: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:  # noqa: ARG001
    rows, length, together, channels = qkv.shape
    shared = (together - heads) // 2
    q, k, v = (qkv.new_empty(rows, length, each, channels) for each in (heads, shared, shared))
    return q, k, v


def _joined(q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # noqa: ARG001
    rows, length, _, channels = q.shape
    return q.new_empty(rows, length, q.shape[2] + k.shape[2] + v.shape[2], channels)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:  # noqa: ARG001
    ctx.save_for_backward(inputs[1], inputs[2])


def _gradient(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor | None, ...]:
    cos, sin = ctx.saved_tensors
    return torch.ops.shoestring.turned_heads_backward(q, k, v, cos, sin), None, None, None


def _register() -> None:
    """As operators of torch, which a compiled model calls as they are."""
    operator = torch.library.custom_op(
        "shoestring::turned_heads",
        _forward,
        mutates_args=(),
        schema="(Tensor qkv, Tensor cos, Tensor sin, int heads) -> (Tensor, Tensor, Tensor)",
    )
    operator.register_fake(_empty)
    operator.register_autograd(_gradient, setup_context=_keep)
    torch.library.custom_op(
        "shoestring::turned_heads_backward",
        _backward,
        mutates_args=(),
        schema="(Tensor q, Tensor k, Tensor v, Tensor cos, Tensor sin) -> Tensor",
    ).register_fake(_joined)


_register()
