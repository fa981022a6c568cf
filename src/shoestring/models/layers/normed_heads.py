"""Queries and keys that are normalised by head, then rotated, and values with a gated addition: one pass on a GPU.

Shapes: R rows, T positions, N = R T; H query heads, K heads of keys and as many of values, A = H + 2 K, C channels per
head in P pairs, W = K C.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from shoestring.models.layers.blocks import RMSNorm
from shoestring.models.layers.operators import Operator, is_fused, register
from shoestring.models.layers.rotary import Heads, Turns, rotate

MOST_PROGRAMS = 2048
"""Of the backward pass: each has a row of partial sums for the gains."""


def normed_heads(
    qkv: Float[Tensor, "R T A C"],
    angles: Turns,
    norms: tuple[RMSNorm, RMSNorm],
    heads: int,
    values: Float[Tensor, "R T W"] | None = None,
    gates: Float[Tensor, "R T K"] | None = None,
) -> Heads:
    """Queries and keys by their norms and angles, and values, to which 2 σ(gate) times `values` is added.

    The third axis of `qkv` holds their heads in this order. On a GPU it is one pass.
    """
    shared = (qkv.shape[2] - heads) // 2
    q_norm, k_norm = norms
    if is_fused(qkv) and qkv.shape[3] % 2 == 0 and angles[0].ndim == 2:
        extra = None if values is None else values.to(qkv.dtype).flatten(0, 1)
        gains = q_norm.weight, k_norm.weight
        q, k, v, _ = torch.ops.shoestring.normed_heads(qkv, *angles, *gains, extra, gates, heads, q_norm.eps)
        return q, k, v
    q, k, v = qkv.split((heads, shared, shared), dim=2)
    q, k = rotate(q_norm(q), angles, heads=2), rotate(k_norm(k), angles, heads=2)
    return q, k, add_values(v, values, gates)


def add_values(
    v: Float[Tensor, "R T K C"], values: Float[Tensor, "R T W"] | None, gates: Float[Tensor, "R T K"] | None
) -> Float[Tensor, "R T K C"]:
    """The values of all heads with those of the tokens, each head by its gate."""
    if values is None or gates is None:
        return v
    return v + (2 * gates.sigmoid())[..., None] * values.view(v.shape)


def _forward(
    qkv: Tensor, cos: Tensor, sin: Tensor, q_gain: Tensor, k_gain: Tensor, values: Tensor | None, gates: Tensor | None,
    heads: int, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    from shoestring.models.kernels.swift_layers import normed_heads_kernel  # imports Triton

    found, joint = _outputs(qkv, cos, sin, q_gain, k_gain, values, gates, heads, eps), qkv.contiguous()
    shared, length = found[1].shape[2], qkv.shape[1]
    tables, sizes = (cos.contiguous(), sin.contiguous(), q_gain, k_gain), _sizes(found[0], shared)
    extra, opened, apart = _valued(joint, values, gates)
    with torch.cuda.device_of(qkv):
        normed_heads_kernel[(qkv.shape[0] * length,)](
            joint, *tables, extra, opened, *found, length, heads, shared, apart, eps, VALUED=values is not None,
            **sizes, num_warps=_warps(sizes),
        )  # fmt: skip
    return found


def _backward(
    to_q: Tensor, to_k: Tensor, to_v: Tensor, qkv: Tensor, scales: Tensor, cos: Tensor, sin: Tensor, q_gain: Tensor,
    k_gain: Tensor, values: Tensor | None, gates: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    from shoestring.models.kernels.swift_layers import normed_heads_backward_kernel  # imports Triton

    (rows, length, heads, channels), shared = to_q.shape, to_k.shape[2]
    n, joint, sizes = rows * length, qkv.contiguous(), _sizes(to_q, shared)
    extra, opened, apart = _valued(joint, values, gates)
    to_joint, *to_added = _gradients(to_q, to_k, to_v, qkv, scales, cos, sin, q_gain, k_gain, values, gates)[:3]
    programs = min(n, MOST_PROGRAMS)
    to_gains = torch.empty(programs, 2, channels, device=qkv.device)
    with torch.cuda.device_of(qkv):
        normed_heads_backward_kernel[(programs,)](
            to_q, to_k, to_v, joint, cos.contiguous(), sin.contiguous(), q_gain, k_gain, extra, opened, scales,
            to_joint, *to_added, to_gains, n, length, heads, shared, apart, VALUED=values is not None,
            **sizes, num_warps=_warps(sizes),
        )  # fmt: skip
    return to_joint, to_added[0], to_added[1], to_gains.sum(0)


def _valued(joint: Tensor, values: Tensor | None, gates: Tensor | None) -> tuple[Tensor, Tensor, int]:
    """Values, gates and the distance of two positions' values; without values some tensor that is not read."""
    if values is None or gates is None:
        return joint, joint, 0
    assert values.stride(1) == 1, "the channels of a position are neighbours"
    return values, gates.contiguous(), values.stride(0)


