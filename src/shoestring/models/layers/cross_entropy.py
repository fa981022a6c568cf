"""The loss of an output product, without all of its logits in memory at once.

Rows are processed in chunks. A chunk of logits is replaced by its own gradient, `softmax - one-hot`, from which the
gradients of the inputs follow at once; the backward pass only scales these. So logits are neither kept nor computed
twice, and the memory is that of one chunk and of the gradients.

Where a pointer predicts beside the logits (`models.layers.pointer`), it gives two numbers for each target.

Shapes: N positions, D channels, V ids, C columns of a chunk: V, padded to whole tiles on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from shoestring.models.layers.operators import HAS_TRITON


class Copies(NamedTuple):
    """What a pointer gives to targets: logarithms of weights, beside the weight of the logits, which is 1."""

    odds: Float[Tensor, " N"]
    """Of the right tokens that are pointed at."""
    total: Float[Tensor, " N"]
    """Of all weights."""


IGNORED = -100
"""The target where nothing is predicted; torch's cross entropy ignores it."""

CHUNK_BYTES = {"cpu": 16 << 20}
"""Bytes of a chunk of logits, by type of device: on a CPU what fits a cache."""
LEAST_ROWS = 128
"""Of a chunk on a CPU, however many ids there are: each chunk reads the whole output matrix and adds to its gradient,
and each of its operations waits for the slowest thread, which takes long where another process is busy."""
LARGE_CHUNK_BYTES = 512 << 20
"""On all other devices, where large products are faster."""

P = ParamSpec("P")
T = TypeVar("T")


def _eager(function: Callable[P, T]) -> Callable[P, T]:
    """Keep a function from being compiled: the compiler does not know how the products are added up.

    What torch.compiler.disable does; but that would load the compiler, which takes seconds, or wait for a thread that
    loads it.
    """
    disabled: Callable[P, T] = torch._disable_dynamo(function)  # type: ignore[attr-defined]

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return (disabled if torch.compiler.is_compiling() else function)(*args, **kwargs)

    return call


@_eager
def linear_cross_entropy(
    hidden: Float[Tensor, "N D"],
    weight: Float[Tensor, "V D"],
    bias: Float[Tensor, " V"] | None,
    targets: Int[Tensor, " N"],
    scale: Float[Tensor, ""] | None = None,
    cap: float | None = None,
    copies: Copies | None = None,
) -> Float[Tensor, ""]:
    """The summed loss in nats, float32 (float64 for inputs of that type), with its gradient.

    The gradients are computed with the loss, and only where they are needed: times `scale`, which is applied before
    they are rounded to half precision. With `cap`, a logit z is cap · tanh(z / cap). If a target is neither an id nor
    `IGNORED`, a CPU raises an error, and on a GPU the loss is NaN.
    """
    needed = any(x is not None and x.requires_grad for x in (hidden, weight, bias))
    if not (needed and torch.is_grad_enabled()):
        return token_cross_entropy(hidden, weight, bias, targets, cap, copies).sum()
    loss: Tensor = _Summed.apply(hidden, weight, bias, targets, scale, cap, *(copies or (None, None)))
    return loss


@_eager
@torch.no_grad()
def token_cross_entropy(
    hidden: Float[Tensor, "N D"],
    weight: Float[Tensor, "V D"],
    bias: Float[Tensor, " V"] | None,
    targets: Int[Tensor, " N"],
    cap: float | None = None,
    copies: Copies | None = None,
) -> Float[Tensor, " N"]:
    """The loss of every position in nats, float32 (float64 as above); 0 where nothing is predicted."""
    scales = LogitScales(cap=cap, odds=None if copies is None else copies.odds)
    losses = _compute(hidden, weight, bias, targets, (False, False, False), scales).losses
    return losses if copies is None else losses + copies.total.masked_fill(targets == IGNORED, 0.0)


def soft_cap(logits: Float[Tensor, "*N V"], cap: float | None) -> Float[Tensor, "*N V"]:
    """cap · tanh(logits / cap), or the logits if there is no cap."""
    return logits if cap is None else cap * torch.tanh(logits / cap)


