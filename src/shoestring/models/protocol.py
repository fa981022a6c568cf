"""What the loop, the probe and the evaluation know about a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor, nn

Rows = Int[Tensor, "rows tokens"]
"""Token ids; a row of `length + 1` tokens makes `length` predictions."""


class Loss(NamedTuple):
    """A loss is a sum and a count until it is divided once, over everything that belongs to a step."""

    nats: Float[Tensor, ""]
    """Summed, with the gradient."""
    predictions: int


class LanguageModel(nn.Module, ABC):
    """Base of every family."""

    @abstractmethod
    def token_losses(self, rows: Rows) -> Float[Tensor, "rows predictions"]:
        """The loss of every prediction, in nats."""

    def loss(self, rows: Rows) -> Loss:
        losses = self.token_losses(rows)
        return Loss(losses.sum(), losses.numel())

    @abstractmethod
    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Every parameter in exactly one group, such as "embedding" or "attention"."""

    def decayed(self) -> list[nn.Parameter]:
        """Parameters that weight decay applies to: matrices, but no embedding."""
        groups = self.parameter_groups()
        return [p for name, group in groups.items() if name != "embedding" for p in group if p.ndim >= 2]
