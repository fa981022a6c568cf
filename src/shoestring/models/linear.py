"""Products with weights in float32, computed in half precision: the gradient of a weight is float32 at once.

Autocast would round it to half precision, and turn it back in a pass of its own. Shapes: N positions, A channels in, B
channels out.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from shoestring.models.operators import register


def linear(x: Float[Tensor, "*N A"], layer: nn.Linear) -> Float[Tensor, "*N B"]:
    """What the layer gives."""
    if not takes(x, layer.weight):
        plain: Tensor = layer(x)
        return plain
    made: Tensor = torch.ops.shoestring.linear(x.flatten(0, -2), layer.weight)[0]
    made = made.view(*x.shape[:-1], -1)
    return made if layer.bias is None else made + layer.bias.to(made.dtype)


def weight_gradient(outer: Float[Tensor, "N B"], x: Float[Tensor, "N A"]) -> Float[Tensor, "B A"]:
    """Of a weight that x was multiplied with, in float32."""
    return torch.mm(outer.T, x, out_dtype=torch.float32) if x.is_cuda else (outer.T @ x).float()


def takes(x: Tensor, weight: Tensor) -> bool:
    """Whether the operators are for these."""
    return x.is_cuda and x.dtype in (torch.bfloat16, torch.float16) and weight.dtype == torch.float32


def keep_both(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
    """What was multiplied, and the copy of the weight that it was multiplied with: the second output."""
    ctx.save_for_backward(inputs[0], output[1])
    ctx.mark_non_differentiable(output[1])


def _forward(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The product, and a copy of the weight in its type."""
    weight = weight.to(x.dtype, copy=True)
    return x @ weight.T, weight


def _backward(outer: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return outer @ weight, weight_gradient(outer, x)


def _gradient(ctx: Any, outer: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    changes: tuple[Tensor, Tensor] = torch.ops.shoestring.linear_backward(outer.contiguous(), *ctx.saved_tensors)
    return changes


register(
    "linear",
    "(Tensor x, Tensor weight) -> (Tensor, Tensor)",
    _forward,
    lambda x, weight: (x.new_empty(len(x), len(weight)), torch.empty_like(weight, dtype=x.dtype)),
    keep=keep_both,
    gradient=_gradient,
)
register(
    "linear_backward",
    "(Tensor outer, Tensor x, Tensor weight) -> (Tensor, Tensor)",
    _backward,
    lambda outer, x, weight: (torch.empty_like(x), torch.empty_like(weight, dtype=torch.float32)),  # noqa: ARG005
)
