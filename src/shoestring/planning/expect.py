"""The held-out loss that a plan may expect, and when it is expected to turn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from shoestring.core.records import Line
from shoestring.core.units import counted

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


def loss_lines(found: ExpectedLoss | None, runs: int) -> list[Line]:
    """The line of the plan; none without runs."""
    if found is None:
        return []
    reason = f"90 %: {found.low:.3g} to {found.high:.3g}, by {counted(runs, 'finished run')} on the same data here"
    return [Line(quantity="held-out loss", value=f"about {found.loss:.3g}", reason=reason)]
