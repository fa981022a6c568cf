"""What a scaling law says about a plan: whether the model is of the size that its computation is best spent on."""

from __future__ import annotations

from typing import NamedTuple

from shoestring.core.facts import Line, Plan
from shoestring.core.units import Count, Flops, Interval

_NEAR = 2.0
"""A model within this factor of the optimum loses next to nothing: the minimum of a law is flat."""


class Optimum(NamedTuple):
    """Where a law has its least loss at the computation of a plan."""

    parameters: Interval
    tokens: float
    source: str
    """What the law was fitted to."""
    is_beyond: bool
    """The computation lies outside of what it was fitted to."""


def law_lines(optimum: Optimum, plan: Plan, parameters: float) -> list[Line]:
    """Whether a model of `parameters`, counted as the law counts them, is near the optimum for this plan."""
    best = optimum.parameters.expected
    shown = optimum.parameters.show(lambda value: Count(round(value)).short())
    budget = "this computation" if plan.flops is None else Flops(plan.flops).short()
    beyond = "; beyond what it was fitted to" if optimum.is_beyond else ""
    lines = [
        Line(
            quantity="best model",
            value=shown,
            reason=f"for {budget}, with {Count(round(optimum.tokens)).short()} tokens, by {optimum.source}{beyond}",
        )
    ]
    ratio = parameters / best
    if ratio > _NEAR:
        advice = f"too large by {ratio:.3g}: a smaller model would see more tokens and end lower"
    elif ratio < 1 / _NEAR:
        advice = f"too small by {1 / ratio:.3g}: a larger model would end lower for the same computation"
    else:
        advice = f"near the optimum: {ratio:.3g} of it"
    return [*lines, Line(quantity="this model", value=Count(round(parameters)).short(), reason=advice)]
