"""The residual stream of a Swift: factors of the stream and of the first embedding, then the norm; one pass on a GPU.

Shapes: R rows, T positions, D width; N = R T.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from shoestring.models.layers.add_norm import WIDEST, add_norm, block_of, warps_of
from shoestring.models.layers.blocks import RMSNorm
from shoestring.models.layers.operators import Operator, is_fused, register


def scaled_add_norm(
    x: Float[Tensor, "R T D"],
    change: Float[Tensor, "R T D"],
    first: Float[Tensor, "R T D"],
    factors: Float[Tensor, " 2"],
    norm: RMSNorm,
) -> tuple[Float[Tensor, "R T D"], Float[Tensor, "R T D"]]:
    """a (x + change) + b `first` with the two factors, and its norm.

    The fused form keeps x + change for the backward pass, and not the first output.
    """
    if is_fused(x) and x.shape[-1] <= WIDEST:
        flat = [each.flatten(0, -2) for each in (x, change, first)]
        total, normed, _, _ = torch.ops.shoestring.scaled_add_norm(*flat, factors, norm.weight, norm.eps)
        return total.view(x.shape), normed.view(x.shape)
    of_stream, of_first = factors
    return add_norm(of_stream * (x + change), of_first * first, norm)


def _forward(
    x: Tensor, change: Tensor, first: Tensor, factors: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from shoestring.models.kernels.swift_layers import scaled_add_norm_kernel  # imports Triton

    (n, d), x = x.shape, x.contiguous()
    found, block = _outputs(x), block_of(d)
    others = change.contiguous(), first.contiguous(), factors, weight
    scaled_add_norm_kernel[(n,)](x, *others, *found, d, eps, BLOCK=block, num_warps=warps_of(block))
    return found


def _backward(
    to_total: Tensor, to_normed: Tensor, sums: Tensor, scales: Tensor, first: Tensor, factors: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from shoestring.models.kernels.swift_layers import scaled_add_norm_backward_kernel  # imports Triton

    (n, d), block = sums.shape, block_of(sums.shape[1])
    programs = min(n, 4096 // warps_of(block))
    to_sum, to_first = torch.empty_like(sums), torch.empty_like(sums)
    to_weight, to_factors = (torch.empty(programs, numbers, device=sums.device) for numbers in (d, 2))
    scaled_add_norm_backward_kernel[(programs,)](
        to_total, to_normed, sums, first.contiguous(), factors, weight, scales, to_sum, to_first, to_weight, to_factors,
        n, d, BLOCK=block, num_warps=warps_of(block),
    )  # fmt: skip
    return to_sum, to_first, to_factors.sum(0), to_weight.sum(0)


def _outputs(x: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The stream, its norm, x + change, and the factor of every position in the norm."""
    scales = x.new_empty(len(x), dtype=torch.float32)
    return torch.empty_like(x), torch.empty_like(x), torch.empty_like(x), scales


def _gradients(_to_total: Tensor, _to_normed: Tensor, sums: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
    wide = sums.new_empty(2 + sums.shape[1], dtype=torch.float32)
    return torch.empty_like(sums), torch.empty_like(sums), wide[:2].clone(), wide[2:].clone()


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, _, first, factors, weight, _ = inputs
    _, _, sums, scales = output
    ctx.save_for_backward(sums, scales, first, factors, weight)
    ctx.mark_non_differentiable(sums, scales)
    ctx.set_materialize_grads(True)


def _gradient(ctx: Any, to_total: Tensor, to_normed: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    outer, (*_, factors, weight) = (to_total.contiguous(), to_normed.contiguous()), ctx.saved_tensors
    to_sum, to_first, to_factors, to_weight = torch.ops.shoestring.scaled_add_norm_backward(*outer, *ctx.saved_tensors)
    return to_sum, to_sum, to_first, to_factors.to(factors.dtype), to_weight.to(weight.dtype), None


register(
    "scaled_add_norm",
    Operator(
        "(Tensor x, Tensor change, Tensor first, Tensor factors, Tensor weight, float eps)"
        " -> (Tensor, Tensor, Tensor, Tensor)",
        _forward,
        _outputs,
    ),
    Operator(
        "(Tensor to_total, Tensor to_normed, Tensor sums, Tensor scales, Tensor first, Tensor factors, Tensor weight)"
        " -> (Tensor, Tensor, Tensor, Tensor)",
        _backward,
        _gradients,
    ),
    _keep,
    _gradient,
)
