"""A grid of fits: one recipe for each combination of values, and the time of all before the first one starts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from shoestring.core import recipe_file
from shoestring.core.clock import Clock
from shoestring.core.errors import RecipeError
from shoestring.core.recipe import Recipe
from shoestring.core.run_folder import RunFolder
from shoestring.core.units import Seconds
from shoestring.stages.voice import Voice


def grid(file: Path, overrides: Sequence[str], over: Sequence[str]) -> list[Recipe]:
    """The recipes of all combinations of `section.field=a,b,c`, each with a run name of its own; one without any."""
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
    found = []
    for point in itertools.product(*axes):
        suffix = "-".join(f"{field.rpartition('.')[2]}{value.replace(':', '')}" for field, value in point)
        chosen = [f"{field}={value}" for field, value in point]
        found.append(recipe_file.load(file, [*overrides, *chosen, f'run.name="{base.run.name}-{suffix}"']))
    return found


def plan_grid(made: Sequence[Recipe], voice: Voice) -> tuple[str, list[tuple[str, str, str, str]]]:
    """The time of all fits that are not done yet, and a line for each."""
    from shoestring.stages.hmm import plan_fit  # with torch, which a list of recipes does without

    total, lines = 0.0, []
    for recipe in made:
        folder = RunFolder.of(recipe)
        if folder.done.is_file():
            lines.append((recipe.run.name, "", "", "done"))
            continue
        with folder.lock():
            folder.claim(recipe)
            plan = plan_fit(recipe, folder, voice, Clock(0.0))
        assert plan.epochs is not None and plan.seconds is not None
        epoch = plan.parts["train"] / plan.epochs
        total += plan.seconds
        lines.append((recipe.run.name, f"{plan.epochs:.0f}", Seconds(epoch).short(), Seconds(plan.seconds).short()))
    return Seconds(total).short(), lines
