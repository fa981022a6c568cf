"""Rows of a table by id: on a GPU directly in the type of the stream, with gradients that are summed in a few passes.

Torch's own sum takes several times as long. Shapes: R rows, T positions, N = R T, V ids, D channels.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from shoestring.models.layers.operators import HAS_TRITON

ROWS = 32
"""Gradients that a program sums."""
CHANNELS = 256
UNSEEN = 0.02
"""Every channel, with one sign or the other, of what stands in place of a word that is not seen."""


def embedding_lookup(
    table: nn.Embedding, ids: Int[Tensor, "R T"], kind: torch.dtype | None = None
) -> Float[Tensor, "R T D"]:
    """The rows of these ids, in the type `kind` or that of the table.

    An id outside the vocabulary raises an error on a CPU; on a GPU its row is NaN.
    """
    weight = table.weight
    if HAS_TRITON and ids.is_cuda and weight.dtype == torch.float32:
        found: Tensor = _Embedded.apply(ids, weight, kind or weight.dtype)
        return found
    return F.embedding(ids, weight).to(kind or weight.dtype)


def seen_words(
    table: nn.Embedding, ids: Int[Tensor, "R T"], dropout: float, kind: torch.dtype
) -> Float[Tensor, "R T 1"]:
    """Factors of embedded tokens: 0 for a share `dropout` of the vocabulary, in all rows alike, else 1 / (1 - dropout).

    Drawn from the generator of the device, which is not waited for.
    """
    words = F.dropout(torch.ones(table.num_embeddings, device=ids.device), dropout).to(kind)
    return words[ids.clamp(0, len(words) - 1)][..., None]  # an id outside is for the table to refuse


def hide_words(x: Float[Tensor, "R T D"], words: Float[Tensor, "R T 1"]) -> Float[Tensor, "R T D"]:
    """Embedded tokens times the factors of `seen_words`; one vector stands for all words that are not seen.

    Zeros would not do: the first position of a row, which sees nothing else, would stay zero in all layers, and the
    gradient behind the norm of zeros grows with each of them until it overflows.
    """
    unseen = torch.full_like(x[0, 0], UNSEEN)
    unseen[1::2] = -UNSEEN  # its mean is 0, and its variance is not
    return (x * words).addcmul_((words == 0).to(x.dtype), unseen)


class _Embedded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, kind: torch.dtype) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.shape = weight.shape
        return _gather(ids.contiguous(), weight.contiguous(), kind)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, None]:
        (ids,) = ctx.saved_tensors
        return None, _sum_by_id(ids, gradient.contiguous(), *ctx.shape), None


def _gather(ids: Tensor, weight: Tensor, kind: torch.dtype) -> Tensor:
    from shoestring.models.kernels.fused_layers import gather_kernel  # imports Triton

    v, d = weight.shape
    out = torch.empty(*ids.shape, d, dtype=kind, device=ids.device)
    block = min(1024, max(32, 1 << (d - 1).bit_length()))
    with torch.cuda.device_of(weight):
        gather_kernel[(ids.numel(), -(-d // block))](
            ids, weight, out, v, d, BLOCK=block, num_warps=max(1, block // 256)
        )
    return out


def _sum_by_id(ids: Tensor, gradient: Tensor, v: int, d: int) -> Float[Tensor, "V D"]:
    """The sum of the gradients of every id, float32."""
    from shoestring.models.kernels.fused_layers import join_kernel, sum_kernel  # imports Triton

    n = ids.numel()
    out = torch.zeros(v, d, device=gradient.device)
    if not n:
        return out
    in_order, order = ids.flatten().int().sort(stable=True)
    grid = (-(-n // ROWS), -(-d // CHANNELS))
    partial = torch.empty(grid[0], d, device=gradient.device)
    with torch.cuda.device_of(gradient):
        sum_kernel[grid](in_order, order, gradient, out, partial, n, v, d, ROWS=ROWS, BLOCK=CHANNELS)
        join_kernel[grid](in_order, out, partial, n, v, d, ROWS=ROWS, BLOCK=CHANNELS)
    return out
