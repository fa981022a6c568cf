"""The plan of a recipe: every number of the run, each with its reason."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from shoestring.core.errors import PlanError, Refusal
from shoestring.core.recipe import Recipe
from shoestring.core.records import Density, Plan, Point, Profile
from shoestring.core.sections import number
from shoestring.core.units import Flops, Seconds, counted
from shoestring.planning.corpus import (
    Corpus,
    Ready,
    StoreBytes,
    available_documents,
    available_rows,
    corpus_that_is_ready,
    corpus_to_read,
    document_limit,
    documents_for,
    documents_read,
    drawn_documents,
    heldout_seconds,
    kept_checkpoints,
    least_documents,
    predictions_per_row,
    scored_rows,
)
from shoestring.planning.history import NO_HISTORY, Correction
from shoestring.planning.lines import plan_lines
from shoestring.planning.refusal import naming_the_nearest
from shoestring.planning.split import Split, choose_split
from shoestring.planning.stops import listed_seconds, saving, validation_seconds

RESERVE_SECONDS = 2.5
RESERVE_SHARE = 0.02
"""Time kept free at the end of a time budget, for a machine that became slower since the measurement and for the end
of the process."""
REPORT_SECONDS = 2.5
"""The page, and the baselines of the last evaluation on few tokens, on one slow core; a free one takes half of it."""
MOST_POSITIONS = 10**18
"""Positions of a run: rows and tokens are counted in 64 bits."""
COUNT_SECONDS, MOST_COUNTED = 5e-8, 1 << 28
"""Seconds per token that the baselines count, and the most tokens they count."""
_SIGMAS = 1.96
"""Standard deviations to either side that hold 95 % of a normal distribution."""
_RANGE_SIGMAS = 4.0
"""Approximate range of a dozen passes, in standard deviations."""

Ends = tuple[float, float]


def counting_seconds(tokens: float) -> float:
    """Seconds that the baselines take to count a training split of `tokens`."""
    return COUNT_SECONDS * min(MOST_COUNTED, tokens)


def reserve_seconds(time: float) -> float:
    """The time kept free at the end of a time budget."""
    return RESERVE_SECONDS + RESERVE_SHARE * time


@naming_the_nearest
def make_plan(
    recipe: Recipe,
    profile: Profile,
    store_bytes: StoreBytes,
    spent: float = 0.0,
    free_disk: int | None = None,
    ready: Ready | None = None,
    devices: int = 1,
    correction: Correction = NO_HISTORY,
    prepared: Sequence[int] = (),
    read: int = 0,
) -> Plan:
    """The plan of a recipe on the measured machine.

    `spent` seconds of the time budget are gone, and at most `free_disk` bytes may be written (None: unknown).
    `correction` comes from past runs on this machine. Stores with `prepared` numbers of documents exist. A run that
    this one continues has `read` the rows of so many steps. Raises PlanError with the reason when nothing fits.
    """
    supply = ready or profile.density
    assert supply is not None, "a profile without a density needs rows that are ready"
    split = choose_split(profile, recipe.batch, recipe.train.per_device, recipe.budget.memory, devices)
    split = split._replace(step_seconds=split.step_seconds * correction.factor)
    tokens_per_step = recipe.batch * recipe.data.length
    interval, save, evaluations = saving(recipe, profile, split)
    fixed = _fixed_seconds(recipe, profile, spent, evaluations)
    steps, binding, most = _steps(recipe, profile, supply, split, fixed, read)
    kept = kept_checkpoints(recipe, most or steps)
    if isinstance(supply, Ready):
        corpus = corpus_that_is_ready(recipe, supply, kept, profile.checkpoint_bytes, free_disk)
        counted = float((supply.rows or 0) * recipe.data.length)
    else:
        sizes = store_bytes, kept, profile.checkpoint_bytes
        corpus = corpus_to_read(recipe, supply, *sizes, read + steps, free_disk, prepared)
        counted = (corpus.documents or 0) * _counted_per_document(recipe, supply)
    tokens = steps * tokens_per_step
    saves = steps * split.step_seconds / interval + evaluations
    parts = fixed | {
        "baselines": counting_seconds(counted),
        "prepare": corpus.seconds,
        "train": steps * split.step_seconds,
        "checkpoints": saves * save + listed_seconds(recipe, profile, steps),
    }
    during = sum(parts[name] for name in ("train", "evaluations", "checkpoints"))
    wanted = None if isinstance(supply, Ready) else _wanted(recipe, profile, supply, split, fixed, steps, binding)
    plan = Plan(
        binding=binding,
        recipe=recipe.fingerprint,
        steps=steps,
        tokens=tokens,
        predictions=_times(steps * recipe.batch, predictions_per_row(recipe, profile.density)),
        samples=steps * recipe.batch,
        effective_batch=recipe.batch,
        per_device=split.per_device,
        accumulate=split.accumulate,
        devices=split.devices,
        epochs=None if corpus.rows is None else steps * recipe.batch / corpus.rows,
        entries=corpus.documents,
        every_entry=corpus.whole,
        share=corpus.share,
        gigabytes=None if corpus.text_bytes is None else corpus.text_bytes / 1e9,
        wanted_entries=wanted and wanted.entries,
        wanted_gigabytes=wanted and wanted.gigabytes,
        flops=tokens * profile.cost.train_flops_per_token,
        seconds=sum(parts.values()),
        parts=parts,
        step_seconds=split.step_seconds,
        tokens_per_second=tokens_per_step / split.step_seconds,
        overall_tokens_per_second=tokens / during,
        disk_bytes=corpus.bytes + kept * profile.checkpoint_bytes,
        peak_bytes=split.peak_bytes,
        evaluations=evaluations,
        scored=scored_rows(recipe, profile.density),
        most_steps=most,
        intervals=_intervals(profile, split, corpus, steps, parts, correction.spread) | (wanted.ends if wanted else {}),
        correction=correction.factor if correction.runs else None,
        measured_on=profile.machine.fingerprint,
        estimated=profile.estimated,
    )
    reserve = None if recipe.budget.time is None else reserve_seconds(float(recipe.budget.time))
    return replace(plan, lines=(*plan_lines(recipe, profile, split, corpus, plan, reserve), *correction.lines()))


def _times(rows: int, each: float | None) -> int | None:
    return None if each is None else round(rows * each)


def _intervals(
    profile: Profile, split: Split, corpus: Corpus, steps: int, parts: dict[str, float], spread: float
) -> dict[str, Ends]:
    density, found = profile.density, {}
    error = 0.0
    if corpus.documents is not None and corpus.text_bytes is not None and density is not None:
        found = text_ends(density, corpus.documents, corpus.text_bytes / 1e9, corpus.as_needed)
        if corpus.whole and density.total_documents and density.total_documents_error:
            error = density.total_documents_error / density.total_documents
    passes = steps * split.accumulate
    return {"seconds": seconds_ends(parts, profile, split.point, passes, spread, error), **found}


def seconds_ends(
    parts: Mapping[str, float], profile: Profile, point: Point, passes: int, spread: float, documents_error: float = 0.0
) -> Ends:
    """(low, high) of the seconds of a run that takes `parts`, with `passes` like `point`.

    Three things vary independently: the speed of the machine, by the share `spread` of all remaining time; single
    passes, whose differences nearly cancel over a run; and the documents, by the share `documents_error`. Compiled code
    may come from a cache, so the low end is without compilation.
    """
    total, remaining = sum(parts.values()), sum(v for name, v in parts.items() if name != "spent so far")
    fastest = point.seconds if point.fastest_seconds is None else point.fastest_seconds
    single = (point.slowest_seconds - fastest) / _RANGE_SIGMAS
    deviations = (spread * remaining, single * math.sqrt(passes), documents_error * parts.get("prepare", 0.0))
    half = _SIGMAS * math.hypot(*deviations)
    compiled = min(profile.compile_seconds or 0.0, parts.get("set-up", 0.0))
    return max(total - remaining, total - half - compiled), total + half


def text_ends(density: Density, entries: float, gigabytes: float, as_needed: bool) -> dict[str, Ends]:
    """(low, high) of the entries and gigabytes that are read; both vary if they are what the run's tokens need."""
    tokens_error = (density.tokens_per_gb_error or 0.0) / density.tokens_per_gb
    entries_error = (density.entries_per_gb_error or 0.0) / density.entries_per_gb
    errors = {"gigabytes": (gigabytes, entries_error)}
    if as_needed:
        both = math.hypot(tokens_error, entries_error)
        errors = {"entries": (entries, both), "gigabytes": (gigabytes, tokens_error)}
    return {
        name: (value * max(0.0, 1 - _SIGMAS * error), value * (1 + _SIGMAS * error))
        for name, (value, error) in errors.items()
        if error
    }


