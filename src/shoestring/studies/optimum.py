"""The best model by a scaling law, for a budget of FLOPs or a time; and the speed of models by size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shoestring.core.errors import UserError
from shoestring.core.law_record import Allocation, Estimate, Law
from shoestring.core.recipe import Recipe
from shoestring.core.records import Profile
from shoestring.core.run_folder import RunFolder
from shoestring.core.units import Count, Flops, Interval, Seconds, amount, rate
from shoestring.cost.transformer import parameters
from shoestring.laws import optimum as laws
from shoestring.laws.form import Surface
from shoestring.laws.surface import SurfaceSpread
from shoestring.planning.split import choose_split
from shoestring.report.law_page import APPROACHES, show_estimate
from shoestring.runs.estimate import pass_seconds
from shoestring.studies.accounting import recipe_accounting
from shoestring.studies.run_results import Count as Counting
from shoestring.studies.run_results import count_params, row_predictions, tokens_flops
from shoestring.studies.sizing import (
    choose_allocation,
    counting_of,
    extrapolation_error,
    limit_notes,
    power_optimum,
    surface_of,
)

FACTORS = (0.5, 2.0)
"""Other sizes that are shown, relative to the best."""
_RANGE = 100.0
"""The best size is searched up to this factor beyond the measured sizes."""


class Measured(NamedTuple):
    """The training speed of one model, including its updates."""

    name: str
    machine: str
    """Name and fingerprint."""
    params: int
    tokens_per_second: float
    """Predictions per second: what D counts."""
    flops_per_second: float
    """Exact."""


def read_speed(path: Path, count: Counting) -> Measured:
    """The speed in a run folder that `shoestring measure` filled, or in its profile.json."""
    folder = RunFolder(path.parent if path.is_file() else path)
    if not folder.recipe.is_file():
        raise UserError(f"--profile {path} is not a run folder, nor the profile.json of one")
    if not folder.profile.is_file():
        raise UserError(f"{path}: there is no {folder.profile}; measure first: shoestring measure RECIPE")
    recipe, profile = folder.read_recipe(), Profile.read(folder.profile)
    recipe.need_network(f"{path}: the profile of an HMM does not give the speed of a network")
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
    """The speeds by size, all of one machine."""
    found = sorted((read_speed(path, count) for path in paths), key=lambda measured: measured.params)
    if len(machines := sorted({measured.machine for measured in found})) > 1:
        raise UserError(f"the profiles are of {len(machines)} machines: {'; '.join(machines)}; give those of one")
    sizes = [measured.params for measured in found]
    if len(set(sizes)) < len(sizes):
        raise UserError(f"two of the profiles are of models with the same number of parameters: {sizes}; give one each")
    return found


def speed_by_size(measured: Sequence[Measured]) -> Callable[[Any], Any]:
    """Tokens per second as a function of parameters; with a single measured size, at its FLOPs per second."""
    if len(measured) > 1:
        sizes = np.array([float(one.params) for one in measured])
        return laws.fit_speed(sizes, np.array([one.tokens_per_second for one in measured]))
    (only,) = measured
    return lambda params: only.tokens_per_second * only.params / params


def describe(measured: Sequence[Measured]) -> str:
    """Where and at which sizes the speed was measured, for people."""
    sizes = ", ".join(f"{Count(m.params).short()}: {rate(m.tokens_per_second, 'predictions/s')}" for m in measured)
    return f"measured on {measured[0].machine.rpartition(' (')[0]}: {sizes}"


def time_runs(
    recipes: Sequence[Recipe], vocabulary: int, profiles: Sequence[Path], gpu: str | None
) -> tuple[list[Interval | None], str]:
    """Seconds of training for each recipe's budget of steps, or None where unknown, and their source.

    From profiles: at the speed of their sizes, or with a single one at its FLOPs per second. From a GPU: an estimate.
    Evaluation, saving and set-up are not included.
    """
    if profiles and gpu is not None:
        raise UserError("--profile and --gpu: give one of the two")
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
    if gpu is not None:
        times = []
        for recipe in recipes:
            one, steps = pass_seconds(recipe, vocabulary, gpu, recipe.batch), int(recipe.budget.steps or 0)
            times.append(Interval(steps * one.low, steps * one.expected, steps * one.high))
        return times, f"an estimate for {gpu}, from FLOPs and the utilisation reached on an H200"
    return [None] * len(recipes), "unknown; give --profile RUN (measured here) or --gpu NAME (an estimate)"


@dataclass(frozen=True, kw_only=True)
class Off:
    """Another size at the same budget."""

    factor: float
    """Relative to the best number of parameters."""
    params: float
    tokens: float
    more_loss: Estimate
    more_budget: float | None
    """What this size needs to reach the best loss, as a share of the budget; None where it never does."""


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best model for a budget, with 95 % intervals from the law's resamples."""

    law: str
    flops: float
    """flops_per_product · N · D."""
    params: Estimate
    tokens: Estimate
    loss: Estimate | None
    """None where the law has no surface, which alone tells losses."""
    seconds: float | None = None
    tokens_per_second: float | None = None
    off: tuple[Off, ...] = ()
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def spread_of(law: Law) -> SurfaceSpread | None:
    """The laws beside the fitted one that the record keeps."""
    if not law.samples:
        return None
    samples = np.array(law.samples)
    every = np.ones(len(samples), bool)
    return SurfaceSpread(samples=samples, converged=every, edge=law.edge, fitted=surface_of(law))


