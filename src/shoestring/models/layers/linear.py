"""Products with float32 weights in half precision, alone or behind the gate of a SwiGLU, and float32 weight gradients.

Autocast would round the gradient of a weight to half precision, and convert it back in a separate pass. The output of
the gate is not kept: the backward kernel, which needs the same numbers anyway, computes it again. That costs one write,
and saves a third of a block's memory. Shapes: N positions, A channels in, B channels out, F hidden channels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from shoestring.models.layers.adapter import adapted_linear, adapter_of
from shoestring.models.layers.operators import HALF, HAS_TRITON, Operator, register, wide_product

Product = tuple[Tensor, Tensor]
"""A product, and a copy of the weight in its type; backward, the gradients of input and weight."""


def linear(x: Float[Tensor, "*N A"], layer: nn.Linear) -> Float[Tensor, "*N B"]:
    """The output of the layer."""
    if not _has_operator(x, layer.weight):
        plain: Tensor = layer(x)
        return plain
    if adapter_of(layer) is not None:
        return adapted_linear(x, layer)
    product = torch.ops.shoestring.linear(x.flatten(0, -2), layer.weight)[0]
    return _add_bias(product.view(*x.shape[:-1], -1), layer.bias)


def swiglu_layer(pairs: Float[Tensor, "*N FF"], layer: nn.Linear) -> Float[Tensor, "*N B"]:
    """As `swiglu_linear` with the matrix of a layer, and its adapter."""
    if adapter_of(layer) is None:
        return swiglu_linear(pairs, layer.weight, layer.bias)
    gate, values = pairs.chunk(2, dim=-1)
    return linear(F.silu(gate) * values, layer)


def swiglu_linear(
    pairs: Float[Tensor, "*N FF"], weight: Float[Tensor, "B F"], bias: Float[Tensor, " B"] | None = None
) -> Float[Tensor, "*N B"]:
    """(silu(gate) · values) times the weight, where `pairs` holds the gate's channels first, then the values'."""
    if not (HAS_TRITON and _has_operator(pairs, weight)):
        gate, values = pairs.chunk(2, dim=-1)
        return F.linear(F.silu(gate) * values, weight, bias)
    product = torch.ops.shoestring.swiglu_linear(pairs.flatten(0, -2), weight)[0]
    return _add_bias(product.view(*pairs.shape[:-1], -1), bias)


def _has_operator(x: Tensor, weight: Tensor) -> bool:
    return x.is_cuda and x.dtype in HALF and weight.dtype == torch.float32


def _add_bias(product: Tensor, bias: Tensor | None) -> Tensor:
    return product if bias is None else product + bias.to(product.dtype)


def _linear(x: Tensor, weight: Tensor) -> Product:
    weight = weight.to(x.dtype, copy=True)
    return x @ weight.T, weight


def _linear_backward(outer: Tensor, x: Tensor, weight: Tensor) -> Product:
    return outer @ weight, wide_product(outer.T, x)


def _swiglu(pairs: Tensor, weight: Tensor) -> Product:
    from shoestring.models.kernels.fused_layers import gated_kernel  # imports Triton

    (n, ff), f = pairs.shape, pairs.shape[1] // 2
    assert ff == 2 * f and pairs.is_contiguous()
    gated = torch.empty(n, f, dtype=pairs.dtype, device=pairs.device)
    _launch(gated_kernel, n, f, pairs, gated)
    weight = weight.to(pairs.dtype, copy=True)
    return gated @ weight.T, weight


def _swiglu_backward(outer: Tensor, pairs: Tensor, weight: Tensor) -> Product:
    from shoestring.models.kernels.fused_layers import gated_backward_kernel  # imports Triton

    n, f = len(pairs), pairs.shape[1] // 2
    back = outer @ weight  # N F; the kernel replaces it by the output of the gate
    changes = torch.empty_like(pairs)
    _launch(gated_backward_kernel, n, f, back, pairs, changes)
    return changes, wide_product(outer.T, back)


def _launch(kernel: Any, n: int, f: int, *tensors: Tensor) -> None:
    """Run a kernel over all channels of all positions."""
    from shoestring.models.kernels.fused_layers import COLUMNS

    block = min(COLUMNS, max(128, 1 << (f - 1).bit_length()))
    kernel[(n, -(-f // block))](*tensors, f, BLOCK=block, num_warps=max(1, block // 512))


def _register(name: str, forward: Callable[..., Product], backward: Callable[..., Product]) -> None:
    def keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Product) -> None:
        ctx.save_for_backward(inputs[0], output[1])
        ctx.mark_non_differentiable(output[1])

    def gradient(ctx: Any, outer: Tensor, _: Tensor) -> Any:
        if name == "linear" and not ctx.needs_input_grad[1]:  # a frozen matrix
            return outer @ ctx.saved_tensors[1], None
        return getattr(torch.ops.shoestring, f"{name}_backward")(outer.contiguous(), *ctx.saved_tensors)

    def outputs(x: Tensor, weight: Tensor) -> Product:
        return x.new_empty(len(x), len(weight)), torch.empty_like(weight, dtype=x.dtype)

    def gradients(_: Tensor, x: Tensor, weight: Tensor) -> Product:
        return torch.empty_like(x), torch.empty_like(weight, dtype=torch.float32)

    register(
        name,
        Operator("(Tensor x, Tensor weight) -> (Tensor, Tensor)", forward, outputs),
        Operator("(Tensor outer, Tensor x, Tensor weight) -> (Tensor, Tensor)", backward, gradients),
        keep,
        gradient,
    )


_register("linear", _linear, _linear_backward)
_register("swiglu_linear", _swiglu, _swiglu_backward)
