"""The second half of a SwiGLU: the gate, and the product that follows it. What the gate gives is not kept.

On a GPU the backward pass makes it again in the kernel that needs the same numbers anyway: that costs one write, and
saves a third of a block's memory. Shapes: N positions, F channels, D width.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from shoestring.models.linear import keep_both, takes, weight_gradient
from shoestring.models.operators import HAS_TRITON, register


def gated_linear(
    pairs: Float[Tensor, "*N FF"], weight: Float[Tensor, "D F"], bias: Float[Tensor, " D"] | None = None
) -> Float[Tensor, "*N D"]:
    """(silu(gate) · values) times the weight, where `pairs` holds the gate's channels first, then the values'."""
    if HAS_TRITON and takes(pairs, weight):
        made: Tensor = torch.ops.shoestring.gated_linear(pairs.flatten(0, -2), weight)[0]
        made = made.view(*pairs.shape[:-1], -1)
        return made if bias is None else made + bias.to(made.dtype)
    gate, values = pairs.chunk(2, dim=-1)
    return F.linear(F.silu(gate) * values, weight, bias)


def _forward(pairs: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The product, and a copy of the weight in its type."""
    from shoestring.models import gated_kernels as kernels

    (n, ff), f = pairs.shape, pairs.shape[1] // 2
    assert ff == 2 * f and pairs.is_contiguous()
    gated = torch.empty(n, f, dtype=pairs.dtype, device=pairs.device)
    _over(kernels.gated_kernel, n, f, pairs, gated)
    weight = weight.to(pairs.dtype, copy=True)
    return gated @ weight.T, weight


def _backward(gradient: Tensor, pairs: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    from shoestring.models import gated_kernels as kernels

    n, f = len(pairs), pairs.shape[1] // 2
    back = gradient @ weight  # N F, and then what the gate gave
    changes = torch.empty_like(pairs)
    _over(kernels.gated_backward_kernel, n, f, back, pairs, changes)
    return changes, weight_gradient(gradient, back)


def _over(kernel: Any, n: int, f: int, *tensors: Tensor) -> None:
    """Start it on all channels of all positions."""
    from shoestring.models.gated_kernels import COLUMNS

    block = min(COLUMNS, max(128, 1 << (f - 1).bit_length()))
    kernel[(n, -(-f // block))](*tensors, f, BLOCK=block, num_warps=max(1, block // 512))


def _gradient(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    changes: tuple[Tensor, Tensor] = torch.ops.shoestring.gated_linear_backward(
        gradient.contiguous(), *ctx.saved_tensors
    )
    return changes


register(
    "gated_linear",
    "(Tensor pairs, Tensor weight) -> (Tensor, Tensor)",
    _forward,
    lambda pairs, weight: (pairs.new_empty(len(pairs), len(weight)), torch.empty_like(weight, dtype=pairs.dtype)),
    keep=keep_both,
    gradient=_gradient,
)
register(
    "gated_linear_backward",
    "(Tensor gradient, Tensor pairs, Tensor weight) -> (Tensor, Tensor)",
    _backward,
    lambda gradient, pairs, weight: (  # noqa: ARG005
        torch.empty_like(pairs),
        torch.empty_like(weight, dtype=torch.float32),
    ),
)
