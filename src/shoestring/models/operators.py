"""Triton kernels as operators of torch, which a compiled model calls as they are."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch

HAS_TRITON = importlib.util.find_spec("triton") is not None


def register(
    name: str,
    schema: str,
    forward: Callable[..., Any],
    shapes: Callable[..., Any],
    *,
    keep: Callable[..., None] | None = None,
    gradient: Callable[..., Any] | None = None,
) -> None:
    """`torch.ops.shoestring.NAME`; `shapes` makes empty outputs for the compiler.

    With a gradient, `keep` saves what that needs, as `setup_context` of torch.library's `register_autograd`.
    """
    operator = torch.library.custom_op(f"shoestring::{name}", forward, mutates_args=(), schema=schema)
    operator.register_fake(shapes)
    if gradient is not None:
        operator.register_autograd(gradient, setup_context=keep)
