"""What if: the plans of other recipes than the one that was measured, next to it or in a grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shoestring.core import recipe_file
from shoestring.core.errors import PlanError, ShoestringError
from shoestring.core.facts import Cost, Plan, Profile
from shoestring.core.recipe import Recipe
from shoestring.core.run_folder import RunFolder
from shoestring.core.units import Count
from shoestring.plan.lines import devices_note
from shoestring.plan.what_if import ESTIMATE_ERROR, scaled_profile
from shoestring.stages.plan import is_of, plan_recipe


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """Another plan, and what about it is not measured."""

    plan: Plan
    notes: tuple[str, ...] = ()


def what_if(
    file: Path,
    overrides: Sequence[str],
    changes: Sequence[str],
    profile: Profile,
    devices: int,
    history: Sequence[Path] = (),
) -> Alternative:
    """The plan with these changes, each "section.field=value" or "devices=N"; corrected by `history`, if given."""
    settings = [change for change in changes if not change.startswith("devices=")]
    for change in changes:
        if change not in settings:
            devices = _device_count(change)
    recipe = recipe_file.load(file, [*overrides, *settings])
    used, notes = profile_for(recipe, [profile])
    error = ESTIMATE_ERROR if notes else 0.0
    plan = plan_recipe(recipe, used, devices=devices, estimate_error=error, history=history)
    return Alternative(plan=plan, notes=tuple(notes + devices_note(devices, used)))


def _device_count(change: str) -> int:
    try:
        count = int(Count.parse(change.removeprefix("devices=")))
    except ValueError as cause:
        raise PlanError(f"--what-if {change}: {cause}") from cause
    if count < 1:
        raise PlanError(f"--what-if {change}: must be at least 1")
    return count


def profile_for(recipe: Recipe, measured: Sequence[Profile]) -> tuple[Profile, list[str]]:
    """The profile of this recipe among those measured; otherwise the nearest one by FLOPs, scaled, with a note."""
    for profile in measured:
        if is_of(profile, recipe):
            return profile, []
    cost, length = recipe_cost(recipe), recipe.data.length

    def distance(profile: Profile) -> float:
        return abs(math.log(row_flops(cost, length) / row_flops(profile.cost, profile.length)))

    scaled, note = scaled_profile(min(measured, key=distance), cost, length, recipe.workload)
    return scaled, [note]


def row_flops(cost: Cost, length: int) -> float:
    return cost.train_flops_per_token * length


def recipe_cost(recipe: Recipe) -> Cost:
    """What the model of a recipe costs, counted."""
    if recipe.hmm is not None:
        from shoestring.stages.hmm_workload import hmm_cost  # with torch, as all below but the last

        return hmm_cost(recipe)
    if recipe.model.family == "hf":
        from shoestring.stages.workload import training_cost

        return training_cost(recipe)
    from shoestring.cost.networks import network_cost
    from shoestring.stages.accounting import vocabulary_of

    return network_cost(recipe.model, vocabulary_of(recipe), recipe.data.length, recipe.data.masked)


@dataclass(frozen=True, kw_only=True)
class GridLine:
    """One run of a grid."""

    name: str
    plan: Plan | None
    """None where the run is done."""
    is_estimate: bool = False


def plan_runs(recipes: Sequence[Recipe], devices: int | None = None, history: Sequence[Path] = ()) -> list[GridLine]:
    """A plan for each recipe that is not done, from its own profile or else scaled from the nearest one there is.

    Each is for `devices`, or for as many as were measured.
    """
    measured = []
    for recipe in recipes:
        folder = RunFolder.of(recipe)
        if folder.profile.is_file():
            try:
                profile = Profile.read(folder.profile)
            except ShoestringError:  # of an older kind, or torn: as if it were not there
                continue
            if is_of(profile, recipe):
                measured.append(profile)
    if not measured:
        names = ", ".join(recipe.run.name for recipe in recipes[:3])
        raise PlanError(
            f"none of the {len(recipes)} runs is measured ({names}, …); measure at least one of them: "
            f"shoestring measure RECIPE --set run.name={recipes[0].run.name} and its other settings"
        )
    lines = []
    for recipe in recipes:
        if RunFolder.of(recipe).done.is_file():
            lines.append(GridLine(name=recipe.run.name, plan=None))
            continue
        profile, notes = profile_for(recipe, measured)
        error, count = ESTIMATE_ERROR if notes else 0.0, devices or profile.devices
        plan = plan_recipe(recipe, profile, devices=count, estimate_error=error, history=history)
        lines.append(GridLine(name=recipe.run.name, plan=plan, is_estimate=bool(notes)))
    return lines
