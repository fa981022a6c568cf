"""Which runs of a sweep go, and in which order, by its options."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoestring.cli.sweep import Asked
    from shoestring.studies.sweep.orders import Halving, InOrder
    from shoestring.studies.sweep.survey import Survey

DEFAULT_TRIALS = 20
"""Settings that a sampler takes, where no number is given."""


def drawn(asked: Asked) -> int | None:
    """How many settings are drawn at random; raises UserError where the options contradict each other."""
    from shoestring.core.errors import UserError
    from shoestring.studies.sweep.sampled import optuna, parse_sampler

    if asked.sampler is None:
        if asked.trials is not None:
            raise UserError("--trials: how many settings of what? give --sampler too, as in --sampler optuna:tpe")
        return asked.random
    if asked.random is not None:
        raise UserError("--random and --sampler: write --sampler random --trials N, or leave one of them out")
    if asked.sampler == "random":
        return asked.trials or DEFAULT_TRIALS
    if parse_sampler(asked.sampler) is None:
        if asked.trials is not None:
            raise UserError("--sampler grid takes all settings; leave --trials out")
        return None
    if asked.halving is not None or asked.slurm or asked.sbatch:
        raise UserError(f"--sampler {asked.sampler}: waits for losses, and goes with neither --halving nor Slurm")
    optuna()
    return None


def outlook(recipe: Path, found: Survey, before: Sequence[Path]) -> str:
    """What the sweep takes that follows: its plans may need what this one makes, but a time is known before."""
    from shoestring.core.errors import UserError
    from shoestring.core.units import Seconds, counted
    from shoestring.studies.sweep.grid import read_grid
    from shoestring.studies.sweep.plans import schedule

    if recipe.resolve() in before:
        raise UserError(f"sweep.then = {recipe.name}: it would follow itself; name another recipe, or leave it out")
    recipes = read_grid(recipe).recipes
    times = [each.budget.time for each in recipes]
    known = [float(time) for time in times if time is not None]
    told = f"then {recipe.name}: {counted(len(recipes), 'run')}"
    if len(known) < len(recipes):
        return f"{told}, whose time is said when these are done"
    more = max(schedule(known, found.slots.at_once), default=0.0)
    both = Seconds(found.total.expected + more).short()
    return f"{told}, at most {Seconds(more).short()}; {both} for both"


def order_of(found: Survey, asked: Asked) -> InOrder | Halving:
    """The order in which the runs of a sweep go."""
    from shoestring.studies.sweep.orders import Halving, InOrder
    from shoestring.studies.sweep.sampled import Sampled, parse_sampler

    if asked.sampler is not None and (sampler := parse_sampler(asked.sampler)) is not None:
        seed = found.grid.runs[0].recipe.run.seed
        return Sampled(found, sampler, asked.trials or min(DEFAULT_TRIALS, len(found.index.runs)), seed)
    if asked.halving is None:
        return InOrder(found)
    starts = [each.plan.parts.get("set-up", 0.0) for each in found.forecasts.values() if each.plan is not None]
    return Halving(found, asked.halving, max(starts, default=0.0))
