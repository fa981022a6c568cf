"""Causal attention over short rows, rotary positions included: one kernel forward and one backward on a GPU.

Shapes: R rows, T positions, H query heads, KV key heads and as many of values, C channels per head.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from shoestring.models.layers.operators import HALF, HAS_TRITON, Operator, register

LONGEST = 128
"""Most positions of a row that the kernels can hold."""
CHANNELS = (16, 32, 64, 128)
GENERATION = 9
"""Compute capability of H100 and H200, for which the launches are chosen; others have less of some memory."""


class Launch(NamedTuple):
    """The launch parameters of a kernel."""

    block: int
    """Positions per tile; a row is one or two tiles."""
    warps: int
    registers: int | None = None
    """Most registers per thread; a limit lets more programs run side by side."""


class Config(NamedTuple):
    forward: Launch
    backward: Launch
    grouped: Launch
    """Backward, where several query heads share a key head, whose gradients stay in registers."""


CONFIGS: dict[tuple[int, int], Config] = {
    (16, 16): Config(Launch(16, 2), Launch(16, 2), Launch(16, 2)),
    (16, 32): Config(Launch(16, 2), Launch(16, 2), Launch(16, 2)),
    (16, 64): Config(Launch(16, 2), Launch(16, 2), Launch(16, 2)),
    (16, 128): Config(Launch(16, 2), Launch(16, 2), Launch(16, 4)),
    (32, 16): Config(Launch(32, 2), Launch(32, 2), Launch(32, 2)),
    (32, 32): Config(Launch(32, 2), Launch(32, 2), Launch(32, 2)),
    (32, 64): Config(Launch(32, 2), Launch(32, 2), Launch(32, 4)),
    (32, 128): Config(Launch(32, 4), Launch(32, 4), Launch(32, 4)),
    (64, 16): Config(Launch(64, 4), Launch(64, 4), Launch(64, 4)),
    (64, 32): Config(Launch(64, 4), Launch(64, 4), Launch(64, 4)),
    (64, 64): Config(Launch(64, 4), Launch(64, 4), Launch(64, 4)),
    (64, 128): Config(Launch(64, 4), Launch(64, 4), Launch(64, 8)),
    (128, 16): Config(Launch(64, 4), Launch(64, 4), Launch(128, 8)),
    (128, 32): Config(Launch(64, 4), Launch(64, 8), Launch(128, 8)),
    (128, 64): Config(Launch(64, 4), Launch(64, 8), Launch(128, 8)),
    (128, 128): Config(Launch(64, 4, 168), Launch(64, 4), Launch(128, 8)),
}
"""By the positions of a row, rounded up to a power of two, and by channels.

Chosen from the compiler's figures for an H100 (registers, spills, shared memory), not from timings. A group of four
warps multiplies a tile of 64 × 64 at a time. With two such tiles per row, two programs fit on a multiprocessor backward
and three forward. With 32 or 64 channels the backward kernel needs eight warps: with four, Triton 3.6 compiles a
program whose gradient of the keys is wrong.
"""


def fits(qkv: Float[Tensor, "R T HKV C"], heads: int) -> bool:
    """Whether the kernels can be used."""
    _, length, together, channels = qkv.shape
    groups = (together - heads) // 2
    return (
        HAS_TRITON
        and qkv.is_cuda
        and qkv.dtype in HALF
        and 0 < length <= LONGEST
        and channels in CHANNELS
        and heads + 2 * groups == together
        and groups > 0
        and heads % groups == 0
        and _known(qkv.device)
    )


def _known(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device)[0] == GENERATION


# what torch.compiler.assume_constant_result does; that function would load the compiler now
_known._dynamo_marked_constant = True  # type: ignore[attr-defined]


def short_attention(
    qkv: Float[Tensor, "R T HKV C"], cos: Float[Tensor, "T C//2"], sin: Float[Tensor, "T C//2"], heads: int
) -> Float[Tensor, "R T {heads} C"]:
    """Values mixed by softmax(q k / √C) over the past of a row, with queries and keys rotated, for what `fits`.

    The third axis of `qkv` holds the H query heads first, then those of keys, then those of values; query head h uses
    key head h // (H / KV). The rotation is that of `rotary.rotate`, the tables those of `rotary.turns`. The gradient
    flows to `qkv` only.
    """
    mixed: Tensor = torch.ops.shoestring.short_attention(qkv, cos, sin, heads)
    return mixed


def _forward(qkv: Tensor, cos: Tensor, sin: Tensor, heads: int) -> Tensor:
    from shoestring.models.kernels.short_attention import forward_kernel  # imports Triton

    out = _empty_out(qkv, cos, sin, heads)
    _launch(forward_kernel, _config(qkv).forward, heads, heads, out, qkv, cos, sin)
    return out


def _backward(gradient: Tensor, qkv: Tensor, cos: Tensor, sin: Tensor, heads: int) -> Tensor:
    from shoestring.models.kernels.short_attention import backward_kernel  # imports Triton

    dqkv, groups = _empty_gradient(gradient, qkv), (qkv.shape[2] - heads) // 2
    launch = _config(qkv).backward if heads == groups else _config(qkv).grouped
    _launch(backward_kernel, launch, groups, heads, dqkv, gradient, qkv, cos, sin)
    return dqkv


def _launch(kernel: Any, launch: Launch, programs: int, heads: int, *tensors: Tensor) -> None:
    """Run so many programs per row, on the device of the tensors, the last of which are `qkv`, cosines and sines."""
    rows, length, together, channels = tensors[-3].shape
    with torch.cuda.device_of(tensors[-3]):
        kernel[(rows * programs,)](
            *(tensor.contiguous() for tensor in tensors),
            length,
            SCALE=channels**-0.5,
            H=heads,
            KV=(together - heads) // 2,
            C=channels,
            HALF=max(16, channels // 2),
            BLOCK=launch.block,
            TWO=length > launch.block,
            num_warps=launch.warps,
            num_stages=1,
            maxnreg=launch.registers,
        )


def _config(qkv: Tensor) -> Config:
    padded = max(16, 1 << (qkv.shape[1] - 1).bit_length())
    return CONFIGS[padded, qkv.shape[3]]


def _empty_out(qkv: Tensor, _cos: Tensor, _sin: Tensor, heads: int) -> Tensor:
    return qkv.new_empty((*qkv.shape[:2], heads, qkv.shape[3]))


def _empty_gradient(_: Tensor, qkv: Tensor, *_others: Any) -> Tensor:
    return qkv.new_empty(qkv.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    *tensors, ctx.heads = inputs
    ctx.save_for_backward(*tensors)


def _gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
    return torch.ops.shoestring.short_attention_backward(gradient, *ctx.saved_tensors, ctx.heads), None, None, None


register(
    "short_attention",
    Operator("(Tensor qkv, Tensor cos, Tensor sin, int heads) -> Tensor", _forward, _empty_out),
    Operator("(Tensor gradient, Tensor qkv, Tensor cos, Tensor sin, int heads) -> Tensor", _backward, _empty_gradient),
    _keep,
    _gradient,
)
