"""A model and its optimizer on a device: the one place where gradients are made and applied.

The probe measures this very code, so that what is planned is what runs.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from shoestring.core.recipe import Train
from shoestring.models import LanguageModel


class Sum(NamedTuple):
    """A loss over many predictions, not divided yet."""

    nats: float
    predictions: int

    @property
    def mean(self) -> float:
        return self.nats / self.predictions


class Learner:
    """Accumulate gradients over micro-batches, then update once."""

    def __init__(self, model: LanguageModel, settings: Train, device: torch.device):
        self.model = model.to(device)
        self.device = device
        self.clip = settings.clip
        self.bf16 = settings.precision == "bf16" or (settings.precision == "auto" and device.type == "cuda")
        self.optimizer = _adamw(self.model, settings)
        self._parameters = [p for p in self.model.parameters() if p.requires_grad]

    def precision(self) -> AbstractContextManager[object]:
        """The context that products run in."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16) if self.bf16 else nullcontext()

    def to_device(self, rows: Tensor) -> Tensor:
        return rows.to(self.device, non_blocking=True)

    def accumulate(self, rows: Tensor, per_device: int) -> Sum:
        """Add the gradient of the summed loss of all rows, `per_device` rows at a time; waits for the device."""
        nats, predictions = torch.zeros((), device=self.device, dtype=torch.float64), 0
        for part in self.to_device(rows).split(per_device):
            with self.precision():
                loss = self.model.loss(part)
            loss.nats.backward()
            nats += loss.nats.detach()
            predictions += loss.predictions
        return Sum(nats.item(), predictions)

    def update(self, predictions: int, lr: float) -> float:
        """Divide the gradient by `predictions`, clip it, take a step and clear it; returns its norm before clipping.

        A norm that is not finite takes no step: the weights are as they were.
        """
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        torch._foreach_div_(gradients, float(predictions))
        norm = torch.nn.utils.get_total_norm(gradients)
        value = norm.item()
        if math.isfinite(value):
            torch.nn.utils.clip_grads_with_norm_(self._parameters, self.clip, norm)
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return value

    @torch.no_grad()
    def score(self, rows: Tensor, per_device: int) -> Tensor:
        """The loss of every prediction, (rows, length), on the CPU in float64; no gradient, no change of state."""
        parts = []
        for part in rows.split(per_device):
            with self.precision():
                parts.append(self.model.token_losses(self.to_device(part)).double().cpu())
        return torch.cat(parts)


def _adamw(model: LanguageModel, settings: Train) -> torch.optim.AdamW:
    decayed = model.decayed()
    ids = {id(p) for p in decayed}
    others = [p for p in model.parameters() if id(p) not in ids]
    groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=settings.lr, betas=(settings.beta1, settings.beta2), fused=True)
