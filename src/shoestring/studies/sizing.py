"""The size of a planned model by a scaling law. Without numpy, which takes longer to load than a plan to make."""

from __future__ import annotations

import bisect
import json
import math
from importlib import resources
from pathlib import Path

from shoestring.core.errors import UserError
from shoestring.core.law_record import Allocation, Estimate, Law
from shoestring.core.numeric import corrected_ends, interpolate
from shoestring.core.recipe import Recipe
from shoestring.core.records import Line, Plan, Profile
from shoestring.core.units import Interval
from shoestring.laws import extrapolation
from shoestring.laws.form import Surface
from shoestring.planning.lines import Optimum, law_lines
from shoestring.studies.run_results import COUNTS, count_params
from shoestring.studies.run_results import Count as Counting


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
    """Whether one size is the best: the surface has both terms."""
    return "a_opt" in law.coefficients


def choose_allocation(law: Law, approach: int | None = None) -> Allocation | None:
    """The power laws of an approach; None for the surface, which is the default where it has a best size."""
    if approach == 3 or (approach is None and (has_optimum(law) or not law.allocations)):
        return None
    if approach is None:
        return max(law.allocations, key=lambda found: found.approach)
    for found in law.allocations:
        if found.approach == approach:
            return found
    known = [str(found.approach) for found in law.allocations if found.approach] + ["3"] * bool(law.coefficients)
    has = f"its approaches are {', '.join(known)}" if known else "it is of given minima"
    reasons = [f"\n  {note}" for note in law.notes if note.startswith(f"approach {approach}:")]
    raise UserError(f"--approach {approach}: the law of {law.source} does not have it; {has}{''.join(reasons)}")


def power_optimum(allocation: Allocation, flops: float) -> tuple[Estimate, Estimate]:
    """Parameters and tokens of the best model by power laws, with the 95 % intervals of their resamples."""
    laws = (
        (allocation.params_factor, allocation.params_exponent, 0),
        (allocation.tokens_factor, allocation.tokens_exponent, 2),
    )
    found = []
    for factor, exponent, column in laws:
        drawn = sorted(row[column] * flops ** row[column + 1] for row in allocation.samples)
        low, high = _middle(drawn) if drawn else (None, None)
        found.append(Estimate(value=factor.value * flops**exponent.value, low=low, high=high))
    return found[0], found[1]


def _middle(values: list[float], estimate: float | None = None) -> tuple[float, float]:
    """The ends of the 95 % in the middle of ascending values, as by `laws.resampling.interval`."""
    below = 0.5
    if estimate is not None:
        below = (bisect.bisect_left(values, estimate) + bisect.bisect_right(values, estimate)) / 2 / len(values)
    places = list(enumerate(values))
    low, high = (interpolate(places, (len(values) - 1) * share) for share in corrected_ends(below, len(values)))
    return low, high


def limit_notes(
    law: Law, params: float, tokens: float, flops: float, allocation: Allocation | None = None
) -> list[str]:
    """What is to be said of an answer outside the law's points, or of points that say little.

    Power laws are judged by their minima, which they go through.
    """
    asked = {"params": params, "tokens": tokens, "flops": flops}
    if allocation is not None:
        flops_seen, params_seen, tokens_seen = zip(*allocation.optima)
        seen = {"params": params_seen, "tokens": tokens_seen, "flops": flops_seen}
        return extrapolation.beyond({name: (min(values), max(values)) for name, values in seen.items()}, asked)
    lines = extrapolation.beyond(_ranges(law), asked)
    if lines:
        error = extrapolation_error(law, params, tokens, flops)
        said = (
            "unknown: the law has no held-out points outside the others"
            if error is None
            else f"± {error:.1%}, and is in its interval"
        )
        lines.append(f"the error of the loss from so far outside is {said}")
    if has_optimum(law) and not law.coefficients["a_opt"].identified:
        lines.append(
            "the data allow laws in which parameters or tokens gain nothing, so the best size is not identified; add "
            "runs, or a wider range of both"
        )
    return [*lines, *extrapolation.together(law.apart)]


def extrapolation_error(law: Law, params: float, tokens: float, flops: float) -> float | None:
    """Half of a 95 % interval of the relative error of a loss, for its distance from the data; None where unknown."""
    far = extrapolation.distance(_ranges(law), {"params": params, "tokens": tokens, "flops": flops})
    return extrapolation.extrapolation_error(far, law.heldout_error, law.heldout_distance)


def _ranges(law: Law) -> dict[str, tuple[float, float]]:
    return {"params": law.params, "tokens": law.tokens, "flops": law.flops}


def size_lines(law: Law, recipe: Recipe, profile: Profile, plan: Plan) -> list[Line]:
    """Lines for the plan's table: whether the planned model has the best size for its compute."""
    if plan.flops is None:
        return []
    source = f"the law of {law.source}"
    allocation = choose_allocation(law)
    if allocation is None and not has_optimum(law):
        why = f"{source} tells no best size: it lacks the term of parameters or that of tokens"
        return [Line(quantity="best model", value="unknown", reason=why)]
    if allocation is None:
        size = best_params(law, plan.flops)
        tokens = surface_of(law).optimum(plan.flops, law.flops_per_product)[1]
    else:
        params, data = power_optimum(allocation, plan.flops)
        ends = (params.low, params.high)
        size = Interval(*(params.value if end is None else end for end in (ends[0], params.value, ends[1])))
        tokens = data.value
    notes = limit_notes(law, size.expected, tokens, plan.flops, allocation)
    ours = count_params(profile, recipe, counting_of(law))
    return law_lines(Optimum(size, tokens, source, tuple(notes)), plan, ours)


def best_params(law: Law, flops: float) -> Interval:
    """The best number of parameters for some compute by the surface, with its 95 % interval where it is identified."""
    value = surface_of(law).optimum(flops, law.flops_per_product)[0]
    resampled = [Surface(*row) for row in law.samples if min(row[1:]) > 0]
    params = sorted(one.optimum(flops, law.flops_per_product)[0] for one in resampled)
    unknown = law.edge and len(params) < len(law.samples)
    if not params or unknown or not math.isfinite(params[-1]):
        return Interval.exactly(value)
    low, high = (min(params[0], value), max(params[-1], value)) if law.edge else _middle(params, value)
    return Interval(low, value, high)
