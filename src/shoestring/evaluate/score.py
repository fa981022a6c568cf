"""From the loss of every prediction to a record."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shoestring.core.facts import Evaluation
from shoestring.evaluate.classes import ClassScores


class Rate(Protocol):
    """An entropy rate, in nats a token, and its standard error."""

    @property
    def nats(self) -> float: ...

    @property
    def error(self) -> float: ...


class Others(Protocol):
    """What others lose on the same rows."""

    @property
    def losses(self) -> Mapping[str, float]: ...

    @property
    def by_position(self) -> Mapping[str, tuple[float, ...]]: ...

    @property
    def rate(self) -> Rate | None: ...


def evaluation(
    losses: NDArray[np.float64],
    step: int,
    bytes_per_token: float | None,
    others: Others,
    predicted: NDArray[np.bool_] | None = None,
    classes: tuple[ClassScores, ClassScores] | None = None,
) -> Evaluation:
    """`losses` is (rows, length) in nats, of which all count, or those `predicted`; `bytes_per_token` is None for a
    tokenizer that does not keep every byte. `classes` are the model's scores and those of the majority class."""
    own, majority = classes or (None, None)
    counted = np.ones(losses.shape, dtype=bool) if predicted is None else predicted
    loss = float(losses[counted].mean())
    sums, counts = np.where(counted, losses, 0.0).sum(axis=0), counted.sum(axis=0)
    return Evaluation(
        step=step,
        rows=losses.shape[0],
        tokens=int(counted.sum()),
        loss=loss,
        perplexity=math.exp(min(loss, 700.0)),
        bits_per_byte=None if bytes_per_token is None else loss / math.log(2) / bytes_per_token,
        loss_by_position=tuple(float(total / count) if count else None for total, count in zip(sums, counts)),
        strategies=dict(others.losses),
        strategies_by_position=dict(others.by_position),
        entropy_rate=None if others.rate is None else others.rate.nats,
        entropy_rate_error=None if others.rate is None else others.rate.error,
        accuracy=None if own is None else own.accuracy,
        macro_f1=None if own is None else own.macro_f1,
        majority_accuracy=None if majority is None else majority.accuracy,
        majority_macro_f1=None if majority is None else majority.macro_f1,
    )
