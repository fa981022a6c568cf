"""The loss of a batch as a sum and a count."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from shoestring.models.batch import Batch
from shoestring.models.families.perceiver_ar.network import PerceiverAR
from shoestring.models.language_model import LanguageModel


class Loss(NamedTuple):
    nats: Tensor
    """Summed, with the gradient."""
    predictions: int


def loss_of(model: LanguageModel, rows: Batch | Tensor) -> Loss:
    """Of all predictions; those of a Perceiver AR are made by its latents alone."""
    batch = Batch.of(rows)
    if isinstance(model, PerceiverAR):
        batch = batch._replace(last=model.latents if batch.last is None else min(batch.last, model.latents))
    return Loss(model(batch), batch.predictions())
