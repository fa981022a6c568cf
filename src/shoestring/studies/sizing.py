"""The size of a planned model by a scaling law. Without numpy, which takes longer to load than a plan to make."""

from __future__ import annotations

import json
import math
from importlib import resources
from pathlib import Path

from shoestring.core.errors import UserError
from shoestring.core.numeric import interpolate
from shoestring.core.recipe import Recipe
from shoestring.core.records import Law, Line, Plan, Profile
from shoestring.core.units import Interval
from shoestring.laws.form import Surface
from shoestring.planning.lines import Optimum, law_lines
from shoestring.studies.run_results import COUNTS, count_params
from shoestring.studies.run_results import Count as Counting

_TAIL = 0.025
"""Share of the resamples on each side of a 95 % interval."""


def read_law(path: Path | None) -> Law:
    """The law in a file; default: the package's own fit to Chinchilla's data."""
    if path is not None:
        return Law.read(path)
    text = resources.files("shoestring.laws").joinpath("chinchilla.json").read_text(encoding="utf-8")
    return Law.from_dict(json.loads(text), "chinchilla.json of the package")


def surface_of(law: Law) -> Surface:
    if not law.coefficients:
        raise UserError(f"the law of {law.source} has no surface E + A/N^alpha + B/D^beta; fit it with --approach 3")
    return Surface(*(law.coefficients[name].value for name in Surface._fields))


def counting_of(law: Law) -> Counting:
    """How the law counts parameters, so that models are counted the same way."""
    if law.counting not in COUNTS:
        raise UserError(f"the law of {law.source} counts parameters as {law.counting!r}; known: {', '.join(COUNTS)}")
    return law.counting


def has_optimum(law: Law) -> bool:
    """Whether one size is the best: the law has both terms."""
    return "a_opt" in law.coefficients


def is_beyond(law: Law, flops: float) -> bool:
    """Whether the compute is outside the range of the law's points."""
    return not law.flops[0] <= flops <= law.flops[1]


def size_lines(law: Law, recipe: Recipe, profile: Profile, plan: Plan) -> list[Line]:
    """Lines for the plan's table: whether the planned model has the best size for its compute."""
    if plan.flops is None or not has_optimum(law):
        return []
    _, tokens, _ = surface_of(law).optimum(plan.flops, law.flops_per_product)
    beyond = is_beyond(law, plan.flops)
    optimum = Optimum(best_params(law, plan.flops), tokens, f"the law of {law.source}", beyond)
    return law_lines(optimum, plan, count_params(profile, recipe, counting_of(law)))


def best_params(law: Law, flops: float) -> Interval:
    """The best number of parameters for some compute, with the 95 % interval of the law's resamples."""
    value = surface_of(law).optimum(flops, law.flops_per_product)[0]
    resampled = [Surface(*row) for row in law.samples if min(row[1:]) > 0]
    params = sorted(one.optimum(flops, law.flops_per_product)[0] for one in resampled)
    if not params or not math.isfinite(params[-1]):
        return Interval.exactly(value)
    low, high = (interpolate(list(enumerate(params)), (len(params) - 1) * share) for share in (_TAIL, 1 - _TAIL))
    return Interval(low, value, high)
