"""A causal convolution of each channel over a few positions; one pass on a GPU.

Shapes: R rows, T positions, D channels, C of them convolved, which are the last; J positions before a position's own.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from shoestring.models.layers.blocks import wide
from shoestring.models.layers.operators import Operator, is_fused, register
from shoestring.models.layers.past import Inputs

FORWARD, BACKWARD = (16, 128, 4), (8, 64, 2)
"""Positions and channels of a tile, and warps of a program."""
MOST_PROGRAMS = 1056
"""Of the backward pass: each has a row of partial sums for the factors."""


class ShortConvolution(nn.Module):
    """x_t + Σ_j w_j x_{t−j}, where j is 1 to J, of the last C channels; it changes nothing at first."""

    def __init__(self, before: int, channels: int):
        super().__init__()
        self.shape = before, channels
        self.weight = nn.Parameter(torch.zeros(before * channels))  # a vector, as gains: neither decay nor Muon

    def forward(
        self, x: Float[Tensor, "R T D"], positions: Int[Tensor, "R T"] | None = None, kept: Inputs | None = None
    ) -> Float[Tensor, "R T D"]:
        """`positions` are those in documents, before which nothing is read; `kept` are inputs before x."""
        factors = self.factors()
        if kept is None:
            return short_convolution(x, factors, positions)
        others, convolved = x.split((x.shape[2] - self.shape[1], self.shape[1]), dim=2)
        return torch.cat((others, short_convolution(kept.add(convolved), factors)[:, -x.shape[1] :]), dim=2)

    def factors(self) -> Float[Tensor, "J C"]:
        return self.weight.view(self.shape)


def short_convolution(
    x: Float[Tensor, "R T D"], factors: Float[Tensor, "J C"], positions: Int[Tensor, "R T"] | None = None
) -> Float[Tensor, "R T D"]:
    """x_t + Σ_j `factors`_j x_{t−j}: without those before the row, or before the first of `positions`.

    Of the last C channels; those before are as they were.
    """
    if is_fused(x):
        found: Tensor = torch.ops.shoestring.short_convolution(x, factors, positions)
        return found
    # torch would save every product
    plain: Tensor = _Plain.apply(x, factors, positions)
    return plain


class _Plain(torch.autograd.Function):
    """Sums in float32 at least."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factors: Tensor, positions: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, factors, positions)
        found, last = wide(x).clone(), slice(x.shape[2] - factors.shape[1], None)
        read, changed = wide(x[..., last]), found[..., last]
        for j, factor in enumerate(wide(factors), 1):
            changed[:, j:].addcmul_(_inside(read[:, :-j], positions, j), factor)
        return found.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        x, factors, positions = ctx.saved_tensors
        to_x, last = wide(outer[0]).clone(), slice(x.shape[2] - factors.shape[1], None)
        given, read, changed, to_factors = wide(outer[0][..., last]), wide(x[..., last]), to_x[..., last], []
        for j, factor in enumerate(wide(factors), 1):
            reached = _inside(given[:, j:], positions, j)
            changed[:, :-j].addcmul_(reached, factor)
            to_factors.append((reached * read[:, :-j]).sum((0, 1)))
        return to_x.to(x.dtype), torch.stack(to_factors).to(factors.dtype), None


def _inside(x: Tensor, positions: Tensor | None, j: int) -> Tensor:
    """What belongs to the positions from j on, and 0 where these are of another document than those j before."""
    return x if positions is None else x * (positions[:, j:] >= j)[..., None]


def _forward(x: Tensor, factors: Tensor, positions: Tensor | None) -> Tensor:
    from shoestring.models.kernels.short_convolution import short_convolution_kernel  # imports Triton

    x, found, (rows, block, warps) = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format), FORWARD
    n, d, places = x.shape[0] * x.shape[1], x.shape[2], x if positions is None else positions.contiguous()
    with torch.cuda.device_of(x):
        short_convolution_kernel[(-(-n // rows), -(-d // block))](
            x, factors.contiguous(), places, found, n, x.shape[1], d, d - factors.shape[1], J=len(factors),
            DOCUMENTS=positions is not None, ROWS=rows, BLOCK=block, num_warps=warps,
        )  # fmt: skip
    return found


def _backward(outer: Tensor, x: Tensor, factors: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor]:
    from shoestring.models.kernels.short_convolution import short_convolution_backward_kernel  # imports Triton

    x, to_x, (rows, block, warps) = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format), BACKWARD
    n, d, places = x.shape[0] * x.shape[1], x.shape[2], x if positions is None else positions.contiguous()
    blocks = -(-d // block)
    programs = min(-(-n // rows), max(1, MOST_PROGRAMS // blocks))
    sums = torch.empty(programs, *factors.shape, device=x.device)
    with torch.cuda.device_of(x):
        short_convolution_backward_kernel[(programs, blocks)](
            outer, x, factors.contiguous(), places, to_x, sums, n, x.shape[1], d, d - factors.shape[1], J=len(factors),
            DOCUMENTS=positions is not None, ROWS=rows, BLOCK=block, num_warps=warps,
        )  # fmt: skip
    return to_x, sums.sum(0)


def _output(x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _gradients(_: Tensor, x: Tensor, factors: Tensor, *__: Any) -> tuple[Tensor, Tensor]:
    return _output(x), factors.new_empty(factors.shape, dtype=torch.float32)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs)


def _gradient(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
    factors = ctx.saved_tensors[1]
    found = torch.ops.shoestring.short_convolution_backward(outer.contiguous(), *ctx.saved_tensors)
    return found[0], found[1].to(factors.dtype), None


register(
    "short_convolution",
    Operator("(Tensor x, Tensor factors, Tensor? positions) -> Tensor", _forward, _output),
    Operator("(Tensor outer, Tensor x, Tensor factors, Tensor? positions) -> (Tensor, Tensor)", _backward, _gradients),
    _keep,
    _gradient,
)
