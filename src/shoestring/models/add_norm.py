"""The residual stream: a change is added, and the sum is normalised for whoever reads it next, in one pass.

Shapes: R rows, T positions, D width; N = R T.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from shoestring.models.blocks import RMSNorm
from shoestring.models.operators import HAS_TRITON, register

WIDEST = 8192
"""Channels that a program can hold."""


def add_norm(
    x: Float[Tensor, "R T D"], change: Float[Tensor, "R T D"], norm: RMSNorm
) -> tuple[Float[Tensor, "R T D"], Float[Tensor, "R T D"]]:
    """x + change, and its norm."""
    weight = norm.weight
    if HAS_TRITON and x.is_cuda and x.dtype in (torch.bfloat16, torch.float16) and x.shape[-1] <= WIDEST:
        added, normed, _ = torch.ops.shoestring.add_norm(x.flatten(0, -2), change.flatten(0, -2), weight, norm.eps)
        return added.view(x.shape), normed.view(x.shape)
    x = x + change
    return x, norm(x)


def _forward(x: Tensor, change: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    from shoestring.models import add_norm_kernels as kernels

    n, d = x.shape
    x, change = x.contiguous(), change.contiguous()
    total, normed, scales = torch.empty_like(x), torch.empty_like(x), torch.empty(n, device=x.device)
    block = _block(d)
    kernels.forward_kernel[(n,)](x, change, weight, total, normed, scales, d, eps, BLOCK=block, num_warps=_warps(block))
    return total, normed, scales


def _backward(
    to_total: Tensor, to_normed: Tensor, total: Tensor, weight: Tensor, scales: Tensor
) -> tuple[Tensor, Tensor]:
    from shoestring.models import add_norm_kernels as kernels

    n, d = total.shape
    block = _block(d)
    programs = min(n, 4096 // _warps(block))
    changes, sums = torch.empty_like(total), torch.empty(programs, d, device=total.device)
    kernels.backward_kernel[(programs,)](
        to_total, to_normed, total, weight, scales, changes, sums, n, d, BLOCK=block, num_warps=_warps(block)
    )
    return changes, sums.sum(0)


def _block(d: int) -> int:
    return max(128, 1 << (d - 1).bit_length())


def _warps(block: int) -> int:
    return max(1, min(16, block // 256))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    total, _, scales = output
    ctx.save_for_backward(total, inputs[2], scales)
    ctx.mark_non_differentiable(scales)
    ctx.set_materialize_grads(True)


def _gradient(ctx: Any, to_total: Tensor, to_normed: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    total, weight, scales = ctx.saved_tensors
    changes, to_weight = torch.ops.shoestring.add_norm_backward(
        to_total.contiguous(), to_normed.contiguous(), total, weight, scales
    )
    return changes, changes, to_weight.to(weight.dtype), None


register(
    "add_norm",
    "(Tensor x, Tensor change, Tensor weight, float eps) -> (Tensor, Tensor, Tensor)",
    _forward,
    lambda x, change, weight, eps: (  # noqa: ARG005
        torch.empty_like(x),
        torch.empty_like(x),
        x.new_empty(len(x), dtype=torch.float32),
    ),
    keep=_keep,
    gradient=_gradient,
)
register(
    "add_norm_backward",
    "(Tensor to_total, Tensor to_normed, Tensor total, Tensor weight, Tensor scales) -> (Tensor, Tensor)",
    _backward,
    lambda to_total, to_normed, total, weight, scales: (  # noqa: ARG005
        torch.empty_like(total),
        total.new_empty(total.shape[1], dtype=torch.float32),
    ),
)