class LogitScales(NamedTuple):
    """What is done to the logits and to their gradients."""

    gradient: Float[Tensor, ""] | None = None
    """Factor of the gradients; None: 1."""
    cap: float | None = None
    """C of C tanh(z / C), which a logit z is replaced by; None: it is not."""
    odds: Float[Tensor, " N"] | None = None
    """m: with a loss l of the logits, l − log(1 + e^(l + m)) is the loss of both, but for the total. `Form.apply`
    replaces m by its gradient where gradients are made."""


class Computed(NamedTuple):
    """Losses, and the gradients of their sum in the types of the inputs; None: not needed."""

    losses: Float[Tensor, " N"]
    hidden: Float[Tensor, "N D"] | None
    weight: Float[Tensor, "V D"] | None
    bias: Float[Tensor, " V"] | None
    odds: Float[Tensor, " N"] | None = None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        scale: Tensor | None,
        cap: float | None,
        odds: Tensor | None,
        total: Tensor | None,
    ) -> Tensor:
        needed, scales = ctx.needs_input_grad[:3], LogitScales(scale, cap, odds)
        losses, *gradients = _compute(hidden, weight, bias, targets, needed, scales)
        of_total = None
        if total is not None:
            of_total = (targets != IGNORED).to(total.dtype)
            losses = losses + total * of_total
            of_total = of_total if scale is None else of_total * scale
        ctx.save_for_backward(*gradients, of_total)
        return losses.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, odds, total = (None if own is None else own * outer for own in ctx.saved_tensors)
        return *inputs, None, None, None, odds, total


def _compute(
    hidden: Float[Tensor, "N D"],
    weight: Float[Tensor, "V D"],
    bias: Float[Tensor, " V"] | None,
    targets: Int[Tensor, " N"],
    needed: tuple[bool, bool, bool],
    scales: LogitScales,
) -> Computed:
    """Losses, and the gradients of the inputs that are needed."""
    dtype = _product_dtype(hidden, weight)
    form = _form(hidden.device.type, dtype)
    if form.skips_ignored and bool((ignored := targets == IGNORED).any()):
        kept = (~ignored).nonzero().squeeze(1)
        odds = None if scales.odds is None else scales.odds[kept]
        found = _compute(hidden[kept], weight, bias, targets[kept], needed, scales._replace(odds=odds))
        losses = found.losses.new_zeros(len(targets)).index_copy_(0, kept, found.losses)
        own = None if found.hidden is None else torch.zeros_like(hidden).index_copy_(0, kept, found.hidden)
        odds = None if found.odds is None else torch.zeros_like(losses).index_copy_(0, kept, found.odds)
        return found._replace(losses=losses, hidden=own, odds=odds)
    with torch.autocast(hidden.device.type, enabled=False):
        return _compute_chunks(hidden, weight, bias, targets.contiguous(), needed, scales, dtype, form)


def _compute_chunks(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    needed: tuple[bool, bool, bool],
    scales: LogitScales,
    dtype: torch.dtype,
    form: Form,
) -> Computed:
    (n, d), v = hidden.shape, len(weight)
    c = form.columns(v)
    sums = torch.float64 if dtype == torch.float64 else torch.float32
    x, w = hidden.to(dtype), _padded(weight, c, dtype)
    b = None if bias is None else _padded(bias, c, dtype)

    losses = x.new_empty(n, dtype=sums)
    of_hidden = x.new_empty(n, d) if needed[0] else None
    of_weight = x.new_zeros(c, d, dtype=sums) if needed[1] else None
    of_bias = x.new_zeros(c, dtype=sums) if needed[2] else None
    odds = None if scales.odds is None else scales.odds.detach().to(sums, copy=True).contiguous()
    rows = _chunk_rows(n, c, x)
    buffer = x.new_empty(min(rows, n), c)
    for first in range(0, n, rows):
        part = x[first : first + rows]
        logits = buffer[: len(part)]
        if b is None:
            torch.mm(part, w.T, out=logits)
        else:
            torch.addmm(b, part, w.T, out=logits)
        own = scales._replace(odds=None if odds is None else odds[first : first + rows])
        form.apply(logits, v, targets[first : first + rows], losses[first : first + rows], any(needed), own)
        if of_hidden is not None:
            torch.mm(logits, w, out=of_hidden[first : first + rows])
        if of_weight is not None:
            _add_product(of_weight, logits.T, part)
        if of_bias is not None:
            of_bias += logits.sum(0, dtype=sums)
    return Computed(
        losses,
        None if of_hidden is None else of_hidden.to(hidden.dtype),
        None if of_weight is None else of_weight[:v].to(weight.dtype),
        None if of_bias is None or bias is None else of_bias[:v].to(bias.dtype),
        odds,
    )


