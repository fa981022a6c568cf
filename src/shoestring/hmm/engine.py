"""The E-step for a device."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from shoestring.hmm.expect import Counts, expect, fixed_bytes, free_bytes, layout, sequence_bytes
from shoestring.hmm.parameters import HmmMemoryError, Parameters

CPU_BYTES = 2**32
"""Most memory for the sequences of a chunk on a CPU."""


def engine(device: torch.device) -> Callable[..., Counts]:
    """The fused kernels on a GPU with Triton and bf16, plain products elsewhere; both are called as `expect` is."""
    has_bf16 = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    if has_bf16 and importlib.util.find_spec("triton"):
        from shoestring.hmm.fused import expect_fused  # imports Triton, which a CPU does not need

        return expect_fused
    return expect


def engine_of_updates(device: torch.device, rows: int | None = None, share: float = 1.0) -> Callable[..., Counts]:
    """The engine for many updates, in chunks of `rows` sequences, which are a `share` of the planned ones.

    A GPU's free memory is read only once, and its kernels are recorded and replayed. On a CPU, the chunks are a `share`
    of those that `CPU_BYTES` allow; an update whose chunks need more than half of the free memory raises
    HmmMemoryError.
    """
    chosen = engine(device)
    if device.type == "cpu":
        return partial(_expect_steadily, share)
    options: dict[str, Any] = {"chunk": rows, "limit_bytes": free_bytes(device) // 2}
    if chosen is not expect:
        from shoestring.hmm.fused import Recorder  # imports Triton

        options["count"] = Recorder()
    return partial(chosen, **options)


def _expect_steadily(
    share: float, parameters: Parameters, tokens: Tensor, lengths: Tensor | None = None, weights: Tensor | None = None
) -> Counts:
    """As `expect`, in chunks that do not depend on the free memory: the sums of others differ in their last bits."""
    if not len(tokens):
        return expect(parameters, tokens, lengths, weights)
    longest = tokens.shape[1] if lengths is None else int(lengths.max())
    fixed = fixed_bytes(parameters)
    limit = fixed + CPU_BYTES
    chunk = math.ceil(share * layout(parameters, longest, len(tokens), limit_bytes=limit).chunk)
    cut = layout(parameters, longest, len(tokens), chunk, limit)
    needed = fixed + chunk * sequence_bytes(parameters, longest, cut.recompute)
    if needed > (free := free_bytes(parameters.device) // 2):
        raise HmmMemoryError(
            f"{chunk} sequences of {longest} tokens at a time with {parameters.states} states need {needed:,} bytes, "
            f"the limit is {free:,}"
        )
    return expect(parameters, tokens, lengths, weights, chunk, limit)
