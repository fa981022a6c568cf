"""Plans without a measurement of their own: what-if changes of a recipe, and the runs of a grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shoestring.core import recipe_file
from shoestring.core.errors import PlanError, ShoestringError
from shoestring.core.recipe import Recipe
from shoestring.core.records import Plan, Profile
from shoestring.core.run_folder import RunFolder
from shoestring.core.units import Count, counted
from shoestring.planning.alternatives import ESTIMATE_ERROR, scaled_profile
from shoestring.planning.lines import devices_note
from shoestring.runs.plan import plan_task
from shoestring.runs.prepare import with_own_density
from shoestring.runs.settle import settled, speed_of
from shoestring.runs.task import task_of


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """Another plan, and notes on what about it is not measured."""

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
    written = recipe_file.load(file, [*overrides, *settings])
    recipe = settled(written, RunFolder.of(written), devices, speed=speed_of(profile)).recipe
    used, notes = profile_for(recipe, [profile])
    error = ESTIMATE_ERROR if notes else 0.0
    plan = plan_task(task_of(recipe), used, devices=devices, estimate_error=error, history=history)
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
    task = task_of(recipe)
    for profile in measured:
        if task.fits(profile):
            return with_own_density(recipe, profile), []
    cost, length = task.cost(), recipe.data.length
    flops = cost.train_flops_per_token * length

    def distance(profile: Profile) -> float:
        return abs(math.log(flops / (profile.cost.train_flops_per_token * profile.length)))

    scaled, note = scaled_profile(min(measured, key=distance), cost, length, task.workload)
    return with_own_density(recipe, scaled), [note]


@dataclass(frozen=True, kw_only=True)
class GridLine:
    """One run of a grid."""

    name: str
    plan: Plan | None
    """None where the run is done."""
    is_estimate: bool = False


def plan_runs(recipes: Sequence[Recipe], devices: int | None = None, history: Sequence[Path] = ()) -> list[GridLine]:
    """A plan for each recipe that is not done, from its own profile or scaled from the nearest one.

    Each plan is for `devices`, or for as many as were measured.
    """
    measured = []
    for recipe in recipes:
        folder = RunFolder.of(recipe)
        if folder.profile.is_file():
            try:
                profile = Profile.read(folder.profile)
            except ShoestringError:  # written by an older version, or damaged: ignored
                continue
            settled_recipe = settled(recipe, folder, profile.devices, speed=speed_of(profile)).recipe
            if task_of(settled_recipe).fits(profile):
                measured.append(profile)
    if not measured:
        names = ", ".join(recipe.run.name for recipe in recipes[:3])
        raise PlanError(
            f"none of the {counted(len(recipes), 'run')} is measured ({names}, …); measure at least one of them: "
            f"shoestring measure RECIPE --set run.name={recipes[0].run.name} and its other settings"
        )
    lines = []
    for recipe in recipes:
        if RunFolder.of(recipe).done.is_file():
            lines.append(GridLine(name=recipe.run.name, plan=None))
            continue
        own = settled(recipe, RunFolder.of(recipe), devices or measured[0].devices, speed=speed_of(measured[0])).recipe
        profile, notes = profile_for(own, measured)
        error, count = ESTIMATE_ERROR if notes else 0.0, devices or profile.devices
        plan = plan_task(task_of(own), profile, devices=count, estimate_error=error, history=history)
        lines.append(GridLine(name=recipe.run.name, plan=plan, is_estimate=bool(notes)))
    return lines
