"""Numbers for the fields of a recipe that are "auto": as they were chosen before, or chosen now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from shoestring.core.choices import Choices
from shoestring.core.errors import RecordError, RunError
from shoestring.core.recipe import Recipe
from shoestring.core.records import Density, Profile
from shoestring.core.run_folder import RunFolder, named_run
from shoestring.core.specs import CheckpointSpec
from shoestring.planning.auto import Facts, choose, width_share
from shoestring.planning.corpus import Ready, available_rows
from shoestring.runs.earlier import tried_beside
from shoestring.runs.prepare import check_source, ready_rows, recipe_density, vocabulary_of
from shoestring.runs.task import Task, task_of

Speed = Callable[[Recipe], tuple[str, float]]
"""The device ("cpu" or "cuda"), and its FLOPs per second in large products of this recipe."""


def settled(
    recipe: Recipe,
    folder: RunFolder,
    devices: int = 1,
    density: Callable[[], Density | None] | None = None,
    speed: Speed | None = None,
    plan_file: Path | None = None,
) -> Task:
    """The task of a recipe, with numbers in place of "auto": those of the run folder, or of the folder of `plan_file`,
    if they were chosen for this recipe; else new ones, which are not written.

    `density` samples the corpus, and `speed` is asked for where the time limits the run; default: this machine's.
    """
    if not recipe.autos:
        return task_of(recipe)
    chosen = _kept(recipe, folder) or (None if plan_file is None else _kept(recipe, RunFolder(plan_file.parent)))
    if chosen is None and folder.has_begun:
        folder.check_recipe(recipe)
        raise folder.without_choices(recipe)
    if chosen is None:
        chosen = _as_before(recipe, choose(recipe, facts_of(recipe, devices, density, speed or this_machine)))
    return task_of(chosen.applied(recipe, str(folder.choices)), chosen)


def _as_before(recipe: Recipe, chosen: Choices) -> Choices:
    """The choices, but with the numbers of the run that this one continues, so that its learning rate stays."""
    run, _ = named_run(recipe.model.init or "", CheckpointSpec("peak"))
    if not recipe.train.continued or not RunFolder(run).recipe.is_file():
        return chosen
    before, reason = RunFolder(run).read_recipe(), f"as in {run}, which it continues"
    values = {
        choice.field: before.value(choice.field) for choice in chosen.chosen if not choice.field.startswith("budget.")
    }
    kept = [
        choice if values.get(choice.field) is None else replace(choice, value=values[choice.field], reason=reason)
        for choice in chosen.chosen
    ]
    return replace(chosen, chosen=tuple(kept))


def _kept(recipe: Recipe, folder: RunFolder) -> Choices | None:
    """What was chosen before; what cannot be read is chosen again, unless the run has begun."""
    try:
        return folder.read_choices(recipe)
    except RecordError:
        if folder.has_begun:
            raise
        return None


def keep_choices(task: Task, folder: RunFolder) -> None:
    """Write what was chosen into the run folder, which this process holds."""
    if task.choices is None:
        return
    kept = None if not folder.choices.is_file() else _kept_or_none(folder)
    if kept == task.choices:
        return
    if folder.has_begun:
        raise RunError(f"{folder.choices} was written by another process meanwhile; run the command again")
    folder.write(folder.choices, task.choices)


def _kept_or_none(folder: RunFolder) -> Choices | None:
    try:
        return Choices.read(folder.choices)
    except RecordError:
        return None


def facts_of(recipe: Recipe, devices: int, density: Callable[[], Density | None] | None, speed: Speed) -> Facts:
    """What a choice depends on. The speed is looked up first: the corpus may be sampled meanwhile."""
    check_source(recipe)
    device, flops = speed(recipe) if recipe.budget.time is not None else ("cpu", None)
    return Facts(
        vocabulary=vocabulary_of(recipe),
        unique=_unique(recipe, density),
        device=device,
        speed=flops,
        devices=devices,
        tried=tried_beside(recipe),
    )


def _unique(recipe: Recipe, density: Callable[[], Density | None] | None) -> float | None:
    if (ready := ready_rows(recipe)) is not None:
        return unique_positions(recipe, ready)
    found = recipe_density(recipe) if density is None else density()
    assert found is not None, "rows that are not ready come from a corpus"
    return unique_positions(recipe, found)


def unique_positions(recipe: Recipe, supply: Density | Ready) -> float | None:
    """Positions of the training text; None: endless."""
    rows = supply.rows if isinstance(supply, Ready) else available_rows(recipe, supply)
    return None if rows is None else max(1.0, float(rows * recipe.data.length))


def this_machine(recipe: Recipe) -> tuple[str, float]:
    """The speed of this machine, by timing one product."""
    from shoestring.probe.machine import pick_device
    from shoestring.runs.counted import PASS_SHARE, product_flops

    device = pick_device()
    return device.type, PASS_SHARE[device.type] * product_flops(device, recipe)


def speed_of(profile: Profile) -> Speed:
    """The speed of a machine that was measured with some network."""

    def found(recipe: Recipe) -> tuple[str, float]:
        row = profile.cost.train_flops_per_token * profile.length
        fastest = max(point.batch * row / point.seconds for point in profile.points)
        device = profile.machine.device
        share = 1.0 if recipe.model.size is not None else width_share(recipe.model, device)
        return device, fastest / share

    return found


def speed_of_gpu(gpu: str) -> Speed:
    """The speed of a GPU by name."""

    def found(recipe: Recipe) -> tuple[str, float]:
        from shoestring.cost.gpus import find_gpu
        from shoestring.cost.seconds import UTILISATION, precision_on

        known, precision = find_gpu(gpu), precision_on(recipe, gpu)
        peak = None if known is None or precision is None else known.peak_flops(precision)
        return "cuda", UTILISATION.expected * (peak or 1e14)

    return found
