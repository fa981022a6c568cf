"""Adapters of low rank for the experts of a mixture, whose matrices are one tensor.

The product of the two small matrices is added to all matrices once in a pass, as peft does for its `target_parameters`:
however a network computes its experts, it reads the sum. A pass keeps that sum for its gradients. Shapes: E experts, A
channels in, B channels out, K rank.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from shoestring.models.layers.adapter import NAME

_CHANGED = "changed_experts"
"""The attribute of a module that holds its changed matrices, during a pass."""


class ExpertAdapter(nn.Module):
    """The change of one matrix of every expert; zero at first."""

    def __init__(self, weight: Tensor, turned: bool, rank: int, scale: float, generator: torch.Generator | None):
        super().__init__()
        experts, b, a = weight.mT.shape if turned else weight.shape
        self.turned = turned
        """Whether the matrices have their inputs in rows."""
        like: dict[str, Any] = {"dtype": weight.dtype, "device": weight.device}
        self.a = nn.Parameter(torch.empty(experts, rank, a, **like))
        self.b = nn.Parameter(torch.zeros(experts, b, rank, **like))
        self.scale = scale
        bound = 1 / math.sqrt(a)
        with torch.no_grad():
            if not weight.is_meta:
                self.a.copy_(torch.rand(experts, rank, a, generator=generator).mul_(2 * bound).sub_(bound))

    def forward(self, weight: Float[Tensor, "E B A"]) -> Float[Tensor, "E B A"]:
        """The changed matrices."""
        left, right = (self.a.mT, self.b.mT) if self.turned else (self.b, self.a)
        with torch.autocast(weight.device.type, enabled=False):
            return torch.baddbmm(weight, left, right, alpha=self.scale)

    def change(self) -> Tensor:
        """What is added to the matrices."""
        found = torch.bmm(self.b.double(), self.a.double()) * self.scale
        return found.mT if self.turned else found


def expert_weights(module: nn.Module) -> list[str]:
    """The names of the parameters that hold a matrix for each expert, in the order of the module."""
    experts = getattr(module, "num_experts", None)
    named = module.named_parameters(recurse=False)
    return [name for name, weight in named if weight.ndim == 3 and weight.size(0) == experts]


def expert_adapters(module: nn.Module) -> dict[str, ExpertAdapter]:
    """The adapters of a module by the parameter that they change; empty: it has none."""
    found = getattr(module, NAME, None)
    if not isinstance(found, nn.ModuleDict):
        return {}
    named = dict(found.named_children())
    return {name: each for name in expert_weights(module) if isinstance(each := named.get(name), ExpertAdapter)}


def add_expert_adapter(module: nn.Module, name: str, rank: int, scale: float, generator: torch.Generator) -> None:
    """Give the parameter `name` of a module an adapter, which is added to it wherever the module is called."""
    turned = bool(getattr(module, "is_transposed", False))
    weight = module.get_parameter(name)
    if not isinstance(getattr(module, NAME, None), nn.ModuleDict):
        setattr(module, NAME, nn.ModuleDict())
        kind: Any = type(module)
        module.__class__ = _adapted(kind, tuple(expert_weights(module)))
    module.get_submodule(NAME).add_module(name, ExpertAdapter(weight, turned, rank, scale, generator))


@cache
def _adapted(kind: Any, names: tuple[str, ...]) -> type[nn.Module]:
    """The class of modules with adapters: during a pass its parameters `names` are read with their changes."""

    def forward(self: Any, *given: Any, **named: Any) -> Any:
        changed = {name: adapter(self._parameters[name]) for name, adapter in self.lora.items()}
        setattr(self, _CHANGED, changed)
        try:
            return kind.forward(self, *given, **named)
        finally:
            setattr(self, _CHANGED, None)

    def reader(name: str) -> property:
        def read(self: Any) -> Tensor:
            found: Tensor = (getattr(self, _CHANGED) or {}).get(name, self._parameters[name])
            return found

        return property(read)

    return type(kind.__name__, (kind,), {"forward": forward, _CHANGED: None} | {name: reader(name) for name in names})


@torch.no_grad()
def merge_experts(module: nn.Module) -> None:
    """Add the adapters to the matrices of a module, and remove them."""
    found = expert_adapters(module)
    for name, adapter in found.items():
        weight = module.get_parameter(name)
        weight.copy_(weight.double() + adapter.change())
    module.__class__ = type(module).__mro__[1]
    delattr(module, NAME)
