"""AdamW with a state of 8 bits per number, by bitsandbytes: each block of 256 numbers has a scale of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from shoestring.core.errors import MissingExtra
from shoestring.core.sections import number
from shoestring.core.train_section import Train
from shoestring.training.optimizer import Waiting

if TYPE_CHECKING:
    from shoestring.training.optimizer import Weights

LEAST = 4096
"""Numbers of a tensor from which on its state has 8 bits; that of smaller ones has 32."""


class AdamW8bit(Waiting):
    """The library's optimizer; between updates its state holds tensors alone, so that it is saved as any other."""

    inner: Any

    def prepare(self) -> None:
        """Allocate missing state."""
        for at, group in enumerate(self.param_groups):
            for place, p in enumerate(group["params"]):
                if not self.state[p]:
                    self.inner.init_state(group, p, at, place)
        self._count_in_tensors()

    @torch.no_grad()
    def step(self) -> None:
        for state in self.state.values():
            state["step"] = int(state["step"])
        super().step()
        self._count_in_tensors()

    def _count_in_tensors(self) -> None:
        for state in self.state.values():
            state["step"] = torch.as_tensor(float(state["step"]))


def make_adamw8bit(weights: Weights, settings: Train) -> list[AdamW8bit]:
    """AdamW for all weights, with states of 8 bits."""
    try:
        from bitsandbytes.optim.adamw import AdamW8bit as Theirs
    except ImportError as cause:
        raise MissingExtra('train.optimizer = "adamw8bit"', "bitsandbytes", "adamw8bit") from cause
    decay = number(settings.weight_decay)
    groups = [
        {"params": weights.plain, "weight_decay": 0.0},
        {"params": [*weights.decayed, *weights.matrices], "weight_decay": decay},
    ]
    betas = (settings.beta1, number(settings.beta2))
    given = [group for group in groups if group["params"]]
    return [AdamW8bit(Theirs(given, lr=0.0, betas=betas, min_8bit_size=LEAST))]
