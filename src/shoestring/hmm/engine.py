"""Which E-step a device takes."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import torch

from shoestring.hmm.expect import Counts, expect


def engine(device: torch.device) -> Callable[..., Counts]:
    """The fused kernels on a GPU with Triton, plain products elsewhere; both are called as `expect` is."""
    if device.type == "cuda" and importlib.util.find_spec("triton"):
        from shoestring.hmm.fused import expect_fused  # imports Triton, which a CPU has no use for

        return expect_fused
    return expect
