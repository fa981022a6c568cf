"""Triton kernels as custom operators of torch, which `torch.compile` calls and does not trace."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

HAS_TRITON = importlib.util.find_spec("triton") is not None
HALF = (torch.bfloat16, torch.float16)
_LIBRARY = torch.library.Library("shoestring", "FRAGMENT")


def is_fused(x: Tensor) -> bool:
    """Whether kernels process a tensor like this: in half precision, on a GPU, with Triton."""
    return HAS_TRITON and x.is_cuda and x.dtype in HALF


def wide_product(first: Tensor, second: Tensor) -> Tensor:
    """A product of two matrices in half precision, in float32."""
    return torch.mm(first, second, out_dtype=torch.float32) if first.is_cuda else (first @ second).float()


class Operator(NamedTuple):
    schema: str
    compute: Callable[..., Any]
    outputs: Callable[..., Any]
    """Empty outputs, from which the compiler learns their shapes."""


def register(
    name: str, forward: Operator, backward: Operator, keep: Callable[..., None], gradient: Callable[..., Any]
) -> None:
    """`torch.ops.shoestring.NAME` and `NAME_backward`.

    `gradient` calls the latter with what `keep` saved: they are `backward` and `setup_context` of `register_autograd`.
    Torch's `custom_op` would do the same, but loads the compiler when an operator is first called, which takes seconds.
    """
    for full, each in ((name, forward), (f"{name}_backward", backward)):
        _LIBRARY.define(full + each.schema, tags=(torch.Tag.pt2_compliant_tag,))
        _LIBRARY.impl(full, each.compute, "CompositeExplicitAutograd")
        torch.library.register_fake(f"shoestring::{full}", each.outputs, lib=_LIBRARY)
    torch.library.register_autograd(f"shoestring::{name}", gradient, setup_context=keep, lib=_LIBRARY)
