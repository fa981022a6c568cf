"""A model and its optimizer on a device: the one place where gradients are made and applied.

The probe measures this very code, so that what is planned is what runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoestring.core.recipe import Train
from shoestring.models import Batch, LanguageModel

SomeRows = Batch | Tensor | NDArray[np.int64]
"""What a learner reads: a batch, or the ids of rows that are one stream, (rows, length + 1)."""


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

    def accumulate(self, rows: SomeRows, per_device: int) -> Sum:
        """Add the gradient of the summed loss of all rows, `per_device` rows at a time; waits for the device."""
        batch, nats = Batch.of(rows), torch.zeros((), device=self.device, dtype=torch.float64)
        for part in batch.to(self.device).split(per_device):
            with self.precision():
                loss = self.model.token_losses(part).sum()
            loss.backward()
            nats += loss.detach()
        predictions = batch.predictions()  # counted where the rows come from, while the device is at work
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
    def score(self, rows: SomeRows, per_device: int) -> Tensor:
        """The loss of every prediction, (rows, length), on the CPU in float64; no gradient, no change of state.

        NaN where a batch predicts nothing: `nanmean` is the mean over the predictions, of packed rows and of others.
        """
        parts = []
        for part in self._parts(rows, per_device):
            with self.precision():
                losses = self.model.token_losses(part)
            parts.append(losses.double().masked_fill(~part.predicted(), math.nan).cpu())
        return torch.cat(parts)

    @torch.no_grad()
    def log_probs(self, rows: SomeRows, per_device: int) -> Tensor:
        """The logarithm of the distribution of every next token, (rows, length, vocabulary), on the CPU in float32.

        Also where a batch predicts nothing.
        """
        parts = []
        for part in self._parts(rows, per_device):
            with self.precision():
                logits = self.model.logits(part.inputs())
            parts.append(logits.float().log_softmax(-1).cpu())
        return torch.cat(parts)

    def _parts(self, rows: SomeRows, per_device: int) -> Iterator[Batch]:
        """One after another on the device."""
        return (part.to(self.device) for part in Batch.of(rows).split(per_device))


def _adamw(model: LanguageModel, settings: Train) -> torch.optim.AdamW:
    decayed = model.decayed()
    ids = {id(p) for p in decayed}
    others = [p for p in model.parameters() if id(p) not in ids]
    groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=settings.lr, betas=(settings.beta1, settings.beta2), fused=True)