def _fixed_seconds(recipe: Recipe, profile: Profile, spent: float, evaluations: int) -> dict[str, float]:
    """Seconds that do not grow with the steps."""
    validation = validation_seconds(recipe, profile)
    finish = validation + REPORT_SECONDS
    meanwhile = finish if profile.machine.device == "cuda" else profile.checkpoint_seconds
    return {
        "spent so far": spent,
        "set-up": profile.setup_seconds,
        "evaluations": evaluations * validation,
        "finish": finish,
        "last checkpoint": max(0.0, (profile.write_seconds or 0.0) - meanwhile),
    }


def _steps(
    recipe: Recipe, profile: Profile, supply: Density | Ready, split: Split, fixed: dict[str, float], read: int
) -> tuple[int, str, int | None]:
    """The steps that every budget allows, the budget that binds, and, if that is the time, what the others allow."""
    budget, tokens_per_step = recipe.budget, recipe.batch * recipe.data.length
    allowed: dict[str, int] = {}
    if budget.steps is not None:
        allowed["steps"] = int(budget.steps)
    if budget.tokens is not None:
        allowed["tokens"] = int(budget.tokens) // tokens_per_step
    if budget.flops is not None:
        allowed["flops"] = int(float(budget.flops) / (profile.cost.train_flops_per_token * tokens_per_step))
    if budget.epochs is not None:
        rows = supply.rows if isinstance(supply, Ready) else available_rows(recipe, supply)
        if rows is None:
            raise PlanError("budget.epochs: the corpus has no end, so an epoch has no length; give data.documents too")
        allowed["epochs"] = round(number(budget.epochs) * rows / recipe.batch)
    if budget.time is not None:
        allowed["time"] = _steps_in_time(recipe, profile, supply, split, fixed, read)
    binding = min(allowed, key=lambda name: allowed[name])
    if (positions := allowed[binding] * tokens_per_step) > MOST_POSITIONS:
        product = f"{counted(allowed[binding], 'step')} × {recipe.batch:,} rows × data.length = {recipe.data.length}"
        raise PlanError(
            f"budget.{binding} = {getattr(budget, binding)}: {product} are {positions:.3g} positions, and a run has at "
            f"most {MOST_POSITIONS:.0e}; lower it, or train.batch"
        )
    if allowed[binding] < 1:
        raise Refusal(_nothing_fits(recipe, binding, split, fixed, tokens_per_step, profile), binding)
    if binding != "time":
        return allowed[binding], binding, None
    return allowed[binding], binding, min((n for name, n in allowed.items() if name != "time"), default=None)


