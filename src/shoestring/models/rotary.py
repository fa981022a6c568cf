"""Rotary positions: the channel pairs (c, c + C/2) of queries and keys are turned by angles that grow with position.

Shapes: R rows, H heads, T positions, C channels that are turned, P = C/2 pairs of them.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

Turns = tuple[Tensor, Tensor]
"""Cosine and sine of position × frequency, in float32: each (T, C/2), or (R, 1, T, C/2) where rows differ."""


def frequencies(channels: int, base: float, scaling: str | None = None) -> Float[Tensor, " P"]:
    """Angles a position, largest first. Scaling is "linear:FACTOR" or "llama3:FACTOR:LOW:HIGH:LENGTH".

    Linear divides all of them. Llama 3 divides those that turn less than LOW times in LENGTH positions, leaves those
    that turn more than HIGH times, and goes evenly from one to the other in between.
    """
    plain = base ** (-torch.arange(0, channels, 2, dtype=torch.float32) / channels)
    if scaling is None:
        return plain
    kind, *numbers = scaling.split(":")
    if kind == "linear":
        return plain / float(numbers[0])
    factor, low, high, length = map(float, numbers)
    turned = length * plain / (2 * math.pi)
    kept = ((turned - low) / (high - low)).clamp(0, 1)
    return plain * (kept + (1 - kept) / factor)


def turns(frequency: Float[Tensor, " P"], length: int) -> Turns:
    """Of the positions from 0 on."""
    angles = torch.outer(torch.arange(length, device=frequency.device, dtype=torch.float32), frequency)
    return angles.cos(), angles.sin()


def turns_at(positions: Int[Tensor, "R T"], angles: Turns) -> Turns:
    """Of these positions, the same for all heads."""
    cos, sin = angles
    return cos[positions][:, None], sin[positions][:, None]


def rotate(x: Float[Tensor, "R H T C"], angles: Turns, heads: int = 1) -> Float[Tensor, "R H T C"]:
    """Turn the channel pairs (c, c + C/2) by their position's angle; `heads` is the axis of the heads, 1 or 2."""
    cos, sin = angles
    if heads == 2:
        cos, sin = (table[:, None] if table.ndim == 2 else table.transpose(1, 2) for table in (cos, sin))
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)
