"""Triton kernels as custom operators of torch, which `torch.compile` calls and does not trace."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

HAS_TRITON = importlib.util.find_spec("triton") is not None
HALF = (torch.bfloat16, torch.float16)


def is_fused(x: Tensor) -> bool:
    """Whether kernels process a tensor like this: in half precision, on a GPU, with Triton."""
    return HAS_TRITON and x.is_cuda and x.dtype in HALF


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
    """
    made = [
        torch.library.custom_op(f"shoestring::{full}", each.compute, mutates_args=(), schema=each.schema)
        for full, each in ((name, forward), (f"{name}_backward", backward))
    ]
    for operator, each in zip(made, (forward, backward), strict=True):
        operator.register_fake(each.outputs)
    made[0].register_autograd(gradient, setup_context=keep)
