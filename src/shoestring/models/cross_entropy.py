"""The loss of an output product, without all of its logits in memory at once.

Rows go through it a chunk at a time. A chunk of logits is turned in place into its own gradient, `softmax - one-hot`,
and that at once into the gradients of the inputs, which the backward pass only scales. So logits are neither kept nor
made a second time, and the memory is that of one chunk and of the gradients.

Shapes: N positions, D channels, V ids, C columns of a chunk: V, and some more where the GPU wants whole tiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from shoestring.models.operators import HAS_TRITON

IGNORED = -100
"""The target where nothing is predicted; torch's cross entropy leaves it out."""

CHUNK_BYTES = {"cpu": 16 << 20}
"""Bytes of a chunk of logits, by type of device: on a CPU what stays in a cache."""
LARGE_CHUNK_BYTES = 512 << 20
"""On all other devices, whose products are fast when they are large."""

P = ParamSpec("P")
T = TypeVar("T")


def _eager(function: Callable[P, T]) -> Callable[P, T]:
    """As it is, also within a function that is compiled: the compiler does not know how the products are added up."""
    # as torch.compiler.disable, which would load the compiler now
    found: Callable[P, T] = torch._disable_dynamo(function)  # type: ignore[attr-defined]
    return found


@_eager
def linear_cross_entropy(
    hidden: Float[Tensor, "N D"],
    weight: Float[Tensor, "V D"],
    bias: Float[Tensor, " V"] | None,
    targets: Int[Tensor, " N"],
) -> Float[Tensor, ""]:
    """The summed loss in nats, float32 (float64 for inputs of that type), with its gradient.

    The gradients are made along with the loss, and only where they are wanted. Where a target is neither an id nor
    `IGNORED`, a CPU raises an error and a GPU gives a loss that is not a number.
    """
    wanted = any(x is not None and x.requires_grad for x in (hidden, weight, bias))
    if not (wanted and torch.is_grad_enabled()):
        return token_cross_entropy(hidden, weight, bias, targets).sum()
    loss: Tensor = _Summed.apply(hidden, weight, bias, targets)
    return loss


@_eager
@torch.no_grad()
def token_cross_entropy(
    hidden: Float[Tensor, "N D"],
    weight: Float[Tensor, "V D"],
    bias: Float[Tensor, " V"] | None,
    targets: Int[Tensor, " N"],
) -> Float[Tensor, " N"]:
    """The loss of every position in nats, float32 (float64 as above); 0 where nothing is predicted."""
    return _make(hidden, weight, bias, targets, (False, False, False)).losses


class Made(NamedTuple):
    """Losses, and the gradients of their sum in the types of the inputs: None where they are not wanted."""

    losses: Float[Tensor, " N"]
    hidden: Float[Tensor, "N D"] | None
    weight: Float[Tensor, "V D"] | None
    bias: Float[Tensor, " V"] | None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
        losses, *gradients = _make(hidden, weight, bias, targets, ctx.needs_input_grad[:3])
        ctx.save_for_backward(*gradients)
        return losses.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        return *(None if own is None else own * outer for own in ctx.saved_tensors), None


def _make(
    hidden: Float[Tensor, "N D"],
    weight: Float[Tensor, "V D"],
    bias: Float[Tensor, " V"] | None,
    targets: Int[Tensor, " N"],
    wanted: tuple[bool, bool, bool],
) -> Made:
    """Losses, and the gradients of the inputs that are wanted."""
    if hidden.device.type == "cpu" and bool((ignored := targets == IGNORED).any()):
        return _make_some(hidden, weight, bias, targets, wanted, (~ignored).nonzero().squeeze(1))
    dtype = _product_dtype(hidden, weight)
    form = _form(hidden.device.type, dtype)
    with torch.autocast(hidden.device.type, enabled=False):
        return _make_chunks(hidden, weight, bias, targets.contiguous(), wanted, dtype, form)


def _make_some(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    wanted: tuple[bool, bool, bool],
    kept: Int[Tensor, " K"],
) -> Made:
    """As `_make` of the rows that are predicted: to find them costs nothing where there is no device to wait for."""
    found = _make(hidden[kept], weight, bias, targets[kept], wanted)
    losses = found.losses.new_zeros(len(targets)).index_copy_(0, kept, found.losses)
    if found.hidden is None:
        return found._replace(losses=losses)
    return found._replace(losses=losses, hidden=torch.zeros_like(hidden).index_copy_(0, kept, found.hidden))