class _Wanted(NamedTuple):
    """The text of one epoch of all that a budget reads."""

    entries: int
    gigabytes: float
    ends: dict[str, Ends]


def _wanted(
    recipe: Recipe,
    profile: Profile,
    density: Density,
    split: Split,
    fixed: dict[str, float],
    steps: int,
    binding: str,
) -> _Wanted | None:
    """The text that the budget could read in one epoch, if the corpus were as dense and had no end."""
    if binding == "epochs":
        return None
    if binding == "time":
        left, step = _time_for_steps(recipe, profile, split, fixed)
        each = documents_for(recipe, density, 1)
        steps = max(
            int((left - start - known - per_document) / (step + each * (per_document + more)))
            for start, per_document in density.methods()
            for known, more in _counting(recipe, density)
        )
    entries = max(math.ceil(documents_for(recipe, density, steps)), least_documents(recipe, density))
    gigabytes = entries / density.entries_per_gb
    ends = text_ends(density, entries, gigabytes, as_needed=True)
    return _Wanted(entries, gigabytes, {f"wanted_{name}": pair for name, pair in ends.items()})


def _time_for_steps(recipe: Recipe, profile: Profile, split: Split, fixed: dict[str, float]) -> tuple[float, float]:
    """Seconds of the time budget for steps and text, and seconds of a step with its share of the checkpoints."""
    time = float(recipe.budget.time or 0)
    interval, save, evaluations = saving(recipe, profile, split)
    left = time - sum(fixed.values()) - reserve_seconds(time) - evaluations * save
    step = split.step_seconds * (1 + save / interval)
    return left - listed_seconds(recipe, profile, int(max(0.0, left) / step)), step


