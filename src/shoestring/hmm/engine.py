"""The E-step for a device."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from shoestring.hmm.expect import Counts, expect, free_bytes


def engine(device: torch.device) -> Callable[..., Counts]:
    """The fused kernels on a GPU with Triton and bf16, plain products elsewhere; both are called as `expect` is."""
    has_bf16 = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    if has_bf16 and importlib.util.find_spec("triton"):
        from shoestring.hmm.fused import expect_fused  # imports Triton, which a CPU does not need

        return expect_fused
    return expect


def engine_of_updates(device: torch.device, rows: int | None = None, share: float = 1.0) -> Callable[..., Counts]:
    """The engine for many updates, in chunks of `rows` sequences, which are a `share` of the planned ones.

    A GPU's free memory is read only once, and its kernels are recorded and replayed. On a CPU, `expect` chooses its own
    chunks, within that share of the memory that it would use.
    """
    chosen = engine(device)
    if device.type == "cpu":
        return chosen if share == 1 else partial(chosen, limit_bytes=int(share * (free_bytes(device) // 2)))
    options: dict[str, Any] = {"chunk": rows, "limit_bytes": free_bytes(device) // 2}
    if chosen is not expect:
        from shoestring.hmm.fused import Recorder  # imports Triton

        options["count"] = Recorder()
    return partial(chosen, **options)
