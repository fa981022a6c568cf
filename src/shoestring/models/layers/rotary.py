"""Rotary positions: the channel pairs (c, c + C/2) of queries and keys are rotated by angles that grow with position.

Shapes: R rows, T positions, H query heads, K heads of keys and as many of values, A = H + 2 K, C channels per head that
are rotated, P = C/2 pairs of them.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from shoestring.core.specs import RotaryScaling
from shoestring.models.layers.operators import Operator, is_fused, register

Turns = tuple[Tensor, Tensor]
"""Cosine and sine of position × frequency, in float32: each (T, C/2), or (R, 1, T, C/2) where rows differ."""
PAIRS = 512
"""Most pairs that a program processes at a time."""
PLACES = 1
Heads = tuple[Float[Tensor, "R T H C"], Float[Tensor, "R T K C"], Float[Tensor, "R T K C"]]


def frequencies(channels: int, base: float, scaling: RotaryScaling | None = None) -> Float[Tensor, " P"]:
    """Angles per position, largest first.

    Linear scaling divides all of them. Llama 3 divides those that turn less than LOW times in LENGTH positions, keeps
    those that turn more than HIGH times, and interpolates in between.
    """
    plain = base ** (-torch.arange(0, channels, 2, dtype=torch.float32) / channels)
    if scaling is None:
        return plain
    if scaling.kind == "linear":
        return plain / scaling.factor
    turned = scaling.length * plain / (2 * math.pi)
    kept = ((turned - scaling.low) / (scaling.high - scaling.low)).clamp(0, 1)
    return plain * (kept + (1 - kept) / scaling.factor)


def turns(frequency: Float[Tensor, " P"], length: int, first: int = 0) -> Turns:
    """Cosines and sines of the `length` positions from `first` on."""
    places = torch.arange(first, first + length, device=frequency.device, dtype=torch.float32)
    angles = torch.outer(places, frequency)
    return angles.cos(), angles.sin()


def turns_at(positions: Int[Tensor, "R T"], angles: Turns) -> Turns:
    """Cosines and sines of these positions, the same for all heads."""
    cos, sin = angles
    return cos[positions][:, None], sin[positions][:, None]


def rotate(x: Float[Tensor, "R H T C"], angles: Turns, heads: int = 1) -> Float[Tensor, "R H T C"]:
    """Rotate the channel pairs (c, c + C/2) by their position's angle; `heads` is the axis of the heads, 1 or 2."""
    cos, sin = angles
    if heads == 2:
        cos, sin = (table[:, None] if table.ndim == 2 else table.transpose(1, 2) for table in (cos, sin))
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


def qkv_rope(qkv: Float[Tensor, "R T A C"], angles: Turns, heads: int) -> Heads:
    """Rotated queries and keys, and values; the third axis of `qkv` holds their heads in this order.

    On a GPU it is one pass, for which `qkv` itself need not be kept.
    """
    shared = (qkv.shape[2] - heads) // 2
    if is_fused(qkv) and qkv.shape[3] % 2 == 0 and angles[0].ndim == 2:
        q, k, v = torch.ops.shoestring.qkv_rope(qkv, *angles, heads)
        return q, k, v
    q, k, v = qkv.split((heads, shared, shared), dim=2)
    return rotate(q, angles, heads=2), rotate(k, angles, heads=2), v


def _forward(qkv: Tensor, cos: Tensor, sin: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    parts = _parts(qkv, cos, sin, heads)
    _launch(qkv.contiguous(), parts, cos, sin, back=False)
    return parts


def _backward(q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    qkv = _joint(q, k, v)
    _launch(qkv, (q.contiguous(), k.contiguous(), v.contiguous()), cos, sin, back=True)
    return qkv


def _launch(qkv: Tensor, parts: tuple[Tensor, Tensor, Tensor], cos: Tensor, sin: Tensor, back: bool) -> None:
    from shoestring.models.kernels.fused_layers import qkv_rope_kernel  # imports Triton

    rows, length, _, channels = qkv.shape
    heads, shared, p = parts[0].shape[2], parts[1].shape[2], channels // 2
    n, padded = rows * length, 1 << (heads * p - 1).bit_length()
    pairs = padded if padded <= PAIRS or PAIRS % p else PAIRS
    with torch.cuda.device_of(qkv):
        qkv_rope_kernel[(-(-n // PLACES),)](
            qkv, *parts, cos.contiguous(), sin.contiguous(), n, length, heads, shared,
            BACK=back, P=p, PLACES=PLACES, PAIRS=pairs, num_warps=max(1, min(8, PLACES * pairs // 256)),
        )  # fmt: skip


def _parts(qkv: Tensor, _cos: Tensor, _sin: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    *places, together, channels = qkv.shape
    shared = (together - heads) // 2
    q, k, v = (qkv.new_empty(*places, each, channels) for each in (heads, shared, shared))
    return q, k, v


def _joint(q: Tensor, k: Tensor, v: Tensor, *_: Tensor) -> Tensor:
    *places, heads, channels = q.shape
    return q.new_empty(*places, heads + k.shape[2] + v.shape[2], channels)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:  # noqa: ARG001
    ctx.save_for_backward(inputs[1], inputs[2])


def _gradient(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor | None, ...]:
    return torch.ops.shoestring.qkv_rope_backward(q, k, v, *ctx.saved_tensors), None, None, None


register(
    "qkv_rope",
    Operator("(Tensor qkv, Tensor cos, Tensor sin, int heads) -> (Tensor, Tensor, Tensor)", _forward, _parts),
    Operator("(Tensor q, Tensor k, Tensor v, Tensor cos, Tensor sin) -> Tensor", _backward, _joint),
    _keep,
    _gradient,
)
