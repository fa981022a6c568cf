"""The options of a fit of a scaling law, checked together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast, get_args

from shoestring.core.errors import UserError
from shoestring.laws.isoflop import WINDOW
from shoestring.laws.surface import Penalty


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The options of a fit. An approach that fails is a note where another one succeeds."""

    approaches: tuple[int, ...] = (1, 2, 3)
    penalty: Penalty = "huber"
    delta: float = 1e-3
    """Of Huber's penalty."""
    window: float = WINDOW
    """Of parabolas: the largest factor between a size and the one with the lowest loss."""
    exponent: float | None = None
    """Of N in approaches 1 and 2, N = k C^exponent; None: fitted. That of D is 1 - exponent."""
    resamples: int = 4000
    seed: int = 0
    name: str | None = None
    """Of the law; default: its source."""


def ask(
    approach: str,
    penalty: str,
    resamples: int,
    name: str | None,
    delta: float | None = None,
    window: float = WINDOW,
    exponent: float | None = None,
) -> Asked:
    """The options of a fit, checked; `delta` is for Huber's penalty alone, `exponent` for approaches 1 and 2."""
    if delta is not None and penalty != "huber":
        raise UserError(f"--delta {delta:g}: is for --penalty huber, not {penalty}")
    if delta is not None and not 0 < delta < math.inf:
        raise UserError(f"--delta {delta:g}: must be above 0; 1e-3 is customary")
    if approach not in ("1", "2", "3", "all"):
        raise UserError(f"--approach {approach}: must be 1, 2, 3 or all")
    if penalty not in get_args(Penalty):
        raise UserError(f"--penalty {penalty}: must be one of {', '.join(get_args(Penalty))}")
    if not window > 1:
        raise UserError(f"--window {window:g}: must be above 1; 5 takes sizes from a fifth to 5 times the best")
    if exponent is not None and not 0 < exponent < 1:
        raise UserError(f"--exponent {exponent:g}: must be between 0 and 1; 0.5 makes N and D grow alike")
    if exponent is not None and approach == "3":
        raise UserError("--exponent: is for approaches 1 and 2; the surface of approach 3 has exponents of its own")
    every = (1, 2, 3) if exponent is None else (1, 2)
    chosen = every if approach == "all" else (int(approach),)
    return Asked(
        approaches=chosen,
        penalty=cast(Penalty, penalty),
        delta=delta or 1e-3,
        window=window,
        exponent=exponent,
        resamples=resamples,
        name=name,
    )
