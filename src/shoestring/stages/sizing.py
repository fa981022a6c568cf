"""Sizing: what a law says of the size of a planned model. Without numpy, which takes longer to load than a plan."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from shoestring.core.errors import UserError
from shoestring.core.facts import Law, Line, Plan, Profile
from shoestring.core.recipe import Recipe
from shoestring.core.units import Interval
from shoestring.laws.form import Surface
from shoestring.plan.law import Optimum, law_lines
from shoestring.stages.trained import COUNTS, count_params
from shoestring.stages.trained import Count as Counting

_LEVEL = 0.95


def read_law(path: Path | None) -> Law:
    """The law in a file, or the one that comes with the package: Chinchilla's data, fitted anew."""
    if path is not None:
        return Law.read(path)
    text = resources.files("shoestring.laws").joinpath("chinchilla.json").read_text(encoding="utf-8")
    return Law.from_dict(json.loads(text), "chinchilla.json of the package")


def surface_of(law: Law) -> Surface:
    if not law.coefficients:
        raise UserError(f"the law of {law.source} has no surface E + A/N^alpha + B/D^beta; fit it with --approach 3")
    return Surface(*(law.coefficients[name].value for name in Surface._fields))


def counting_of(law: Law) -> Counting:
    """How the law counts parameters, so that models are counted alike."""
    if law.counting not in COUNTS:
        raise UserError(f"the law of {law.source} counts parameters as {law.counting!r}; known: {', '.join(COUNTS)}")
    return law.counting


def has_optimum(law: Law) -> bool:
    """Whether a size is the best one: both terms are there."""
    return "a_opt" in law.coefficients


def is_beyond(law: Law, flops: float) -> bool:
    """Whether no point of the law has about so much compute."""
    low, high = law.flops
    return not low <= flops <= high


def size_lines(law: Law, recipe: Recipe, profile: Profile, plan: Plan) -> list[Line]:
    """Whether a planned model has the best size for its compute: lines for the plan's table."""
    if plan.flops is None or not has_optimum(law):
        return []
    _, tokens, _ = surface_of(law).optimum(plan.flops, law.flops_per_product)
    source = f"the law of {law.source}"
    optimum = Optimum(best_params(law, plan.flops), tokens, source, is_beyond(law, plan.flops))
    return law_lines(optimum, plan, count_params(profile, recipe, counting_of(law)))


def best_params(law: Law, flops: float) -> Interval:
    """The best number of parameters for some compute, with 95 % of what the law's resamples say."""
    value = surface_of(law).optimum(flops, law.flops_per_product)[0]
    resampled = [Surface(*row) for row in law.samples if min(row[1:]) > 0]
    found = sorted(one.optimum(flops, law.flops_per_product)[0] for one in resampled)
    if not found or not math.isfinite(found[-1]):
        return Interval.exactly(value)
    return Interval(_quantile(found, (1 - _LEVEL) / 2), value, _quantile(found, (1 + _LEVEL) / 2))


def _quantile(ascending: Sequence[float], share: float) -> float:
    """On the line between the two values around it."""
    place = share * (len(ascending) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ascending) - 1)
    return ascending[low] + (place - low) * (ascending[high] - ascending[low])
