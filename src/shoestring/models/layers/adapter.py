"""Adapters of low rank: a product of two small matrices, added to the product of a layer.

On a GPU in half precision the two are added to the layer's matrix once in a pass, when it is rounded anyway, in place
of two more products of few columns. Shapes: N positions, A channels in, B channels out, K rank.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from shoestring.models.layers.operators import HALF, Operator, register, wide_product

NAME = "lora"
"""The module of a layer that holds its adapter."""
MOST_CHANNELS = 1024
"""AB / (A + B) up to which the gradient of the whole matrix should take no longer than four products of K columns,
which read the inputs and the gradients of outputs twice: by bytes and FLOPs of an H200, not by timing."""


class Adapter(nn.Module):
    """The layer's change; zero at first."""

    def __init__(self, layer: nn.Module, rank: int, scale: float, generator: torch.Generator | None):
        super().__init__()
        weight = getattr(layer, "weight")  # noqa: B009 (a module's attributes are typed as tensors or modules)
        self.turned = is_turned(layer)
        """Whether the layer's matrix has its inputs in rows, as GPT-2's in transformers."""
        b, a = weight.shape[::-1] if self.turned else weight.shape
        like: dict[str, Any] = {"dtype": weight.dtype, "device": weight.device}
        self.a = nn.Parameter(torch.empty(rank, a, **like))
        self.b = nn.Parameter(torch.zeros(b, rank, **like))
        self.scale = scale
        bound = 1 / math.sqrt(a)  # as of a new layer with so many inputs
        with torch.no_grad():
            if not weight.is_meta:
                self.a.copy_(torch.rand(rank, a, generator=generator).mul_(2 * bound).sub_(bound))

    def forward(self, x: Float[Tensor, "*N A"]) -> Float[Tensor, "*N B"]:
        return F.linear(F.linear(x, self.a), self.b) * self.scale

    def change(self) -> Tensor:
        """What is added to the layer's matrix."""
        found = (self.b.double() @ self.a.double()) * self.scale
        return found.T if self.turned else found


def is_turned(layer: nn.Module) -> bool:
    return type(layer).__name__ == "Conv1D"


def adapter_of(layer: nn.Module) -> Adapter | None:
    found = getattr(layer, NAME, None)
    return found if isinstance(found, Adapter) else None


def add_adapter(layer: nn.Module, adapter: Adapter) -> None:
    """Give a layer an adapter, which is added to its output wherever it is called."""
    setattr(layer, NAME, adapter)
    kind: Any = type(layer)
    layer.__class__ = _adapted(kind)


@cache
def _adapted(kind: Any) -> type[nn.Module]:
    """The class of layers with an adapter: one for all of them, so that they share compiled code."""

    def forward(self: Any, x: Tensor) -> Tensor:
        if (half := _half(x)) is not None and self.weight.dtype == torch.float32:
            return adapted_linear(x.to(half), self)
        found: Tensor = kind.forward(self, x) + self.lora(x)
        return found

    return type(kind.__name__, (kind,), {"forward": forward})


def _half(x: Tensor) -> torch.dtype | None:
    """The precision of products of x on a GPU, if it is half."""
    if not x.is_cuda:
        return None
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
    return dtype if dtype in HALF else None


def adapted_linear(x: Float[Tensor, "*N A"], layer: Any) -> Float[Tensor, "*N B"]:
    """The output of a layer with an adapter, for x in half precision."""
    adapter: Adapter = layer.lora
    weight = layer.weight.T if adapter.turned else layer.weight
    parts = weight, adapter.a, adapter.b, adapter.scale
    product: Tensor = torch.ops.shoestring.adapted_linear(x.flatten(0, -2), *parts)[0].view(*x.shape[:-1], -1)
    return product if layer.bias is None else product + layer.bias.to(product.dtype)


@torch.no_grad()
def merge_adapter(layer: nn.Module) -> None:
    """Add the adapter to the layer's matrix, and remove it."""
    adapter = adapter_of(layer)
    assert adapter is not None, "the layer has one"
    weight = getattr(layer, "weight")  # noqa: B009
    weight.copy_(weight.double() + adapter.change())
    layer.__class__ = type(layer).__mro__[1]
    delattr(layer, NAME)


def _product(x: Tensor, weight: Tensor, a: Tensor, b: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    changed = torch.addmm(weight, b, a, alpha=scale).to(x.dtype)
    return x @ changed.T, changed


def _product_backward(
    outer: Tensor, x: Tensor, changed: Tensor, a: Tensor, b: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, a and b. The matrix itself is frozen."""
    back, (rows, columns) = outer @ changed, changed.shape
    if rows * columns <= MOST_CHANNELS * (rows + columns):
        whole = wide_product(outer.T, x)
        return back, scale * (b.T @ whole), scale * (whole @ a.T)
    into, out_of = x @ a.to(x.dtype).T, outer @ b.to(x.dtype)
    return back, scale * wide_product(out_of.T, x), scale * wide_product(outer.T, into)


def _register() -> None:
    def keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, Tensor, float], output: tuple[Tensor, Tensor]) -> None:
        x, _, a, b, ctx.scale = inputs
        ctx.save_for_backward(x, output[1], a, b)
        ctx.mark_non_differentiable(output[1])

    def gradient(ctx: Any, outer: Tensor, _: Tensor) -> Any:
        found = torch.ops.shoestring.adapted_linear_backward(outer.contiguous(), *ctx.saved_tensors, ctx.scale)
        return found[0], None, found[1], found[2], None

    def outputs(x: Tensor, weight: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        return x.new_empty(len(x), len(weight)), x.new_empty(weight.shape)

    def gradients(_: Tensor, x: Tensor, __: Tensor, a: Tensor, b: Tensor, ___: float) -> tuple[Tensor, ...]:
        return torch.empty_like(x), torch.empty_like(a), torch.empty_like(b)

    some = "Tensor a, Tensor b, float scale"
    register(
        "adapted_linear",
        Operator(f"(Tensor x, Tensor weight, {some}) -> (Tensor, Tensor)", _product, outputs),
        Operator(
            f"(Tensor outer, Tensor x, Tensor changed, {some}) -> (Tensor, Tensor, Tensor)",
            _product_backward,
            gradients,
        ),
        keep,
        gradient,
    )


_register()