def best_for_flops(law: Law, flops: float, factors: Sequence[float] = (), approach: int | None = None) -> Best:
    """The best model for some compute, and what other sizes cost, at `factors` of the best.

    `approach` is 3 for the surface, or 1 or 2 for the power laws of that approach; default: the surface where there is
    one. Power laws tell no losses, so nothing of other sizes.
    """
    allocation = choose_allocation(law, approach)
    if allocation is not None:
        return _best_by_powers(law, flops, allocation)
    surface, spread, per_token = surface_of(law), spread_of(law), law.flops_per_product
    best = laws.optimum_for_flops(surface, flops, spread, per_token=per_token)
    off = []
    for factor in factors:
        cost = laws.cost_of_size(surface, flops, factor, per_token)
        ends = {} if spread is None else laws.cost_interval(spread, flops, cost.params, per_token=per_token)
        off.append(_off(factor, cost.params, cost.tokens, cost.loss_difference, ends, cost.extra_compute))
    return _best(law, flops, best, off=tuple(off), notes=tuple(limit_notes(law, best.params, best.tokens, flops)))


def _best_by_powers(law: Law, flops: float, allocation: Allocation) -> Best:
    if not 0 < flops < math.inf:
        raise UserError(f"flops = {flops}: a budget must be finite and above 0")
    params, tokens = power_optimum(allocation, flops)
    notes = [f"by {APPROACHES[allocation.approach]}"]
    loss = None
    if law.coefficients:
        loss = predict(law, params.value, tokens.value).loss
        notes.append("the loss is that of the surface, approach 3")
    else:
        notes.append("the law has no surface, so the loss is unknown")
    return Best(
        law=law.source,
        flops=flops,
        params=params,
        tokens=tokens,
        loss=loss,
        notes=(*notes, *limit_notes(law, params.value, tokens.value, flops, allocation)),
    )


def _best(law: Law, flops: float, found: laws.SurfaceOptimum, **others: Any) -> Best:
    names = ("params", "tokens", "loss")
    values: dict[str, Any] = {name: estimate(getattr(found, name), found.intervals.get(name)) for name in names}
    values["loss"] = _widened(values["loss"], extrapolation_error(law, found.params, found.tokens, flops))
    return Best(law=law.source, flops=flops, **values, **others)


def best_for_time(law: Law, seconds: float, measured: Sequence[Measured], factors: Sequence[float] = ()) -> Best:
    """The best model for so many seconds of training on a measured machine, whose speed is taken as exact."""
    surface, spread = surface_of(law), spread_of(law)
    surface.optimum(1.0)  # raises UserError where a term is absent, so that no size is best
    speed = speed_by_size(measured)
    sizes = (measured[0].params / _RANGE, measured[-1].params * _RANGE)
    found = laws.optimum_for_time(surface, seconds, speed, sizes, spread)
    notes = [describe(measured)]
    if len(measured) == 1:
        notes.append("one size was measured: its FLOPs per second are used for all; give more with --profile")
    if found.extrapolated:
        notes.append(f"the speed at {Count(found.params).short()} parameters is extrapolated from the measured sizes")
    if found.at_edge:
        notes.append(f"the best size is the {found.at_edge} of the search; the true one is beyond")
    flops = law.flops_per_product * found.params * found.tokens
    return _best(
        law,
        flops,
        found,
        seconds=seconds,
        tokens_per_second=float(speed(found.params)),
        off=tuple(_off_in_time(surface, seconds, speed, found, factor) for factor in factors),
        notes=(*notes, *limit_notes(law, found.params, found.tokens, flops)),
    )


