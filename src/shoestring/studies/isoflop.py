"""Runs of equal compute: from a recipe, sizes and FLOPs to a recipe for each run, with its steps."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from shoestring.core import recipe_file
from shoestring.core.errors import PlanError, RecipeError, UserError
from shoestring.core.files import write_whole
from shoestring.core.reading import read_text
from shoestring.core.recipe import Recipe
from shoestring.core.run_sections import Budget
from shoestring.core.sections import Model
from shoestring.core.units import Count, Flops
from shoestring.core.units import amount as bounded
from shoestring.core.validation import problems as validation_problems
from shoestring.cost.transformer import parameters
from shoestring.studies.accounting import flops_per_prediction, recipe_accounting

_ASPECT_WEIGHT = 0.25
"""Weight of a change of width / layers against the same relative change of parameters."""
_MOST_HEADS = 512


class Amount(NamedTuple):
    """A part of a run."""

    value: float
    unit: Literal["share", "steps", "tokens"]
    """Tokens are predictions: what D counts."""
    text: str

    def share(self, steps: int, tokens_per_step: float) -> float:
        """Of a run of so many steps."""
        if self.unit == "share":
            return self.value
        return self.value / steps / (tokens_per_step if self.unit == "tokens" else 1)


def parse_amount(text: str, option: str) -> Amount:
    """A share as "0.05", or "200 steps", or "8M tokens"."""
    match = re.fullmatch(r"(.*?)\s*(step|token)s?", text.strip())
    unit: Literal["share", "steps", "tokens"] = "share"
    try:
        if match:
            value, unit = float(bounded(Count, match[1])), "steps" if match[2] == "step" else "tokens"
        else:
            value = float(text)
    except ValueError as cause:
        raise UserError(f'{option} {text}: must be a share, as 0.05, or "200 steps", or "8M tokens"') from cause
    if not 0 <= value < math.inf or (unit == "share" and value > 1):
        raise UserError(f"{option} {text}: must be a share from 0 to 1, or a number of steps or tokens")
    return Amount(value, unit, text)


@dataclass(frozen=True, kw_only=True)
class Designed:
    """One run of a set: a size and its compute."""

    recipe: Recipe
    params: int
    params_no_embeddings: int
    flops: float
    """Of the whole run, in the chosen convention."""
    exact_flops: float
    """The same steps by the exact count."""
    flops_per_prediction: float
    exact_per_prediction: float
    tokens: float
    """Predictions that spend the FLOPs: D."""
    steps: int

    @property
    def tokens_per_parameter(self) -> float:
        return self.tokens / self.params


def parse_sizes(text: str, recipe: Recipe, vocabulary: int) -> list[Model]:
    """Models of "512x9,624x11" (width × layers) or "40M,60M" (parameters), in the given order."""
    sizes = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if match := re.fullmatch(r"([1-9][0-9]{0,8})[x×]([1-9][0-9]{0,8})", part):
            sizes.append(_resized(recipe.model, int(match[1]), int(match[2]), None))
            continue
        try:
            params = bounded(Count, part)
        except ValueError as cause:
            raise UserError(f"--sizes {part}: must be WIDTHxLAYERS, as 512x9, or parameters, as 40M") from cause
        if params < 1:
            raise UserError(f"--sizes {part}: a model has at least one parameter")
        sizes.append(fit_size(recipe.model, vocabulary, recipe.data.length, params))
    if not sizes:
        raise UserError("--sizes: give at least one, as 512x9,624x11 or 40M,60M")
    return sizes


def fit_size(model: Model, vocabulary: int, length: int, wanted: int) -> Model:
    """A model of about `wanted` parameters: channels per head as in `model`, width / layers as near as possible."""
    channels, aspect = model.width // model.heads, model.width / model.layers

    def size(made: Model) -> int:
        return sum(parameters(made, vocabulary, length).values())

    best, least = None, math.inf
    for heads in range(1, _MOST_HEADS + 1):
        if model.kv_heads and heads * model.kv_heads % model.heads:
            continue
        width = heads * channels
        for layers in {max(1, math.floor(width / aspect)), math.ceil(width / aspect)}:
            made = _resized(model, width, layers, heads)
            miss = abs(math.log(size(made) / wanted)) + _ASPECT_WEIGHT * abs(math.log(width / layers / aspect))
            if miss < least:
                best, least = made, miss
        if size(_resized(model, width, 1, heads)) > 2 * wanted:
            break
    assert best is not None, "one head is always tried"
    if not 0.5 < (count := size(best)) / wanted < 2:
        raise UserError(
            f"--sizes {Count(wanted).short()}: the nearest model with {channels} channels per head has "
            f"{Count(count).short()} parameters ({best.width}x{best.layers}); the tables of {vocabulary:,} symbols and "
            f"{length:,} positions alone may have more than that"
        )
    return best


def _resized(model: Model, width: int, layers: int, heads: int | None) -> Model:
    """The model at another size, with the same ratios of hidden width and of key heads."""
    hidden = model.hidden and max(8, round(model.hidden / model.width * width / 8) * 8)
    keys = model.kv_heads and (model.kv_heads if heads is None else heads * model.kv_heads // model.heads)
    heads = heads or model.heads
    return replace(
        model, size=None, width=width, layers=layers, heads=heads, hidden=hidden or None, kv_heads=keys or None
    )


def own_flops(recipe: Recipe, vocabulary: int, convention: str) -> float:
    """The compute of a recipe's own budget of steps or FLOPs."""
    if recipe.budget.steps is not None:
        return int(recipe.budget.steps) * _step_flops(recipe, vocabulary, convention)
    if recipe.budget.flops is not None:
        return float(recipe.budget.flops)
    raise UserError("--flops: missing, and the recipe has no budget.steps or budget.flops to take them from")


