"""The residual stream: add a change to it and normalise the sum, in one pass on a GPU.

Shapes: R rows, T positions, D width; N = R T.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from shoestring.models.layers.blocks import RMSNorm
from shoestring.models.layers.operators import Operator, is_fused, register

WIDEST = 8192
"""Most channels that a program can hold."""


def add_norm(
    x: Float[Tensor, "R T D"], change: Float[Tensor, "R T D"], norm: RMSNorm
) -> tuple[Float[Tensor, "R T D"], Float[Tensor, "R T D"]]:
    """x + change, and its norm."""
    if is_fused(x) and x.shape[-1] <= WIDEST:
        flat = x.flatten(0, -2), change.flatten(0, -2)
        added, normed, _ = torch.ops.shoestring.add_norm(*flat, norm.weight, norm.eps)
        return added.view(x.shape), normed.view(x.shape)
    x = x + change
    return x, norm(x)


def _forward(x: Tensor, change: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    from shoestring.models.kernels.fused_layers import add_norm_kernel  # imports Triton

    (n, d), x = x.shape, x.contiguous()
    found, block = _outputs(x), block_of(d)
    add_norm_kernel[(n,)](x, change.contiguous(), weight, *found, d, eps, BLOCK=block, num_warps=warps_of(block))
    return found


def _backward(
    to_total: Tensor, to_normed: Tensor, total: Tensor, weight: Tensor, scales: Tensor
) -> tuple[Tensor, Tensor]:
    from shoestring.models.kernels.fused_layers import add_norm_backward_kernel  # imports Triton

    n, d = total.shape
    block = block_of(d)
    programs = min(n, 4096 // warps_of(block))
    changes, sums = torch.empty_like(total), torch.empty(programs, d, device=total.device)
    add_norm_backward_kernel[(programs,)](
        to_total, to_normed, total, weight, scales, changes, sums, n, d, BLOCK=block, num_warps=warps_of(block)
    )
    return changes, sums.sum(0)


def block_of(d: int) -> int:
    """The channels of a program that holds d of them."""
    return max(128, 1 << (d - 1).bit_length())


def warps_of(block: int) -> int:
    """Its warps."""
    return max(1, min(16, block // 256))


def _outputs(x: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The sum, its norm, and the factor of every position in the latter."""
    return torch.empty_like(x), torch.empty_like(x), x.new_empty(len(x), dtype=torch.float32)


def _gradients(_to_total: Tensor, _to_normed: Tensor, total: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(total), total.new_empty(total.shape[1], dtype=torch.float32)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    total, _, scales = output
    ctx.save_for_backward(total, inputs[2], scales)
    ctx.mark_non_differentiable(scales)
    ctx.set_materialize_grads(True)


def _gradient(ctx: Any, to_total: Tensor, to_normed: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    outer, weight = (to_total.contiguous(), to_normed.contiguous()), ctx.saved_tensors[1]
    changes, to_weight = torch.ops.shoestring.add_norm_backward(*outer, *ctx.saved_tensors)
    return changes, changes, to_weight.to(weight.dtype), None


register(
    "add_norm",
    Operator("(Tensor x, Tensor change, Tensor weight, float eps) -> (Tensor, Tensor, Tensor)", _forward, _outputs),
    Operator(
        "(Tensor to_total, Tensor to_normed, Tensor total, Tensor weight, Tensor scales) -> (Tensor, Tensor)",
        _backward,
        _gradients,
    ),
    _keep,
    _gradient,
)
