"""Causal attention over short rows with the rotary turn inside: one kernel forward and one backward on a GPU.

Shapes: R rows, T positions, H query heads, KV key heads and as many of values, C channels a head.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from shoestring.models.operators import HAS_TRITON, register
from shoestring.models.rotary import rotate

LONGEST = 128
"""Positions of a row that the kernels can hold."""
CHANNELS = (16, 32, 64, 128)
TYPES = (torch.bfloat16, torch.float16)
"""Of float32 there are no fast exact products."""
GENERATION = 9
"""Of the chips that the launches are chosen for, H100 and H200: others have less of some memory that they need."""


class Launch(NamedTuple):
    """How a kernel is started."""

    block: int
    """Positions of a tile; a row is one or two of them."""
    warps: int
    registers: int | None = None
    """At most so many a thread, which lets more programs run side by side."""


class Config(NamedTuple):
    forward: Launch
    backward: Launch
    grouped: Launch
    """Backward where several query heads share a key head, whose gradients stay in registers meanwhile."""


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
"""By the positions of a row, up to the next power of two, and channels.

Chosen from what the compiler says for an H100 (registers, spills, shared memory), not from timings. A tile of 64 × 64
is what a group of four warps multiplies at a time; of rows of two such tiles, two programs fit on a multiprocessor
backward and three forward. With 32 or 64 channels the backward kernel takes eight warps: with four, Triton 3.6 makes a
program whose gradient of the keys is wrong.
"""


def fits(qkv: Float[Tensor, "R T HKV C"], heads: int) -> bool:
    """Whether the kernels can be used."""
    _, length, together, channels = qkv.shape
    groups = (together - heads) // 2
    return (
        HAS_TRITON
        and qkv.is_cuda
        and qkv.dtype in TYPES
        and 0 < length <= LONGEST
        and channels in CHANNELS
        and heads + 2 * groups == together
        and groups > 0
        and heads % groups == 0
        and _known(qkv.device)
    )


def _known(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device)[0] == GENERATION


# as torch.compiler.assume_constant_result does, which would load the compiler now
_known._dynamo_marked_constant = True  # type: ignore[attr-defined]


def short_attention(
    qkv: Float[Tensor, "R T HKV C"], cos: Float[Tensor, "T C//2"], sin: Float[Tensor, "T C//2"], heads: int
) -> Float[Tensor, "R T {heads} C"]:
    """Values mixed by softmax(q k / √C) over the past of a row, with queries and keys turned by their position.

    The third axis of `qkv` holds the H query heads first, then those of keys, then those of values; query head h uses
    key head h // (H / KV). The turn is that of `rotary.rotate`, the tables those of `rotary.turns`. The gradient flows
    to `qkv` only.
    """
    if fits(qkv, heads):
        mixed: Tensor = torch.ops.shoestring.short_attention(qkv, cos, sin, heads)
        return mixed
    return plain_short_attention(qkv, cos, sin, heads)


def plain_short_attention(
    qkv: Float[Tensor, "R T HKV C"], cos: Float[Tensor, "T C//2"], sin: Float[Tensor, "T C//2"], heads: int
) -> Float[Tensor, "R T {heads} C"]:
    """The same in steps, on any device, for any length, channels and type."""
    groups = (qkv.shape[2] - heads) // 2
    q, k, v = qkv.transpose(1, 2).split((heads, groups, groups), dim=1)  # R H T C, and twice R KV T C
    q, k = rotate(q, (cos, sin)), rotate(k, (cos, sin))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=groups != heads)
    return mixed.transpose(1, 2).contiguous()


def _forward(qkv: Tensor, cos: Tensor, sin: Tensor, heads: int) -> Tensor:
    from shoestring.models.short_attention_kernels import forward_kernel  # imports Triton

    out, sizes = _empty_out(qkv, cos, sin, heads), _sizes(qkv, heads)
    tensors = out, qkv.contiguous(), cos.contiguous(), sin.contiguous()
    _start(forward_kernel, tensors, len(qkv) * heads, _config(qkv).forward, sizes)
    return out


def _backward(gradient: Tensor, qkv: Tensor, cos: Tensor, sin: Tensor, heads: int) -> Tensor:
    from shoestring.models.short_attention_kernels import backward_kernel  # imports Triton

    dqkv, sizes, config = _empty_gradient(gradient, qkv, cos, sin, heads), _sizes(qkv, heads), _config(qkv)
    launch = config.backward if sizes["H"] == sizes["KV"] else config.grouped
    tensors = dqkv, gradient.contiguous(), qkv.contiguous(), cos.contiguous(), sin.contiguous()
    _start(backward_kernel, tensors, len(qkv) * sizes["KV"], launch, sizes)
    return dqkv


def _empty_out(qkv: Tensor, cos: Tensor, sin: Tensor, heads: int) -> Tensor:  # noqa: ARG001
    return qkv.new_empty((*qkv.shape[:2], heads, qkv.shape[3]))


def _empty_gradient(gradient: Tensor, qkv: Tensor, cos: Tensor, sin: Tensor, heads: int) -> Tensor:  # noqa: ARG001
    return qkv.new_empty(qkv.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    *tensors, ctx.heads = inputs
    ctx.save_for_backward(*tensors)


def _gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
    return torch.ops.shoestring.short_attention_backward(gradient, *ctx.saved_tensors, ctx.heads), None, None, None


def _config(qkv: Tensor) -> Config:
    padded = max(16, 1 << (qkv.shape[1] - 1).bit_length())
    return CONFIGS[padded, qkv.shape[3]]


def _sizes(qkv: Tensor, heads: int) -> dict[str, int]:
    channels = qkv.shape[3]
    return {"H": heads, "KV": (qkv.shape[2] - heads) // 2, "C": channels, "HALF": max(16, channels // 2)}


def _start(kernel: Any, tensors: tuple[Tensor, ...], programs: int, launch: Launch, sizes: dict[str, int]) -> None:
    """On the device of the tensors, the last but two of which is `qkv`."""
    qkv = tensors[-3]
    length = qkv.shape[1]
    with torch.cuda.device_of(qkv):
        kernel[(programs,)](
            *tensors,
            length,
            SCALE=sizes["C"] ** -0.5,
            **sizes,
            BLOCK=launch.block,
            TWO=length > launch.block,
            num_warps=launch.warps,
            num_stages=1,
            maxnreg=launch.registers,
        )


register(
    "short_attention",
    "(Tensor qkv, Tensor cos, Tensor sin, int heads) -> Tensor",
    _forward,
    _empty_out,
    keep=_keep,
    gradient=_gradient,
)
register(
    "short_attention_backward",
    "(Tensor gradient, Tensor qkv, Tensor cos, Tensor sin, int heads) -> Tensor",
    _backward,
    _empty_gradient,
)