def _off_in_time(
    surface: Surface, seconds: float, speed: Callable[[Any], Any], best: laws.SurfaceOptimum, factor: float
) -> Off:
    params = best.params * factor
    tokens = float(speed(params)) * seconds
    left = best.loss - surface.E - surface.A * params**-surface.alpha  # for the term of tokens
    needed = (surface.B / left) ** (1 / surface.beta) if left > 0 else math.inf
    return _off(factor, params, tokens, surface.loss(params, tokens) - best.loss, {}, needed / tokens - 1)


def _off(
    factor: float, params: float, tokens: float, loss: float, ends: dict[str, tuple[float, float]], more: float
) -> Off:
    return Off(
        factor=factor,
        params=params,
        tokens=tokens,
        more_loss=estimate(float(loss), ends.get("loss_difference")),
        more_budget=float(more) if math.isfinite(more) else None,
    )


def estimate(value: float, ends: tuple[float, float] | None) -> Estimate:
    """A value with its interval, where that is finite; not identified, where the ends are NaN."""
    if ends is None or not all(map(math.isfinite, ends)):
        return Estimate(value=value, identified=ends is None or not any(map(math.isnan, ends)))
    return Estimate(value=value, low=ends[0], high=ends[1])


def _widened(loss: Estimate, error: float | None) -> Estimate:
    """The interval of a loss with a relative error of its own."""
    if not error:
        return loss
    low, high = (loss.value if end is None else end for end in (loss.low, loss.high))
    more = error * loss.value
    return Estimate(
        value=loss.value,
        low=max(loss.value - math.hypot(loss.value - low, more), 0.0),
        high=loss.value + math.hypot(high - loss.value, more),
    )


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The loss of a model by a law, with its 95 % interval."""

    law: str
    params: float
    tokens: float
    flops: float
    """flops_per_product · N · D."""
    loss: Estimate
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def predict(law: Law, params: float, tokens: float) -> Prediction:
    """The loss of a model of `params` parameters after `tokens` tokens."""
    for name, value in (("--params", params), ("--tokens", tokens)):
        if not 0 < value < math.inf:
            raise UserError(f"{name} {value:g}: must be above 0")
    surface, spread = surface_of(law), spread_of(law)
    flops = law.flops_per_product * params * tokens
    ends = None if spread is None else spread.loss_interval(params, tokens)
    loss = estimate(float(surface.loss(params, tokens)), ends)
    return Prediction(
        law=law.source,
        params=params,
        tokens=tokens,
        flops=flops,
        loss=_widened(loss, extrapolation_error(law, params, tokens, flops)),
        notes=tuple(limit_notes(law, params, tokens, flops)),
    )


def find_best(
    law: Law,
    flops: str | None,
    time: str | None,
    profiles: Sequence[Path],
    factors: Sequence[float],
    approach: int | None = None,
) -> Best:
    """The best model for a budget as text: FLOPs, or a time with measured profiles."""
    if (flops is None) == (time is None):
        raise UserError("give one budget: --flops 1e21, or --time 5d with --profile RUN")
    option = "--time" if flops is None else "--flops"
    try:
        given = float(amount(Seconds, time or "") if flops is None else amount(Flops, flops))
    except ValueError as cause:
        raise UserError(f"{option} {cause}") from cause
    if given <= 0:
        raise UserError(f"{option} {flops or time}: must be above zero")
    if flops is not None:
        if profiles:
            raise UserError("--profile: is for --time; the best model for FLOPs does not depend on a machine")
        return at_least_one(best_for_flops(law, given, factors, approach), f"--flops {flops}")
    if approach not in (None, 3):
        raise UserError(
            f"--time: needs the loss of every size, which approach {approach} does not tell; take --flops or approach 3"
        )
    if not profiles:
        raise UserError(
            "--time: needs --profile RUN, a folder that `shoestring measure RECIPE` filled; several sizes are best"
        )
    found = best_for_time(law, given, read_speeds(profiles, counting_of(law)), factors)
    return at_least_one(found, f"--time {time}")


def at_least_one(best: Best, budget: str) -> Best:
    """The best model; raises UserError where it has less than one parameter, or reads less than one token."""
    params, tokens = best.params.value, best.tokens.value
    if min(params, tokens) < 1:
        raise UserError(
            f"{budget}: the best model would have {params:.3g} parameters and read {tokens:.3g} tokens; give more, so "
            "that there is at least one of each"
        )
    return best


def off_rows(best: Best) -> list[tuple[str, str, str, str, str]]:
    """(size, N, D, loss above the best, extra budget to reach it) of other sizes, for people."""
    return [
        (
            f"{one.factor:g} ×",
            Count(one.params).short(),
            Count(one.tokens).short(),
            show_estimate(one.more_loss, lambda value: f"{value:+.4f}"),
            "never reached" if one.more_budget is None else f"{one.more_budget:+.0%}",
        )
        for one in best.off
    ]
