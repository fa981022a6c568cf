"""The held-out loss that a plan may expect, and when it is expected to turn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from shoestring.core.records import Line
from shoestring.core.units import Count, counted, with_name

_NORMAL_90 = 1.645
"""Standard deviations to either side that hold 90 % of a normal distribution."""
_BY_SIZE, _BY_TOKENS = (-0.05, 0.05), (-0.12, 0.08)
"""Change of ln loss per unit of ln parameters and of ln predictions, before any run is seen: mean and standard
deviation. Hoffmann et al. 2022 have -0.34 and -0.28 of what is above the loss that no model goes below, which for the
losses of small models is about this much of the whole."""
_OTHER_SETTINGS = 0.04
"""Standard deviation of ln loss between runs of one size and length, by seed, learning rate and shape."""


class PastLoss(NamedTuple):
    """What a finished run on the same data came to."""

    parameters: float
    predictions: float
    loss: float


class ExpectedLoss(NamedTuple):
    """A loss and the ends of its 90 % interval."""

    loss: float
    low: float
    high: float


def expected_loss(past: Sequence[PastLoss], parameters: float, predictions: float) -> ExpectedLoss | None:
    """The loss of a run, by runs on the same data; None: there are none.

    ln loss is linear in ln parameters and ln predictions near a run. The posterior of the three coefficients is normal,
    and updated by one run after the other.
    """
    seen = [run for run in past if run.loss > 0]
    if not seen:
        return None
    mean = [math.log(seen[0].loss), _BY_SIZE[0], _BY_TOKENS[0]]
    errors = (1.0, _BY_SIZE[1], _BY_TOKENS[1])
    covariance = [[errors[i] ** 2 if i == j else 0.0 for j in range(3)] for i in range(3)]
    for run in seen:
        row = _row(run.parameters, run.predictions, parameters, predictions)
        gain = [sum(c * x for c, x in zip(line, row)) for line in covariance]
        variance = sum(x * g for x, g in zip(row, gain)) + _OTHER_SETTINGS**2
        left = math.log(run.loss) - sum(m * x for m, x in zip(mean, row))
        mean = [m + g * left / variance for m, g in zip(mean, gain)]
        covariance = [
            [c - gain[i] * gain[j] / variance for j, c in enumerate(line)] for i, line in enumerate(covariance)
        ]
    half = _NORMAL_90 * math.sqrt(max(0.0, covariance[0][0]) + _OTHER_SETTINGS**2)
    return ExpectedLoss(*(math.exp(mean[0] + sign * half) for sign in (0, -1, 1)))


def _row(parameters: float, predictions: float, at_parameters: float, at_predictions: float) -> tuple[float, ...]:
    return 1.0, math.log(parameters / at_parameters), math.log(predictions / at_predictions)


TURN, TURN_FACTOR = 10.0, 2.0
"""Epochs after which the held-out loss turns, within that factor either way. Four runs without dropout turned after
8.8 to 13.1 epochs: networks of 124 k and 637 k parameters on 16 and 49 kB of stories, and one of 4.9 M on 7.3 MB; one
of 124 k parameters on 49 kB had not after 14. By the law of Muennighoff et al. 2023 repeated text has lost most of its
worth after 15.4 epochs."""
TURN_LEAST, TURN_SHARE = 1e5, 0.5
"""Parameters, and parameters per position of an epoch, from which on that was seen: two networks of 22 k parameters did
not turn within 40 epochs, and a text that is large for its network was not tried."""


def turn_epochs(parameters: float, unique: float) -> float | None:
    """The epoch after which the held-out loss of a network without dropout is expected to rise, within `TURN_FACTOR`
    either way; `unique` are the positions of an epoch. None: not known for such a network and text."""
    return TURN if parameters >= max(TURN_LEAST, TURN_SHARE * unique) else None


OVERFITTING, _OVER = "overfitting", " epochs over "


def turn_lines(epochs: float, parameters: float, unique: float, text: str) -> list[Line]:
    """A note where a run is expected to overfit; `text` is its corpus, for people."""
    turn = turn_epochs(parameters, unique)
    if turn is None or epochs <= turn:
        return []
    low, high = (f"{turn * by:.2g}" for by in (1 / TURN_FACTOR, TURN_FACTOR))
    size = with_name(Count(round(parameters)).short(), "parameters")
    reason = (
        f"{_shown(epochs)}{_OVER}{text} with {size}: the held-out loss is expected to turn after {low} to {high}; get "
        f"more text, or take a smaller model, model.dropout, more train.weight_decay, or budget.epochs = {turn:.2g}"
    )
    return [Line(quantity=OVERFITTING, value=f"after about {turn:.2g} epochs", reason=reason)]


def turn_again(line: Line, epochs: float) -> list[Line]:
    """The line of `turn_lines` for another number of epochs of the same run."""
    _, _, rest = line.reason.partition(_OVER)
    return [replace(line, reason=f"{_shown(epochs)}{_OVER}{rest}")] if epochs > TURN else []


def _shown(epochs: float) -> str:
    return f"{epochs:,.0f}" if epochs >= 100 else f"{epochs:.3g}"


def loss_lines(found: ExpectedLoss | None, runs: int) -> list[Line]:
    """The line of the plan; none without runs."""
    if found is None:
        return []
    reason = f"90 %: {found.low:.3g} to {found.high:.3g}, by {counted(runs, 'finished run')} on the same data here"
    return [Line(quantity="held-out loss", value=f"about {found.loss:.3g}", reason=reason)]