def _counting(recipe: Recipe, density: Density) -> list[tuple[float, float]]:
    """Fixed seconds and seconds per document that the baselines count: all tokens of an endless corpus, or the most.

    Whichever takes less time.
    """
    return [(0.0, COUNT_SECONDS * _counted_per_document(recipe, density)), (COUNT_SECONDS * MOST_COUNTED, 0.0)]


def _steps_in_time(
    recipe: Recipe, profile: Profile, density: Density | Ready, split: Split, fixed: dict[str, float], read: int
) -> int:
    """Steps that fit the time budget, each with its share of the checkpoints and of the text."""
    left, step = _time_for_steps(recipe, profile, split, fixed)
    if isinstance(density, Ready):
        return int((left - counting_seconds((density.rows or 0) * recipe.data.length)) / step)
    counted = _counted_per_document(recipe, density)
    if (available := available_documents(recipe, density)) is not None:
        every = available

        def cost(steps: int) -> float:
            documents = drawn_documents(recipe, density, read + steps) or every
            reading = density.seconds_for(documents) + heldout_seconds(recipe, density, documents)
            return steps * step + reading + counting_seconds(documents * counted)

        return bisect.bisect_right(range(int(left / step) + 1), left, key=cost) - 1
    return max(
        _steps_of_endless(recipe, density, step, left - start - known, each + more)
        for start, each in density.methods()
        for known, more in _counting(recipe, density)
    )


def _counted_per_document(recipe: Recipe, density: Density) -> float:
    """Tokens per document that the baselines count: those of the training split."""
    return density.tokens_per_document * (1 - recipe.data.heldout)


def _steps_of_endless(recipe: Recipe, density: Density, step: float, left: float, per_document: float) -> int:
    """Steps in the seconds that are left, when every document of an endless corpus takes `per_document` seconds."""
    left -= per_document  # documents are read whole
    # every step reads its own text up to the limit, and a least amount is always read
    one_epoch = left / (step + documents_read(recipe, density, 1) * per_document)
    repeated = (left - document_limit(recipe, density) * per_document) / step
    least = (left - least_documents(recipe, density) * per_document) / step
    return int(min(max(one_epoch, repeated), least))


def _nothing_fits(
    recipe: Recipe, binding: str, split: Split, fixed: dict[str, float], tokens_per_step: int, profile: Profile
) -> str:
    value = getattr(recipe.budget, binding)
    if binding == "time":
        around = sum(fixed.values()) + reserve_seconds(float(value))
        density, documents = profile.density, recipe.data.documents
        reading, less = "", "evaluate.rows"
        if density is not None and documents is not None:
            seconds = Seconds(density.seconds_for(available_documents(recipe, density) or 0)).short()
            reading, less = f"preparing data.documents = {documents} {seconds}, ", "evaluate.rows or data.documents"
        return (
            f"nothing fits the time: budget.time = {value}; set-up, evaluation and reserve take "
            f"{Seconds(around).short()}, {reading}and one step {Seconds(split.step_seconds).short()}; raise it or "
            f"lower {less}"
        )
    if binding == "flops":
        step = Flops(profile.cost.train_flops_per_token * tokens_per_step).short()
        return f"nothing fits the computation: budget.flops = {value}, and one step takes {step}"
    return f"nothing fits: budget.{binding} = {value} is less than one step of {tokens_per_step:,} positions"
