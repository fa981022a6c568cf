"""Speeds: how fast this machine trains models by their size, from profiles that were measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shoestring.core.errors import UserError
from shoestring.core.facts import Profile
from shoestring.core.recipe import Recipe
from shoestring.core.run_folder import RunFolder
from shoestring.core.units import Count, Interval, rate
from shoestring.cost.networks import parameters
from shoestring.laws.optimum import fit_speed
from shoestring.plan.split import choose_split
from shoestring.stages.accounting import recipe_accounting
from shoestring.stages.estimate import pass_seconds
from shoestring.stages.trained import Count as Counting
from shoestring.stages.trained import count_params, row_predictions, tokens_flops


class Measured(NamedTuple):
    """The speed of one model in training, its updates included."""

    name: str
    machine: str
    """Name and fingerprint of where it was measured."""
    params: int
    tokens_per_second: float
    """Predictions a second: what D counts."""
    flops_per_second: float
    """Exact."""


def read_speed(path: Path, count: Counting) -> Measured:
    """Of a run folder that `shoestring measure` filled, or of the profile.json in one."""
    folder = RunFolder.open(path if path.is_dir() else path.parent)
    if not folder.profile.is_file():
        raise UserError(f"{path}: there is no {folder.profile}; measure first: shoestring measure RECIPE")
    recipe, profile = folder.read_recipe(), Profile.read(folder.profile)
    if recipe.hmm is not None:
        raise UserError(f"{path}: the profile of an HMM says nothing about the speed of a network")
    split = choose_split(profile, recipe.batch, recipe.train.per_device, recipe.budget.memory)
    tokens = recipe.batch * row_predictions(recipe) / split.step_seconds
    return Measured(
        name=recipe.run.name,
        machine=f"{profile.machine.device_name} ({profile.machine.fingerprint})",
        params=count_params(profile, recipe, count),
        tokens_per_second=tokens,
        flops_per_second=tokens * tokens_flops(profile, recipe),
    )


def read_speeds(paths: Sequence[Path], count: Counting) -> list[Measured]:
    """By size, all of one machine."""
    found = sorted((read_speed(path, count) for path in paths), key=lambda measured: measured.params)
    if len(machines := sorted({measured.machine for measured in found})) > 1:
        raise UserError(f"the profiles are of {len(machines)} machines: {'; '.join(machines)}; give those of one")
    sizes = [measured.params for measured in found]
    if len(set(sizes)) < len(sizes):
        raise UserError(f"two of the profiles are of models with the same number of parameters: {sizes}; give one each")
    return found


def speed_by_size(measured: Sequence[Measured]) -> Callable[[Any], Any]:
    """Tokens a second by parameters; with a single size measured, at its FLOPs a second."""
    if len(measured) > 1:
        sizes = np.array([float(one.params) for one in measured])
        return fit_speed(sizes, np.array([one.tokens_per_second for one in measured]))
    (only,) = measured
    return lambda params: only.tokens_per_second * only.params / params


def describe(measured: Sequence[Measured]) -> str:
    """What a speed was measured at, for people."""
    sizes = ", ".join(f"{Count(m.params).short()}: {rate(m.tokens_per_second, 'tokens/s')}" for m in measured)
    return f"measured on {measured[0].machine.rpartition(' (')[0]}: {sizes}"


def time_runs(
    recipes: Sequence[Recipe], vocabulary: int, profiles: Sequence[Path], card: str | None
) -> tuple[list[Interval | None], str]:
    """Seconds of training for each recipe's budget of steps, and how they were got; None where nobody knows.

    From profiles: at the speed that their sizes have, or with a single one at its FLOPs a second. From a card: an
    estimate. Evaluation, saving and set-up are not in it.
    """
    if profiles and card is not None:
        raise UserError("--profile and --card: give one of the two")
    if profiles:
        measured = read_speeds(profiles, "total")
        speed = speed_by_size(measured)
        times: list[Interval | None] = []
        for recipe in recipes:
            counted = recipe_accounting(recipe, vocabulary)
            predictions = int(recipe.budget.steps or 0) * recipe.batch * counted.predictions
            if len(measured) == 1:
                seconds = predictions * counted.per_prediction() / measured[0].flops_per_second
            else:
                seconds = predictions / speed(sum(parameters(recipe.model, vocabulary, recipe.data.length).values()))
            times.append(Interval.exactly(seconds))
        return times, describe(measured)
    if card is not None:
        ranges = [pass_seconds(recipe, vocabulary, card, recipe.batch) for recipe in recipes]
        times = [
            Interval(*(int(recipe.budget.steps or 0) * bound for bound in (one.low, one.expected, one.high)))
            for recipe, one in zip(recipes, ranges)
        ]
        return times, f"an estimate for {card}, from FLOPs and the share of its peak that was reached on an H200"
    return [None] * len(recipes), "unknown; give --profile RUN (measured here) or --card NAME (an estimate)"