def _make_chunks(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    wanted: tuple[bool, bool, bool],
    dtype: torch.dtype,
    form: Form,
) -> Made:
    (n, d), v = hidden.shape, len(weight)
    c = form.columns(v)
    sums = torch.float64 if dtype == torch.float64 else torch.float32
    x, w = hidden.to(dtype), _padded(weight, c, dtype)
    b = None if bias is None else _padded(bias, c, dtype)

    losses = x.new_empty(n, dtype=sums)
    of_hidden = x.new_empty(n, d) if wanted[0] else None
    of_weight = x.new_zeros(c, d, dtype=sums) if wanted[1] else None
    of_bias = x.new_zeros(c, dtype=sums) if wanted[2] else None
    rows = _chunk_rows(n, c, x)
    buffer = x.new_empty(min(rows, n), c)
    for first in range(0, n, rows):
        part = x[first : first + rows]
        logits = buffer[: len(part)]
        if b is None:
            torch.mm(part, w.T, out=logits)
        else:
            torch.addmm(b, part, w.T, out=logits)
        form.apply(logits, v, targets[first : first + rows], losses[first : first + rows], any(wanted))
        if of_hidden is not None:
            torch.mm(logits, w, out=of_hidden[first : first + rows])
        if of_weight is not None:
            _add_product(of_weight, logits.T, part)
        if of_bias is not None:
            of_bias += logits.sum(0, dtype=sums)
    return Made(
        losses,
        None if of_hidden is None else of_hidden.to(hidden.dtype),
        None if of_weight is None else of_weight[:v].to(weight.dtype),
        None if of_bias is None or bias is None else of_bias[:v].to(bias.dtype),
    )


def _product_dtype(hidden: Tensor, weight: Tensor) -> torch.dtype:
    """The type that `F.linear` would compute in, under autocast too, which leaves float64 alone."""
    kind, both = hidden.device.type, torch.promote_types(hidden.dtype, weight.dtype)
    if both != torch.float64 and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return both


def _padded(x: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    """In another type and with rows of zeros; the very tensor where nothing is to be done."""
    if len(x) == rows:
        return x.detach().to(dtype)
    found = x.new_empty(rows, *x.shape[1:], dtype=dtype)
    found[: len(x)] = x
    found[len(x) :] = 0
    return found


def _chunk_rows(n: int, columns: int, like: Tensor) -> int:
    """Rows of a chunk: about the same for all of them, and on a GPU whole tiles."""
    size = CHUNK_BYTES.get(like.device.type, LARGE_CHUNK_BYTES)
    most = max(1, size // (columns * like.element_size()))
    even = -(-n // max(1, -(-n // most)))
    tile = 128 if like.is_cuda and even > 128 else 1
    return max(1, -(-even // tile) * tile)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add `a @ b` to a total that may be of a wider type than its factors."""
    if total.dtype == a.dtype:
        torch.addmm(total, a, b, out=total)
    elif total.is_cuda:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total += a @ b


class Form(NamedTuple):
    """How logits become losses."""

    apply: Callable[[Tensor, int, Tensor, Tensor, bool], None]
    """As `plain`."""
    columns: Callable[[int], int]
    """Columns of logits for so many ids."""


@cache
def _form(device: str, dtype: torch.dtype) -> Form:
    """The kernel on a GPU with Triton, for all but float64; torch's operations elsewhere."""
    if device == "cuda" and dtype != torch.float64 and HAS_TRITON:
        from shoestring.models import cross_entropy_kernel  # imports Triton, which a CPU has no use for

        return Form(cross_entropy_kernel.fused, cross_entropy_kernel.columns)
    return Form(plain, lambda ids: ids)


def plain(
    logits: Float[Tensor, "n V"],
    _ids: int,
    targets: Int[Tensor, " n"],
    losses: Float[Tensor, " n"],
    gradient: bool,
) -> None:
    """Write the losses of a chunk and, where wanted, the gradient of their sum in the place of the logits.

    `_ids` are the columns that count: here all that there are.
    """
    wide = logits.to(losses.dtype)  # the logits themselves, but in half precision
    if not gradient:
        losses.copy_(F.cross_entropy(wide, targets.long(), reduction="none", ignore_index=IGNORED))
        return
    ignored = (targets == IGNORED)[:, None]
    at = targets[:, None].long().masked_fill(ignored, 0)
    wide -= wide.amax(1, keepdim=True)
    chosen = wide.gather(1, at)
    total = wide.exp_().sum(1, keepdim=True)
    losses.copy_((total.log() - chosen).masked_fill_(ignored, 0)[:, 0])
    wide /= total.masked_fill_(ignored, math.inf)
    wide.scatter_add_(1, at, ignored.to(wide.dtype) - 1)
    if wide is not logits:
        logits.copy_(wide)
