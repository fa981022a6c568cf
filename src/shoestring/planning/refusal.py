"""The nearest recipe that fits, where a plan is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec

from shoestring.core.errors import PlanError, Refusal
from shoestring.core.numeric import last_that_holds
from shoestring.core.recipe import Recipe
from shoestring.core.records import Plan, Profile
from shoestring.core.units import Bytes, Count, Flops, Seconds, counted
from shoestring.planning.split import divisors_of, most_memory

_DOUBLINGS = 80
"""From one second or FLOP to more than any budget."""
_EPOCH_PARTS = 10_000
_UNITS: dict[str, Callable[[int], Any]] = {
    "time": Seconds,
    "flops": Flops,
    "tokens": Count,
    "epochs": lambda count: count / _EPOCH_PARTS,
    "disk": Bytes,
    "memory": Bytes,
}
"""A budget from a count of its smallest units."""

P = ParamSpec("P")
Planner = Callable[Concatenate[Recipe, Profile, P], Plan]
Attempt = Callable[[Recipe], Plan]


def naming_the_nearest(planner: Planner[P]) -> Planner[P]:
    """The planner with `Refusal`s that name the nearest recipe that fits, if there is one."""

    @wraps(planner)
    def plan(recipe: Recipe, profile: Profile, /, *args: P.args, **kwargs: P.kwargs) -> Plan:
        def attempt(changed: Recipe) -> Plan:
            return planner(changed, profile, *args, **kwargs)

        try:
            return attempt(recipe)
        except Refusal as refusal:
            for setting, changed in _changes(recipe, refusal.limit, attempt, most_memory(profile)):
                try:
                    nearest = attempt(changed)
                except PlanError:
                    continue
                shown = f"{counted(nearest.steps or 0, 'step')}, {Seconds(nearest.seconds or 0.0).short()}"
                message = f"{refusal.message}. The nearest plan that fits: --set {setting} ({shown})"
                raise Refusal(message, refusal.limit, setting) from None
            raise

    return plan


def _changes(recipe: Recipe, limit: str, attempt: Attempt, most_memory: int | None) -> Iterator[tuple[str, Recipe]]:
    """Recipes that may fit, the smallest change first; no budget of memory above `most_memory`."""
    if limit == "disk" and recipe.train.keep > 1:
        yield "train.keep=1", replace(recipe, train=replace(recipe.train, keep=1))
    if limit == "disk" and (every := recipe.train.save_every) is not None:
        for doubled in (every << shift for shift in range(1, 32)):
            yield f"train.save_every={doubled}", replace(recipe, train=replace(recipe.train, save_every=doubled))
    if limit == "memory" and recipe.train.per_device is not None:
        for rows in reversed([number for number in divisors_of(recipe.batch) if number < recipe.train.per_device]):
            yield f"train.per_device={rows}", replace(recipe, train=replace(recipe.train, per_device=rows))
    if limit in _UNITS and getattr(recipe.budget, limit) is not None:
        count = _least(recipe, limit, attempt)
        if count is not None and not (limit == "memory" and most_memory is not None and count > most_memory):
            yield f"budget.{limit}={_UNITS[limit](count)}", _with_budget(recipe, limit, count)


def _with_budget(recipe: Recipe, limit: str, count: int) -> Recipe:
    return replace(recipe, budget=replace(recipe.budget, **{limit: _UNITS[limit](count)}))


def _least(recipe: Recipe, limit: str, attempt: Attempt) -> int | None:
    """The least budget that is accepted, in its smallest units; None: there is none."""

    def is_refused(count: int) -> bool:
        try:
            attempt(_with_budget(recipe, limit, count))
        except PlanError:
            return True
        return False

    unit = 1 / _EPOCH_PARTS if limit == "epochs" else 1.0
    low = max(1, int(float(getattr(recipe.budget, limit)) / unit))
    refused = last_that_holds(is_refused, low, low << _DOUBLINGS)
    if refused is None:
        return None
    readable = _rounded_up(refused + 1)
    return readable if limit in ("memory", "disk", "flops") and not is_refused(readable) else refused + 1


def _rounded_up(count: int) -> int:
    """The least number of four digits and zeros that is at least `count`."""
    scale = int(10 ** max(0, len(str(count)) - 4))
    return -(-count // scale) * scale
