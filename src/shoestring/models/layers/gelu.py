"""GELU, with a backward pass for ARM: oneDNN, which torch calls there, has only scalar code for its gradient."""

from __future__ import annotations

import math
import platform
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

Approximation = Literal["none", "tanh"]
_ARM = platform.machine() in ("aarch64", "arm64")
_SLOPE, _CUBIC = math.sqrt(8 / math.pi), 0.044715
"""x σ(_SLOPE (x + _CUBIC x³)) is GELU's approximation by tanh."""


def gelu(x: Float[Tensor, "*N F"], approximate: Approximation = "none") -> Float[Tensor, "*N F"]:
    """What `F.gelu` returns."""
    if not (_ARM and x.device.type == "cpu" and x.dtype == torch.float32) or torch.compiler.is_compiling():
        return F.gelu(x, approximate=approximate)
    found: Tensor = _Gelu.apply(x, approximate)
    return found


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, approximate: Approximation) -> Tensor:
        ctx.save_for_backward(x)
        ctx.approximate = approximate
        return F.gelu(x, approximate=approximate)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return (_slope if ctx.approximate == "none" else _slope_of_tanh)(x).mul_(outer), None


def _slope(x: Tensor) -> Tensor:
    """Φ(x) + x φ(x)."""
    density = x.square().mul_(-0.5).exp_()
    below = torch.erf(x * math.sqrt(0.5)).add_(1).mul_(0.5)
    return below.addcmul_(x, density, value=1 / math.sqrt(2 * math.pi))


def _slope_of_tanh(x: Tensor) -> Tensor:
    """s + x s (1 − s) times the derivative of what s is the sigmoid of."""
    square = x.square()
    share = (square * (_SLOPE * _CUBIC)).add_(_SLOPE).mul_(x).sigmoid_()
    inner = square.mul_(3 * _SLOPE * _CUBIC).add_(_SLOPE).mul_(x)
    return inner.addcmul_(inner, share, value=-1).add_(1).mul_(share)
