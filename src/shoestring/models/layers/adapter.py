"""Adapters of low rank: a product of two small matrices, added to the product of a layer.

Shapes: N positions, A channels in, B channels out, K rank.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

NAME = "lora"
"""The module of a layer that holds its adapter."""


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
    handle = layer.register_forward_hook(lambda _, inputs, output: output + adapter(inputs[0]))
    layer.__dict__["_adapter_hook"] = handle


@torch.no_grad()
def merge_adapter(layer: nn.Module) -> None:
    """Add the adapter to the layer's matrix, and remove it."""
    adapter = adapter_of(layer)
    assert adapter is not None, "the layer has one"
    weight = getattr(layer, "weight")  # noqa: B009
    weight.copy_(weight.double() + adapter.change())
    layer.__dict__.pop("_adapter_hook").remove()
    delattr(layer, NAME)
