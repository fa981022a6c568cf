"""Plans of several recipes: a grid of overrides, and what-if changes of a recipe that was measured."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shoestring.core import recipe_file
from shoestring.core.environment import slurm_job
from shoestring.core.errors import PlanError, RecipeError, ShoestringError
from shoestring.core.recipe import Recipe
from shoestring.core.records import Plan, Profile
from shoestring.core.results import Outcome
from shoestring.core.run_folder import RunFolder
from shoestring.core.units import Count, Seconds, counted
from shoestring.planning.alternatives import ESTIMATE_ERROR, scaled_profile
from shoestring.planning.lines import devices_note
from shoestring.runs.measure import ensure_profile, measuring_of
from shoestring.runs.plan import plan_task, read_plan
from shoestring.runs.prepare import with_own_density
from shoestring.runs.reporter import Reporter
from shoestring.runs.settle import settled, speed_of
from shoestring.runs.task import Task, task_of


def grid(file: Path, overrides: Sequence[str], over: Sequence[str]) -> list[Recipe]:
    """The recipes of all combinations of `section.field=a,b,c`, each with its own run name; one recipe without any."""
    base = recipe_file.load(file, overrides)
    if not over:
        return [base]
    axes, problems = [], []
    for text in over:
        field, equals, values = text.partition("=")
        if not equals or "." not in field or not all(values.split(",")):
            problems.append(f"--over {text}: write it as section.field=a,b,c, for example --over hmm.states=100,200")
        axes.append([(field, value) for value in values.split(",")])
    if problems:
        raise RecipeError(str(file), problems)
    recipes = []
    for point in itertools.product(*axes):
        suffix = "-".join(f"{field.rpartition('.')[2]}{value.replace(':', '')}" for field, value in point)
        chosen = [f"{field}={value}" for field, value in point]
        recipes.append(recipe_file.load(file, [*overrides, *chosen, f'run.name="{base.run.name}-{suffix}"']))
    return recipes


def plan_grid(recipes: Sequence[Recipe], reporter: Reporter) -> tuple[str, list[tuple[str, str, str, str]]]:
    """The total time of all fits that are not done yet, and a line for each fit.

    All fits are measured here, before the first one starts, so no plan counts that. The fits run one after another in
    one process, so only the first one that is not done waits for the process to start and for torch to load.
    """
    slurm_job()  # one that has ended is refused before anything is written
    total, lines, loaded = 0.0, [], False
    for recipe in recipes:
        folder = RunFolder.of(recipe)
        if folder.done.is_file():
            lines.append((recipe.run.name, "", "", "done"))
            continue
        with folder.lock(), folder.claiming(recipe):
            plan = _fit_plan(task_of(recipe), folder, reporter, loaded)
        loaded = True
        assert plan.epochs is not None and plan.seconds is not None
        epoch = plan.parts["train"] / plan.epochs
        total += plan.seconds
        lines.append((recipe.run.name, f"{plan.epochs:.0f}", Seconds(epoch).short(), Seconds(plan.seconds).short()))
    return Seconds(total).short(), lines


def _fit_plan(task: Task, folder: RunFolder, reporter: Reporter, loaded: bool) -> Plan:
    """The plan of one fit of a grid; `loaded` where another fit of this process comes before it."""
    if folder.plan.is_file():
        return read_plan(task.recipe, folder.plan)
    task.before_measuring()
    profile = ensure_profile(task, folder, reporter, measuring_of(task.recipe))
    if loaded:
        first_step = (profile.compile_seconds or 0.0) + (profile.warmup_seconds or 0.0)
        profile = replace(profile, setup_seconds=min(profile.setup_seconds, first_step))
    plan = plan_task(task, profile)
    folder.write(folder.plan, plan)
    return plan


def grid_against_plan(finished: Sequence[tuple[str, Plan, Outcome]]) -> list[tuple[str, ...]]:
    """For each fit (run, epochs, planned and actual seconds, difference, held-out loss), then a line of their sums."""
    lines = [
        (name, f"{plan.epochs or 0:.0f}", *_seconds_against(plan.seconds, outcome.seconds), f"{outcome.loss:.3f}")
        for name, plan, outcome in finished
    ]
    known = [plan.seconds for _, plan, _ in finished if plan.seconds is not None]
    planned = sum(known) if len(known) == len(finished) else None
    return [*lines, ("all", "", *_seconds_against(planned, sum(outcome.seconds for *_, outcome in finished)), "")]


def _seconds_against(planned: float | None, actual: float) -> tuple[str, str, str]:
    if not planned:
        return "unknown", Seconds(actual).short(), "unknown"
    return Seconds(planned).short(), Seconds(actual).short(), f"{actual / planned - 1:+.1%}"


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
