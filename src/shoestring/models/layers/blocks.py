"""What all families share: first weights, norms for a stream in half precision, recomputation, scoring.

Shapes: R rows, T positions, D width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint

from shoestring.core.family import Recompute


class Block(nn.Module):
    """A layer. Its backward pass may compute all of the forward pass again, or some parts."""

    recompute: Recompute = "none"
    dropout: float
    attention_dropout: float | None = None
    """None: as `dropout`."""

    @property
    def dropping(self) -> float:
        """The share that is dropped in this pass. Without dropout, the code of a pass does not depend on its mode."""
        return self.dropout if self.dropout and self.training else 0.0

    @property
    def dropping_attention(self) -> float:
        """The same of attention weights."""
        rate = self.dropout if self.attention_dropout is None else self.attention_dropout
        return rate if rate and self.training else 0.0

    @property
    def has_modes(self) -> bool:
        """Whether the code of a pass depends on its mode."""
        return bool(self.dropout or self.attention_dropout)

    def dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropping) if self.dropping else x

    def part(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """A part with large and cheap results: computed again in the backward pass if `recompute` is "selective"."""
        if self.recompute != "selective" or not torch.is_grad_enabled():
            return function(*inputs)
        found: Tensor = checkpoint(function, *inputs, use_reentrant=False)
        return found


def run(block: nn.Module, *inputs: object) -> Any:
    """The output of a layer; nothing inside it is kept for the backward pass if `recompute` is "full"."""
    if _as_in_training:
        return tree_map_only(Tensor, _without_graph, block(*inputs))
    if getattr(block, "recompute", "none") != "full" or not torch.is_grad_enabled():
        return block(*inputs)
    return checkpoint(block, *inputs, use_reentrant=False)


_as_in_training = False
"""Whether layers that are scored run the code of training passes."""


@contextlib.contextmanager
def scoring_as_in_training() -> Iterator[None]:
    """Score with the code that was compiled for training passes: nothing is compiled for scoring alone.

    That code is for passes with gradients. What it keeps for a backward pass is freed after each layer.
    """
    global _as_in_training
    _as_in_training = True
    try:
        with torch.enable_grad():
            yield
    finally:
        _as_in_training = False


def scoring_mode() -> torch.set_grad_enabled:
    """The gradient mode of a pass that is scored: off, except within `scoring_as_in_training`."""
    return torch.set_grad_enabled(_as_in_training)


def _without_graph(x: Tensor) -> Tensor:
    return x.detach().requires_grad_(x.requires_grad)


def no_change(x: Tensor) -> Tensor:
    """Zeros like x. They require a gradient where x does, so that all layers get the same kind of tensors."""
    found: Tensor = _NoChange.apply(x)
    return found


class _NoChange(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    @staticmethod
    def backward(*_: Any) -> None:
        return None


FIRST_DEVIATION = 0.02


@torch.no_grad()
def draw_weights(model: nn.Module, seed: int, residual_scale: float = 1.0) -> None:
    """Draw first weights from `seed`, on the CPU: tables and matrices normal by FIRST_DEVIATION, biases 0, gains kept.

    The deviation of `out` and `down`, whose output is added to the stream, is multiplied by `residual_scale`.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2:
            scale = residual_scale if name.endswith(("out.weight", "down.weight")) else 1.0
            parameter.normal_(0.0, FIRST_DEVIATION * scale, generator=generator)
        elif name.endswith("bias"):
            parameter.zero_()


def stream_type(like: Tensor) -> torch.dtype:
    """The type of products, which autocast may set to another than that of the weights."""
    kind = like.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else like.dtype


def as_stream(x: Tensor) -> Tensor:
    """x in the type of products, as the start of the residual stream; autocast would leave it at float32."""
    return x.to(stream_type(x))


def wide(x: Tensor) -> Tensor:
    """x in float32 at least."""
    return x.float() if x.dtype.itemsize < 4 else x


class RMSNorm(nn.RMSNorm):
    """Computed in float32 at least, returned in the type of the stream."""

    def forward(self, x: Float[Tensor, "*N D"]) -> Float[Tensor, "*N D"]:
        return F.rms_norm(wide(x), self.normalized_shape, wide(self.weight), self.eps).to(x.dtype)


class PlainNorm(RMSNorm):
    """An RMSNorm whose gains stay at 1."""

    def __init__(self, channels: int, eps: float):
        super().__init__(channels, eps=eps)
        del self.weight
        self.register_buffer("weight", torch.ones(channels), persistent=False)


class LayerNorm(nn.LayerNorm):
    """Computed in float32 at least, returned in the type of the stream."""

    def forward(self, x: Float[Tensor, "R T D"]) -> Float[Tensor, "R T D"]:
        weight, bias = wide(self.weight), None if self.bias is None else wide(self.bias)
        return F.layer_norm(wide(x), self.normalized_shape, weight, bias, self.eps).to(x.dtype)