def _sizes(q: Tensor, shared: int) -> dict[str, int]:
    """The constants of the kernels: pairs, and the powers of two that hold pairs and heads."""
    heads, channels = q.shape[2:]
    pairs, q_heads, kv_heads = (1 << (number - 1).bit_length() for number in (channels // 2, heads, shared))
    return {"P": channels // 2, "PAIRS": pairs, "Q": q_heads, "KV": kv_heads}


def _warps(sizes: dict[str, int]) -> int:
    return max(1, min(8, sizes["PAIRS"] * sizes["Q"] // 256))


def _outputs(
    qkv: Tensor, _cos: Tensor, _sin: Tensor, _q: Tensor, _k: Tensor, _values: Any, _gates: Any, heads: int, _eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys, values, and the factors of the norms."""
    *places, together, channels = qkv.shape
    shared = (together - heads) // 2
    q, k, v = (qkv.new_empty(*places, each, channels) for each in (heads, shared, shared))
    return q, k, v, qkv.new_empty(*places, heads + shared, dtype=torch.float32)


def _gradients(
    to_q: Tensor, to_k: Tensor, _to_v: Tensor, qkv: Tensor, _scales: Tensor, _cos: Tensor, _sin: Tensor, _q: Tensor,
    _k: Tensor, values: Tensor | None, gates: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Those of `qkv`, `values`, `gates` and the gains; empty where there are no values."""
    n, (shared, channels) = to_q.shape[0] * to_q.shape[1], to_k.shape[2:]
    added = n if values is not None else 0
    to_gates = qkv.new_empty(0) if gates is None else torch.empty_like(gates, memory_format=torch.contiguous_format)
    return (
        qkv.new_empty(qkv.shape),
        qkv.new_empty(added, shared * channels),
        to_gates,
        qkv.new_empty(2, channels, dtype=torch.float32),
    )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    qkv, *tables, _, _ = inputs
    ctx.save_for_backward(qkv, output[3], *tables)
    ctx.mark_non_differentiable(output[3])
    ctx.set_materialize_grads(True)


def _gradient(ctx: Any, to_q: Tensor, to_k: Tensor, to_v: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    outer = to_q.contiguous(), to_k.contiguous(), to_v.contiguous()
    q_gain, valued = ctx.saved_tensors[4], ctx.saved_tensors[6] is not None
    to_qkv, to_values, to_gates, to_gains = torch.ops.shoestring.normed_heads_backward(*outer, *ctx.saved_tensors)
    of_gains = to_gains.to(q_gain.dtype)
    added = (to_values, to_gates) if valued else (None, None)
    return to_qkv, None, None, of_gains[0], of_gains[1], *added, None, None


register(
    "normed_heads",
    Operator(
        "(Tensor qkv, Tensor cos, Tensor sin, Tensor q_gain, Tensor k_gain, Tensor? values, Tensor? gates, int heads,"
        " float eps) -> (Tensor, Tensor, Tensor, Tensor)",
        _forward,
        _outputs,
    ),
    Operator(
        "(Tensor to_q, Tensor to_k, Tensor to_v, Tensor qkv, Tensor scales, Tensor cos, Tensor sin, Tensor q_gain,"
        " Tensor k_gain, Tensor? values, Tensor? gates) -> (Tensor, Tensor, Tensor, Tensor)",
        _backward,
        _gradients,
    ),
    _keep,
    _gradient,
)