def _product_dtype(hidden: Tensor, weight: Tensor) -> torch.dtype:
    """The type in which `F.linear` would compute; autocast leaves float64 alone."""
    kind, both = hidden.device.type, torch.promote_types(hidden.dtype, weight.dtype)
    if both != torch.float64 and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return both


def _padded(x: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    """A tensor in another type, with rows of zeros added; x itself if nothing changes."""
    if len(x) == rows:
        return x.detach().to(dtype)
    found = x.new_empty(rows, *x.shape[1:], dtype=dtype)
    found[: len(x)] = x
    found[len(x) :] = 0
    return found


def _chunk_rows(n: int, columns: int, like: Tensor) -> int:
    """Rows per chunk: chunks of about equal size, and on a GPU of whole tiles."""
    size = CHUNK_BYTES.get(like.device.type, LARGE_CHUNK_BYTES)
    most = max(LEAST_ROWS if like.device.type == "cpu" else 1, size // (columns * like.element_size()))
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
    """How losses are computed from logits."""

    apply: Callable[[Tensor, int, Tensor, Tensor, bool, LogitScales], None]
    """As `plain`."""
    columns: Callable[[int], int]
    """Columns of logits for a number of ids."""
    skips_ignored: bool
    """Whether rows without a prediction are left out: on a CPU they cost nothing to find."""


@cache
def _form(device: str, dtype: torch.dtype) -> Form:
    """The kernel on a GPU with Triton, for all but float64; torch's operations elsewhere."""
    if device == "cuda" and dtype != torch.float64 and HAS_TRITON:
        from shoestring.models.kernels import cross_entropy as kernel  # imports Triton

        return Form(kernel.fused, kernel.columns, False)
    return Form(plain, lambda ids: ids, device == "cpu")


def plain(
    logits: Float[Tensor, "n V"],
    _ids: int,
    targets: Int[Tensor, " n"],
    losses: Float[Tensor, " n"],
    gradient: bool,
    scales: LogitScales,
) -> None:
    """Write the losses of a chunk and, with `gradient`, replace the logits by the gradient of their scaled sum; without
    it they are lost.

    `_ids` is the number of columns that count: here all of them.
    """
    wide = logits.to(losses.dtype)  # the same tensor, unless it is in half precision
    slope = None
    if scales.cap is not None:
        wide = wide.div_(scales.cap).tanh_()
        slope = wide.square().neg_().add_(1) if gradient else None
        wide *= scales.cap
    if not gradient:
        torch.log_softmax(wide, 1, out=wide)  # in its place: what F.cross_entropy would allocate is as large
        losses.copy_(F.nll_loss(wide, targets.long(), reduction="none", ignore_index=IGNORED))
        if scales.odds is not None:
            losses -= F.softplus(losses + scales.odds).masked_fill_(targets == IGNORED, 0.0)
        return
    ignored = (targets == IGNORED)[:, None]
    at = targets[:, None].long().masked_fill(ignored, 0)
    wide -= wide.amax(1, keepdim=True)
    chosen = wide.gather(1, at)
    total = wide.exp_().sum(1, keepdim=True)
    losses.copy_((total.log() - chosen).masked_fill_(ignored, 0)[:, 0])
    wide /= total.masked_fill_(ignored, math.inf)
    wide.scatter_add_(1, at, ignored.to(wide.dtype) - 1)
    share = None
    if scales.odds is not None:
        both = losses + scales.odds
        losses -= F.softplus(both).masked_fill_(ignored[:, 0], 0.0)
        share = both.neg().sigmoid_()[:, None]  # of the logits in the probability of the target
        to_odds = (share - 1).masked_fill_(ignored, 0)[:, 0]
        scales.odds.copy_(to_odds if scales.gradient is None else to_odds * scales.gradient)
    for factor in (slope, share, scales.gradient):
        if factor is not None:
            wide *= factor
    if wide is not logits:
        logits.copy_(wide)
