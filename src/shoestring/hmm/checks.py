"""What no update of a fit may do; where one does, the counts or the M-step are wrong, and the fit stops."""

from __future__ import annotations

import torch
from torch import Tensor

from shoestring.core.errors import Fault
from shoestring.hmm.parameters import TOLERANCE, Parameters
from shoestring.hmm.resume import Epoch
from shoestring.hmm.schedule import FitSettings

ROUNDING = {torch.float32: 1e-6, torch.float64: 1e-9}
"""How much an exact step may lower likelihood and prior per token, as a fraction, before it counts as a fault."""


def check_tables(parameters: Parameters) -> None:
    """Raise Fault unless the M-step gave distributions: finite, not negative, and sums of 1."""
    off = [(table.double().sum(-1) - 1).abs().max() for table in parameters[:3]]
    low = [table.min() for table in parameters if table is not None]
    high = [] if parameters.end is None else [parameters.end.max() - 1]
    worst, lowest = numbers(torch.stack([*off, *high]).max(), torch.stack(low).min())
    if not (worst <= TOLERANCE and lowest >= 0):  # false for NaN, too
        raise Fault(f"the M-step gave tables that are no distributions: a row's sum is {worst:g} away from 1, "
                    f"the lowest cell {lowest:g}")  # fmt: skip


def check_rise(epochs: tuple[Epoch, ...], settings: FitSettings, dtype: torch.dtype) -> None:
    """Raise Fault if an exact EM step lowered what it must raise."""
    if settings.update != "all" or settings.tied_start or len(epochs) < 2:
        return
    before, now = epochs[-2:]
    if before.impossible != now.impossible:  # a prior makes sequences possible: the sum is over others than before
        return
    slack = ROUNDING[dtype] * max(1.0, abs(before.objective))
    if now.objective < before.objective - slack:
        raise Fault(
            f"EM lowered likelihood and prior from {before.objective:.9g} to {now.objective:.9g} nats per token in "
            f"epoch {before.epoch}, by more than the rounding of {dtype}: the counts or the M-step are wrong"
        )


def numbers(*values: Tensor) -> list[float]:
    """Several numbers with one wait for the device."""
    found: list[float] = torch.stack([value.double() for value in values]).tolist()
    return found
