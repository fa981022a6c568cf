"""From the loss of every prediction to a record."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from shoestring.core.facts import Evaluation


def evaluation(
    losses: NDArray[np.float64], step: int, bytes_per_token: float | None, strategies: dict[str, float]
) -> Evaluation:
    """`losses` is (rows, length) in nats; `bytes_per_token` is None for a tokenizer that does not keep every byte."""
    loss = float(losses.mean())
    return Evaluation(
        step=step,
        rows=losses.shape[0],
        tokens=losses.size,
        loss=loss,
        perplexity=math.exp(min(loss, 700.0)),
        bits_per_byte=None if bytes_per_token is None else loss / math.log(2) / bytes_per_token,
        loss_by_position=tuple(float(x) for x in losses.mean(axis=0)),
        strategies=strategies,
    )
