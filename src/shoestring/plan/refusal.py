"""A plan that cannot be made: the limit that nothing fits into, and the nearest recipe that does fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from shoestring.core.bisection import last_that_holds
from shoestring.core.errors import PlanError
from shoestring.core.facts import Plan
from shoestring.core.recipe import Recipe
from shoestring.core.units import Bytes, Count, Flops, Seconds

_DOUBLINGS = 80
"""From one second to longer than anything, and from one FLOP to more than all."""
_EPOCH_PARTS = 10_000
_UNITS: dict[str, Callable[[int], Any]] = {
    "time": Seconds,
    "flops": Flops,
    "tokens": Count,
    "epochs": lambda count: count / _EPOCH_PARTS,
    "disk": Bytes,
    "memory": Bytes,
}
"""A budget of so many of its smallest parts."""

Attempt = Callable[[Recipe], Plan]


class Refusal(PlanError):
    """Nothing fits one of the limits. `setting` is the change that makes it fit, as `--set` takes it."""

    def __init__(self, message: str, limit: str, setting: str | None = None):
        self.message, self.limit, self.setting = message, limit, setting
        super().__init__(message)

    def __reduce__(self) -> tuple[type, tuple[str, str, str | None]]:  # it may come from another process
        return type(self), (self.message, self.limit, self.setting)


def plan_or_nearest(recipe: Recipe, attempt: Attempt, most_memory: int | None = None) -> Plan:
    """What `attempt` makes of the recipe; where that is refused, the refusal names the nearest recipe that is not.

    Nobody can give more than `most_memory` bytes of memory, where that is known.
    """
    try:
        return attempt(recipe)
    except Refusal as refusal:
        for setting, changed in _changes(recipe, refusal.limit, attempt, most_memory):
            try:
                plan = attempt(changed)
            except PlanError:
                continue
            shown = f"{plan.steps or 0:,} steps, {Seconds(plan.seconds or 0.0).short()}"
            message = f"{refusal.message}. The nearest plan that fits: --set {setting} ({shown})"
            raise Refusal(message, refusal.limit, setting) from None
        raise


def _changes(recipe: Recipe, limit: str, attempt: Attempt, most_memory: int | None) -> Iterator[tuple[str, Recipe]]:
    """Recipes that may fit, the least change first."""
    if limit == "disk" and recipe.train.keep > 1 and recipe.hmm is None:
        yield "train.keep=1", replace(recipe, train=replace(recipe.train, keep=1))
    if limit == "memory" and recipe.train.per_device is not None:
        for rows in range(recipe.train.per_device - 1, 0, -1):
            yield f"train.per_device={rows}", replace(recipe, train=replace(recipe.train, per_device=rows))
    if limit in _UNITS and getattr(recipe.budget, limit) is not None:
        count = _least(recipe, limit, attempt)
        if count is not None and not (limit == "memory" and most_memory is not None and count > most_memory):
            yield f"budget.{limit}={_UNITS[limit](count)}", _with_budget(recipe, limit, count)


def _with_budget(recipe: Recipe, limit: str, count: int) -> Recipe:
    return replace(recipe, budget=replace(recipe.budget, **{limit: _UNITS[limit](count)}))


def _least(recipe: Recipe, limit: str, attempt: Attempt) -> int | None:
    """The least budget that is accepted, in its smallest parts; None: there is none."""

    def fits(count: int) -> bool:
        try:
            attempt(_with_budget(recipe, limit, count))
        except PlanError:
            return False
        return True

    part = 1 / _EPOCH_PARTS if limit == "epochs" else 1.0
    low = max(1, int(float(getattr(recipe.budget, limit)) / part))
    refused = last_that_holds(lambda count: not fits(count), low, low << _DOUBLINGS)
    return None if refused is None else refused + 1
