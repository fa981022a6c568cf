"""Which E-step a device takes."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from shoestring.hmm.expect import Counts, expect, free_bytes


def engine(device: torch.device) -> Callable[..., Counts]:
    """The fused kernels on a GPU with Triton, plain products elsewhere; both are called as `expect` is."""
    if device.type == "cuda" and importlib.util.find_spec("triton"):
        from shoestring.hmm.fused import expect_fused  # imports Triton, which a CPU has no use for

        return expect_fused
    return expect


def engine_of_updates(device: torch.device, rows: int | None = None) -> Callable[..., Counts]:
    """The same for one update after the other, `rows` at a time. A GPU is asked once, not each time, how much memory is
    free, and replays what it did for the update before. A CPU knows better itself how many rows to take."""
    found = engine(device)
    if device.type == "cpu":
        return found
    options: dict[str, Any] = {"chunk": rows, "limit_bytes": free_bytes(device) // 2}
    if found is not expect:
        from shoestring.hmm.replay import Recorder  # imports Triton

        options["count"] = Recorder()
    return partial(found, **options)
