"""Where a run stops training for a moment: evaluations and checkpoints, how many and for how long."""

from __future__ import annotations

import math

from shoestring.core.recipe import Recipe
from shoestring.core.records import Profile
from shoestring.planning.corpus import scored_rows
from shoestring.planning.split import Split

STOPS_SHARE, STOP_SECONDS = 0.1, 1.0
"""Evaluations with their checkpoints, and regular checkpoints, may each take this share of the time; checkpoints only
where one takes so many seconds. Then there are fewer."""
GPU_STOP_SECONDS = 0.2
"""Evaluations on a GPU only where one takes so many."""

TEXTS_SHARE, TEXTS_SECONDS = 0.003, 0.5
"""Texts that a model writes after evaluations take at most this share of a run's time, and these seconds."""


def checkpoint_interval(recipe: Recipe, write_seconds: float = 0.0) -> float:
    """Seconds between checkpoints; by default more where one takes long to write."""
    if recipe.train.checkpoint_every is not None:
        return float(recipe.train.checkpoint_every)
    rare = write_seconds / STOPS_SHARE if write_seconds > STOP_SECONDS else 0.0
    return max(rare, min(600.0, max(1.0, float(recipe.budget.time or 12000) / 20)))


def saved_interval(recipe: Recipe, step_seconds: float) -> float:
    """Seconds between the checkpoints of train.save_every."""
    return math.inf if recipe.train.save_every is None else recipe.train.save_every * step_seconds


def saving_seconds(profile: Profile, interval: float) -> float:
    """How long one checkpoint delays a run, including the wait for the previous one to be written.

    Checkpoints are at least half the interval apart: that of an evaluation may fall between two others.
    """
    return max(profile.checkpoint_seconds, (profile.write_seconds or 0.0) - interval / 2)


def listed_seconds(recipe: Recipe, profile: Profile, steps: int) -> float:
    """Seconds of the checkpoints of train.save_steps; the first ones follow each other at once, and are waited for."""
    count = 0 if recipe.train.save_steps is None else len(recipe.train.save_steps.up_to(steps))
    return count * max(profile.checkpoint_seconds, profile.write_seconds or 0.0)


def validation_seconds(recipe: Recipe, profile: Profile) -> float:
    """Of one evaluation."""
    return scored_rows(recipe, profile.density) * profile.validate_seconds_per_row


def _evaluations(recipe: Recipe, profile: Profile, save: float) -> int:
    """As many as the recipe says, but fewer where a short time budget has no room for them, with a checkpoint of `save`
    seconds each. On a CPU, where two runs of one plan write the same lines, the plan's number is kept; on a GPU the
    clock decides when the next is due."""
    count, each = evaluation_count(recipe), validation_seconds(recipe, profile) + save
    short = profile.machine.device != "cpu" and each <= GPU_STOP_SECONDS
    if recipe.budget.time is None or short:
        return count
    most = STOPS_SHARE * float(recipe.budget.time)
    return count if count * each <= most else min(count, max(1, int(most / each)))


def saving(recipe: Recipe, profile: Profile, split: Split) -> tuple[float, float, int]:
    """Seconds between regular checkpoints, seconds that one takes, and the evaluations, which have one each."""
    regular = checkpoint_interval(recipe, profile.write_seconds or 0.0)
    interval = min(regular, saved_interval(recipe, split.step_seconds))
    save = saving_seconds(profile, interval)
    return interval, save, _evaluations(recipe, profile, save)


def evaluation_count(recipe: Recipe) -> int:
    return math.ceil(1 / recipe.evaluate.every - 1e-9)  # as hooks.Evenly: 49.00000000000001 is 49
