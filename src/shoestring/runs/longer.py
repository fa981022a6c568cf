"""A deadline that moves: `shoestring best` with more time goes on where an earlier run ended."""

from __future__ import annotations

import glob
import json
from pathlib import Path
from typing import NamedTuple

from shoestring.core import recipe_file
from shoestring.core.errors import ShoestringError, UserError
from shoestring.core.recipe import Recipe
from shoestring.core.records import Plan
from shoestring.core.results import Outcome
from shoestring.core.run_folder import RunFolder, named_run
from shoestring.core.sections import number
from shoestring.core.specs import CheckpointSpec
from shoestring.core.units import Seconds
from shoestring.runs.settle import settled
from shoestring.training.checkpoint import Checkpoints

WHOLE = 0.7
"""Of its time, what a run takes at least that ends with its time; all of it but a reserve."""
LEAST_EPOCHS = 0.1
"""Of the epochs that a recipe allows, what must be left to go on."""
LEAST_MORE = 1.0
"""Seconds by which a time must be longer."""
AGAIN = 0.5
"""Of the learning rate that one run of all the time would have by then (results/log.md)."""


class Earlier(NamedTuple):
    """A run that has ended, of less time."""

    file: Path
    recipe: Recipe
    time: float
    """Seconds of its deadline, with those of the runs that it continues."""
    peak: float
    """The highest learning rate of it and of the runs that it continues."""
    cooling: float
    """The share of a run's time in which its learning rate decays."""
    epochs: float | None
    """What is left of those that its recipe allows; None: it has no limit."""
    done: str | None
    """Why more time would not help it; None: it would."""

    def rate(self, time: float) -> tuple[float, float]:
        """The learning rate and, as a share of the rest, its decay if this run goes on until `time` in all."""
        left = 1 - self.time / time
        return AGAIN * self.peak * min(1.0, left / self.cooling), min(1.0, self.cooling / left)


def named(name: str, time: float) -> Path:
    """The recipe of a run with more time than that of NAME.toml."""
    return Path(f"{name}-{Seconds(time)}.toml")


def earlier_run(name: str, source: str, time: float) -> Earlier:
    """The longest run of this name and text that has ended and had less time; raises UserError without one."""
    files = [Path(f"{name}.toml"), *sorted(Path().glob(f"{glob.escape(name)}-*.toml"))]
    found, reasons = list[Earlier](), list[str]()
    for file in files:
        try:
            recipe = recipe_file.load(file)
            if recipe.data.source != source:
                continue
            run = _ended(file, recipe)
        except ShoestringError as cause:
            reasons.append(f"{file}: {cause}")
            continue
        if run.time < time:
            found.append(run)
        else:
            reasons.append(f"{file}: it has had {Seconds(run.time)}")
    if not found:
        raise UserError(
            f"there is no run that can go on until {Seconds(time)} in all, and --name begins a new one. "
            f"{'. '.join(reasons)}"
        )
    longest = max(found, key=lambda run: run.time)
    if time - longest.time < LEAST_MORE:
        raise UserError(f"--time {Seconds(time)}: the run of {longest.file} has had {Seconds(longest.time)}; give more")
    return longest


def _ended(file: Path, recipe: Recipe) -> Earlier:
    """The run of a recipe that `best` wrote; raises an error if it has not ended, or cannot be continued."""
    folder, time = RunFolder.of(recipe), recipe.budget.time
    outcome = Outcome.read_if_there(folder.done)
    if time is None:
        raise UserError("it has no budget.time")
    if outcome is None:
        raise UserError(f"its run has not ended; shoestring train {file} resumes it")
    if not recipe.train.cools or not outcome.steps:
        raise UserError(f'its learning rate cannot go on from its end, with train.schedule = "{recipe.train.schedule}"')
    train = settled(recipe, folder).recipe.train
    plan = Plan.read(folder.plan)
    newest = Checkpoints(folder.checkpoints, keep=1).find(CheckpointSpec("last"), folder.path).state
    before = _continued(recipe) if train.continued else None
    done, most = None, recipe.budget.epochs
    read = (plan.epochs or 0.0) * (plan.share or 1.0) * outcome.steps / (plan.steps or 1)
    left = None if most is None else number(most) - read
    if newest.turned is not None:
        done = f"its held-out loss rose after step {newest.turned:,}"
    elif left is not None and left < LEAST_EPOCHS * number(most):
        done = f"it has read its text as often as helps, {number(most) - left:.1f} times"
    elif plan.binding != "time" or outcome.seconds < WHOLE * time:
        done = f"it ended after {Seconds(round(outcome.seconds))} of {time}"
    if before is None:
        return Earlier(file, recipe, time, number(train.lr), number(train.cooling), left, done)
    return Earlier(file, recipe, before.time + time, before.peak, before.cooling, left, done)


def _continued(recipe: Recipe) -> Earlier:
    """The run that a recipe goes on from."""
    file = Path(f"{named_run(recipe.model.init or '', CheckpointSpec('last'))[0].name}.toml")
    try:
        return _ended(file, recipe_file.load(file))
    except ShoestringError as cause:
        raise UserError(f"it goes on from {file}, and {cause}") from cause


def longer_text(earlier: Earlier, name: str, time: float, command: str) -> str:
    """The recipe of a run that goes on where an earlier one ended, and itself ends after `time` in all."""
    folder, (lr, cooldown) = str(RunFolder.of(earlier.recipe).path), earlier.rate(time)
    epochs = [] if earlier.epochs is None else ["# what is left of them", f"epochs = {earlier.epochs:.4g}"]
    return "\n".join(
        [
            f"# Written by: {command}",
            "# It goes on where an earlier run ended, and all else is as there.",
            f"extends = {json.dumps(str(earlier.file))}",
            "",
            "[run]",
            f"name = {json.dumps(name)}",
            "",
            "[budget]",
            f"# {Seconds(time)} in all",
            f'time = "{Seconds(round(time - earlier.time))}"',
            *epochs,
            "",
            "[model]",
            f"init = {json.dumps(f'{folder}#last')}",
            "",
            "[train]",
            "continued = true",
            f"# {AGAIN:g} of what one run of {Seconds(time)} would have by then: after a cool-down that is better",
            f"lr = {lr:.3g}",
            f"cooldown = {cooldown:.4g}",
            "",
        ]
    )
