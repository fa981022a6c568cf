"""The factor of the loss in fp16: as `torch.amp.GradScaler`, but on the device, so that the host need not wait.

In fp16 a number below 6e-8 is 0 and one above 65,504 infinite. Gradients are computed times a factor that keeps the
small ones; the update divides by it. A gradient that overflows is left out and halves the factor; many good ones in a
row double it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

FIRST = 2.0**10
"""Each prediction has a loss of its own, which is not divided by their number. GradScaler's 2¹⁶ for a mean over the
predictions of a batch is a smaller factor for each of them."""
LEAST = 2.0**-10
"""A gradient that overflows even so is a fault."""
MOST = 2.0**24
GROWTH, BACKOFF, INTERVAL = 2.0, 0.5, 2000
"""As in GradScaler."""
_NAMES = ("loss scale", "steps since loss scale changed")


class LossScale:
    """The factor, and the steps since it changed, on the device; both are updated in place, as CUDA graphs need it."""

    def __init__(self, device: torch.device):
        self.value = torch.full((), FIRST, device=device)
        self._steps = torch.zeros((), device=device)

    @torch.no_grad()
    def adjust(self, overflow: Tensor, refused: Tensor) -> None:
        """Follow a step whose gradient overflowed or not; a refused step changes nothing."""
        steps = self._steps + 1
        grown = steps >= INTERVAL
        good = torch.where(grown, (self.value * GROWTH).clamp(max=MOST), self.value)
        value = torch.where(overflow, self.value * BACKOFF, good)
        self._steps.copy_(torch.where(refused, self._steps, torch.where(overflow | grown, 0.0, steps)))
        self.value.copy_(torch.where(refused, self.value, value))

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds, by name."""
        return dict(zip(_NAMES, (self.value, self._steps), strict=True))

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the result of `tensors`; a checkpoint of another precision has none, and the factor starts anew."""
        first = {name: torch.tensor(value) for name, value in zip(_NAMES, (FIRST, 0.0), strict=True)}
        for name, tensor in self.tensors().items():
            tensor.copy_(tensors.get(name, first[name]))
