"""A deadline that moves: `shoestring best` with more time takes an earlier run up before its cool-down."""

from __future__ import annotations

import glob
import json
from pathlib import Path
from typing import NamedTuple

from shoestring.core import recipe_file
from shoestring.core.errors import ShoestringError
from shoestring.core.recipe import Recipe
from shoestring.core.records import Plan
from shoestring.core.results import Outcome
from shoestring.core.run_folder import RunFolder
from shoestring.core.sections import number
from shoestring.core.specs import CheckpointSpec
from shoestring.core.units import Seconds
from shoestring.runs.settle import settled
from shoestring.training.checkpoint import Checkpoints

WHOLE = 0.7
"""Of its time, what a run takes at least that ends with its time; all of it but a reserve."""


class Earlier(NamedTuple):
    """A run that has ended, of less time."""

    file: Path
    recipe: Recipe
    time: float
    """Seconds of its deadline, with those of the runs that it continues."""
    peak: float
    """Seconds until its cool-down, with those of the runs that it continues."""
    cooling: float
    """Of all this time, the share in which its learning rate decays."""
    done: str | None
    """Why more time would not help it; None: it would."""


def named(name: str, time: float) -> Path:
    """The recipe of a run with more time than that of NAME.toml."""
    return Path(f"{name}-{Seconds(time)}.toml")


def earlier_run(name: str, source: str, time: float) -> Earlier | None:
    """The longest run of this name and text that has ended and had less time."""
    files = [Path(f"{name}.toml"), *sorted(Path().glob(f"{glob.escape(name)}-*.toml"))]
    found = [run for file in files if (run := _ended(file)) is not None]
    shorter = [run for run in found if run.time < time and run.recipe.data.source == source]
    return max(shorter, key=lambda run: run.time, default=None)


def _ended(file: Path) -> Earlier | None:
    """The run of a recipe that `best` wrote; None if it has not ended, or cannot be continued."""
    try:
        recipe = recipe_file.load(file)
        folder = RunFolder.of(recipe)
        outcome = Outcome.read_if_there(folder.done)
        if outcome is None or recipe.budget.time is None or not recipe.train.cools or not outcome.steps:
            return None
        cooling = number(settled(recipe, folder).recipe.train.cooling)
        binding = Plan.read(folder.plan).binding
        newest = Checkpoints(folder.checkpoints, keep=1).find(CheckpointSpec("last"), folder.path).state
        before = _ended(Path(f"{Path(recipe.model.init or '').name}.toml")) if recipe.train.continued else None
    except ShoestringError:
        return None
    since = 0.0 if before is None else before.peak
    peak = outcome.seconds * (newest.peak_step or newest.step) / outcome.steps
    done = None
    if newest.turned is not None:
        done = f"its held-out loss rose after step {newest.turned:,}"
    elif binding != "time" or outcome.seconds < WHOLE * recipe.budget.time:
        done = f"it ended after {Seconds(round(outcome.seconds))} of {recipe.budget.time}"
    whole = since + recipe.budget.time
    return Earlier(file, recipe, whole, since + peak, cooling * recipe.budget.time / whole, done)


def longer_text(earlier: Earlier, name: str, time: float, command: str) -> str:
    """A recipe that ends as one run of `time` would: its cool-down has the same share of all the time."""
    left = time - earlier.peak
    folder, taken = str(RunFolder.of(earlier.recipe).path), Seconds(round(earlier.peak))
    return "\n".join(
        [
            f"# Written by: {command}",
            "# It goes on where the learning rate of an earlier run began to decay, and all else is as there.",
            f"extends = {json.dumps(str(earlier.file))}",
            "",
            "[run]",
            f"name = {json.dumps(name)}",
            "",
            "[budget]",
            f"# {Seconds(time)} in all, {taken} of them until there",
            f'time = "{Seconds(round(left))}"',
            "",
            "[model]",
            f"init = {json.dumps(folder)}",
            "",
            "[train]",
            "continued = true",
            f"# {earlier.cooling:.3g} of the time in all",
            f"cooldown = {min(1.0, earlier.cooling * time / left):.4g}",
            "",
        ]
    )
