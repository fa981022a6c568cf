"""Queries, keys and values out of one product, the first two turned by their positions: one pass on a GPU.

The product itself need not be kept then. Shapes: R rows, T positions, H query heads, K of keys and as many of values,
A = H + 2 K, C channels a head.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from shoestring.models.operators import HAS_TRITON, register
from shoestring.models.rotary import Turns, rotate

PAIRS = 512
"""That a program moves at a time, at most."""
PLACES = 1
Heads = tuple[Float[Tensor, "R T H C"], Float[Tensor, "R T K C"], Float[Tensor, "R T K C"]]


def turned_heads(qkv: Float[Tensor, "R T A C"], angles: Turns, heads: int) -> Heads:
    """Queries, keys and values, where the third axis of `qkv` holds their heads in this order."""
    shared = (qkv.shape[2] - heads) // 2
    fast = HAS_TRITON and qkv.is_cuda and qkv.dtype in (torch.bfloat16, torch.float16) and qkv.shape[3] % 2 == 0
    if fast and angles[0].ndim == 2:
        q, k, v = torch.ops.shoestring.turned_heads(qkv, *angles, heads)
        return q, k, v
    q, k, v = qkv.split((heads, shared, shared), dim=2)
    return rotate(q, angles, heads=2), rotate(k, angles, heads=2), v


def _forward(qkv: Tensor, cos: Tensor, sin: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    parts = _parts(qkv, cos, sin, heads)
    _move(qkv.contiguous(), parts, cos, sin, back=False)
    return parts


def _backward(q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    qkv = _joint(q, k, v, cos, sin)
    _move(qkv, (q.contiguous(), k.contiguous(), v.contiguous()), cos, sin, back=True)
    return qkv


def _move(qkv: Tensor, parts: tuple[Tensor, Tensor, Tensor], cos: Tensor, sin: Tensor, back: bool) -> None:
    from shoestring.models.rotary_kernels import turn_kernel  # imports Triton

    rows, length, _, channels = qkv.shape
    heads, shared, p = parts[0].shape[2], parts[1].shape[2], channels // 2
    n, wanted = rows * length, 1 << (heads * p - 1).bit_length()
    pairs = wanted if wanted <= PAIRS or PAIRS % p else PAIRS
    with torch.cuda.device_of(qkv):
        turn_kernel[(-(-n // PLACES),)](
            qkv, *parts, cos.contiguous(), sin.contiguous(), n, length, heads, shared,
            BACK=back, P=p, PLACES=PLACES, PAIRS=pairs, num_warps=max(1, min(8, PLACES * pairs // 256)),
        )  # fmt: skip


def _parts(qkv: Tensor, cos: Tensor, sin: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:  # noqa: ARG001
    *places, together, channels = qkv.shape
    shared = (together - heads) // 2
    q, k, v = (qkv.new_empty(*places, each, channels) for each in (heads, shared, shared))
    return q, k, v


def _joint(q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # noqa: ARG001
    *places, heads, channels = q.shape
    return q.new_empty(*places, heads + k.shape[2] + v.shape[2], channels)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:  # noqa: ARG001
    ctx.save_for_backward(inputs[1], inputs[2])


def _gradient(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor | None, ...]:
    return torch.ops.shoestring.turned_heads_backward(q, k, v, *ctx.saved_tensors), None, None, None


register(
    "turned_heads",
    "(Tensor qkv, Tensor cos, Tensor sin, int heads) -> (Tensor, Tensor, Tensor)",
    _forward,
    _parts,
    keep=_keep,
    gradient=_gradient,
)
register(
    "turned_heads_backward",
    "(Tensor q, Tensor k, Tensor v, Tensor cos, Tensor sin) -> Tensor",
    _backward,
    _joint,
)