def _step_flops(recipe: Recipe, vocabulary: int, convention: str) -> float:
    predictions = recipe_accounting(recipe, vocabulary).predictions * recipe.batch
    return flops_per_prediction(recipe, vocabulary, convention) * predictions


def design(
    recipe: Recipe,
    vocabulary: int,
    sizes: Sequence[Model],
    flops: Sequence[float],
    convention: str = "exact",
    warmup: Amount | None = None,
    every: Amount | None = None,
) -> list[Designed]:
    """A run for each size at each amount of compute, in whole steps.

    Each keeps everything of the recipe except its size, its name and its budget, and with `warmup` and `every` the
    share of its steps that is the warm-up, or lies between evaluations.
    """
    designed, problems = [], []
    for amount in flops:
        for model in (replace(each, size=None) for each in sizes):
            name = f"{recipe.run.name}-{model.width}x{model.layers}-{amount:.3g}"
            budget = Budget(steps=Count(1), disk=recipe.budget.disk, memory=recipe.budget.memory)
            made = replace(recipe, model=model, budget=budget, run=replace(recipe.run, name=name))
            if wrong := validation_problems(made):
                problems += [f"{model.width}x{model.layers}: {line}" for line in wrong]
                continue
            step = _step_flops(made, vocabulary, convention)
            if amount < step:
                raise PlanError(
                    f"{Flops(amount).short()} are less than one step of {model.width}x{model.layers}, "
                    f"{Flops(step).short()}; give more --flops, smaller --sizes or a smaller train.batch"
                )
            counted, each = recipe_accounting(made, vocabulary), flops_per_prediction(made, vocabulary, convention)
            steps = math.ceil(round(amount / step, 9))  # 26144.000000000004 is 26144
            made = replace(made, budget=replace(budget, steps=Count(steps)))
            try:
                made = _with_amounts(made, steps, counted.predictions * recipe.batch, warmup, every)
            except UserError as cause:
                problems.append(str(cause))
                continue
            designed.append(
                Designed(
                    recipe=made,
                    params=sum(parameters(model, vocabulary, recipe.data.length).values()),
                    params_no_embeddings=counted.parameters["6N, no embeddings"],
                    flops=amount,
                    exact_flops=steps * counted.row["exact"] * recipe.batch,
                    flops_per_prediction=each,
                    exact_per_prediction=counted.per_prediction(),
                    tokens=amount / each,
                    steps=steps,
                )
            )
    if problems:
        raise RecipeError("the designed runs", problems)
    return designed


def _with_amounts(
    recipe: Recipe, steps: int, tokens_per_step: float, warmup: Amount | None, every: Amount | None
) -> Recipe:
    """The recipe with its warm-up and its evaluations as shares of its steps; the last step is always evaluated."""
    if warmup is not None:
        share = warmup.share(steps, tokens_per_step)
        if share >= 1:
            raise UserError(f"--warmup {warmup.text}: {recipe.run.name} has only {steps:,} steps")
        recipe = replace(recipe, train=replace(recipe.train, warmup=share, least_warmup=0))
    if every is not None:
        share = every.share(steps, tokens_per_step)
        if share <= 0:
            raise UserError(f"--evaluate-every {every.text}: must be above 0")
        recipe = replace(recipe, evaluate=replace(recipe.evaluate, every=min(share, 1.0)))
    return recipe


def write_recipes(file: Path, designed: Sequence[Designed], folder: Path) -> list[Path]:
    """Write a recipe for each run that extends `file`, named as the run; raises before it would overwrite another."""
    base = recipe_file.load(file)
    texts = {}
    for made in designed:
        path = folder / f"{made.recipe.run.name}.toml"
        text = recipe_file.dump_over(base, made.recipe, os.path.relpath(file.resolve(), folder.resolve()))
        if path.is_file() and read_text(path, RecipeError) != text:
            raise UserError(f"{path} exists and differs; remove it, or choose another --out")
        texts[path] = text
    for path, text in texts.items():
        write_whole(path, text)
    return list(texts)
