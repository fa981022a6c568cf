"""The precision of products, and which kernel attention takes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

ATTENTION = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""The fastest first; the first one that applies is used."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def has_bf16(device: torch.device) -> bool:
    """Whether a GPU has products in bf16: from Ampere on; T4 and V100 only emulate them."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 0)


def settle_products(dtype: torch.dtype) -> None:
    """Let torch find out whether this CPU has products of this type, before the first of them counts.

    Where it has none, the first one warns, with the stack of torch, and switches oneDNN off for the whole process.
    Products before it would have other last bits than those after it, and so would a run that resumes.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small = torch.ones(32, 32, dtype=dtype)  # smaller ones never reach oneDNN
        F.linear(small @ small, small, small[0])


@contextmanager
def passing(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """The context of a pass: the type of its products, and the order of kernels for attention."""
    half = dtype != torch.float32
    kernels = sdpa_kernel(ATTENTION, set_priority=True) if device.type == "cuda" else nullcontext()
    with torch.autocast(device.type, dtype=dtype if half else None, enabled=half), kernels:
        yield
