"""The plan of a recipe: every number of the run, each with the rule it came from."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from shoestring.core.errors import PlanError
from shoestring.core.facts import Density, Plan, Profile
from shoestring.core.recipe import Recipe
from shoestring.core.units import Flops, Seconds
from shoestring.plan.corpus import (
    Corpus,
    Ready,
    StoreBytes,
    available_documents,
    corpus_that_is_ready,
    corpus_to_read,
    document_limit,
    documents_for,
    kept_bytes,
    least_documents,
    rows_there_are,
)
from shoestring.plan.history import NO_HISTORY, Correction
from shoestring.plan.intervals import Ends, seconds_ends, text_ends
from shoestring.plan.lines import plan_lines
from shoestring.plan.refusal import Refusal, plan_or_nearest
from shoestring.plan.split import Split, choose_split, most_memory

RESERVE_SECONDS = 2.5
RESERVE_SHARE = 0.02
"""Kept free at the end of a time budget, for a machine that is a little slower than it was when measured; the seconds
are also those in which a process ends."""
MOST_LONGER = 1.5
"""Times the planned steps: no machine is so much faster than it was when it was measured."""
REPORT_SECONDS = 2.5
"""The page, and the strategies of the last evaluation on few tokens, on one slow core."""
COUNT_SECONDS, MOST_COUNTED = 5e-8, 1 << 28
"""Of a token that the strategies count, and how many they count at most (`evaluate.strategies`)."""


def checkpoint_interval(recipe: Recipe) -> float:
    """Seconds between checkpoints."""
    if recipe.train.checkpoint_every is not None:
        return float(recipe.train.checkpoint_every)
    return min(600.0, max(1.0, float(recipe.budget.time or 12000) / 20))


def saving_seconds(recipe: Recipe, profile: Profile) -> float:
    """That one checkpoint keeps a run waiting: those that come while the one before is still being written wait for it.

    They come after half the interval at the least, where that of an evaluation falls between two others.
    """
    return max(profile.checkpoint_seconds, (profile.write_seconds or 0.0) - checkpoint_interval(recipe) / 2)


def counting_seconds(tokens: float) -> float:
    """Of the strategies, at the end, in a training split of so many tokens."""
    return COUNT_SECONDS * min(MOST_COUNTED, tokens)


def evaluation_count(recipe: Recipe) -> int:
    return math.ceil(1 / recipe.evaluate.every)


def reserve_seconds(time: float) -> float:
    """Of a time budget, what is kept free at its end."""
    return RESERVE_SECONDS + RESERVE_SHARE * time


def make_plan(
    recipe: Recipe,
    profile: Profile,
    store_bytes: StoreBytes,
    spent: float = 0.0,
    free_disk: int | None = None,
    ready: Ready | None = None,
    devices: int = 1,
    correction: Correction = NO_HISTORY,
) -> Plan:
    """`spent` seconds of the time budget are gone already, and `free_disk` bytes may be written where that is known.

    `correction` is what runs before have taught about this machine. Raises PlanError when nothing fits, saying why, and
    with the nearest recipe that does fit where there is one.
    """
    attempt = partial(
        _make,
        profile=profile,
        store_bytes=store_bytes,
        spent=spent,
        free_disk=free_disk,
        ready=ready,
        devices=devices,
        correction=correction,
    )
    return plan_or_nearest(recipe, attempt, most_memory(profile))


def _make(
    recipe: Recipe,
    *,
    profile: Profile,
    store_bytes: StoreBytes,
    spent: float,
    free_disk: int | None,
    ready: Ready | None,
    devices: int,
    correction: Correction,
) -> Plan:
    supply = ready or profile.density
    assert supply is not None, "a profile is planned with together with its corpus"
    split = choose_split(profile, recipe.batch, recipe.train.per_device, recipe.budget.memory, devices)
    split = split._replace(step_seconds=split.step_seconds * correction.factor)
    tokens_per_step = recipe.batch * recipe.data.length
    fixed = _fixed_seconds(recipe, profile, spent)
    steps, binding, most = _steps(recipe, profile, supply, split, fixed)
    if isinstance(supply, Ready):
        corpus = corpus_that_is_ready(recipe, supply, profile, free_disk)
    else:
        corpus = corpus_to_read(recipe, supply, store_bytes, profile, steps, free_disk)
    tokens = steps * tokens_per_step
    saves = steps * split.step_seconds / checkpoint_interval(recipe) + evaluation_count(recipe)
    if isinstance(supply, Ready):
        counting = counting_seconds((supply.rows or 0) * recipe.data.length)
    else:
        counting = counting_seconds((corpus.documents or 0) * _counted_per_document(recipe, supply))
    parts = fixed | {
        "strategies": counting,
        "prepare": corpus.seconds,
        "train": steps * split.step_seconds,
        "checkpoints": saves * saving_seconds(recipe, profile),
    }
    plan = Plan(
        binding=binding,
        recipe=recipe.fingerprint,
        steps=steps,
        tokens=tokens,
        samples=steps * recipe.batch,
        effective_batch=recipe.batch,
        per_device=split.per_device,
        accumulate=split.accumulate,
        devices=split.devices,
        epochs=None if corpus.rows is None else steps * recipe.batch / corpus.rows,
        entries=corpus.documents,
        every_entry=corpus.whole,
        gigabytes=None if corpus.text_bytes is None else corpus.text_bytes / 1e9,
        flops=tokens * profile.cost.train_flops_per_token,
        seconds=sum(parts.values()),
        parts=parts,
        step_seconds=split.step_seconds,
        tokens_per_second=tokens_per_step / split.step_seconds,
        disk_bytes=corpus.bytes + kept_bytes(recipe, profile),
        peak_bytes=split.peak_bytes,
        evaluations=evaluation_count(recipe),
        most_steps=most,
        intervals=_intervals(profile, split, corpus, steps, parts, correction.spread),
        correction=correction.factor if correction.runs else None,
        measured_on=profile.machine.fingerprint,
    )
    reserve = None if recipe.budget.time is None else reserve_seconds(float(recipe.budget.time))
    return replace(plan, lines=(*plan_lines(recipe, profile, split, corpus, plan, reserve), *correction.lines()))


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


def _fixed_seconds(recipe: Recipe, profile: Profile, spent: float) -> dict[str, float]:
    """What does not grow with the steps."""
    validation = recipe.evaluate.rows * profile.validate_seconds_per_row
    finish = validation + REPORT_SECONDS
    meanwhile = finish if profile.machine.device == "cuda" else profile.checkpoint_seconds
    return {
        "spent so far": spent,
        "set-up": profile.setup_seconds,
        "evaluations": evaluation_count(recipe) * validation,
        "finish": finish,
        "last checkpoint": max(0.0, (profile.write_seconds or 0.0) - meanwhile),
    }


def _steps(
    recipe: Recipe, profile: Profile, supply: Density | Ready, split: Split, fixed: dict[str, float]
) -> tuple[int, str, int | None]:
    """The steps that every budget allows, the budget that allows the fewest, and where that is the time, the steps that
    the others allow a machine that turns out to be faster."""
    budget, tokens_per_step = recipe.budget, recipe.batch * recipe.data.length
    allowed: dict[str, int] = {}
    if budget.steps is not None:
        allowed["steps"] = int(budget.steps)
    if budget.tokens is not None:
        allowed["tokens"] = int(budget.tokens) // tokens_per_step
    if budget.flops is not None:
        allowed["flops"] = int(float(budget.flops) / (profile.cost.train_flops_per_token * tokens_per_step))
    if budget.epochs is not None:
        rows = supply.rows if isinstance(supply, Ready) else rows_there_are(recipe, supply)
        if rows is None:
            raise PlanError("budget.epochs: the corpus has no end, so an epoch has no length; give data.documents too")
        allowed["epochs"] = round(budget.epochs * rows / recipe.batch)
    if budget.time is not None:
        allowed["time"] = _steps_in_time(recipe, profile, supply, split, fixed)
    binding = min(allowed, key=lambda name: allowed[name])
    if allowed[binding] < 1:
        raise Refusal(_nothing_fits(recipe, binding, split, fixed, tokens_per_step, profile), binding)
    if binding != "time":
        return allowed[binding], binding, None
    others = [steps for name, steps in allowed.items() if name != "time"]
    return allowed[binding], binding, min([*others, math.ceil(MOST_LONGER * allowed[binding])])


def _steps_in_time(
    recipe: Recipe, profile: Profile, density: Density | Ready, split: Split, fixed: dict[str, float]
) -> int:
    """Steps that fit the time budget, each with its share of checkpoints and of the text it needs."""
    time = float(recipe.budget.time or 0)
    save = saving_seconds(recipe, profile)
    left = time - sum(fixed.values()) - reserve_seconds(time) - evaluation_count(recipe) * save
    step = split.step_seconds * (1 + save / checkpoint_interval(recipe))
    if isinstance(density, Ready):
        return int((left - counting_seconds((density.rows or 0) * recipe.data.length)) / step)
    counted = _counted_per_document(recipe, density)
    if (available := available_documents(recipe, density)) is not None:
        return int((left - density.seconds_for(available) - counting_seconds(available * counted)) / step)
    # an endless corpus may have more tokens than are counted: then counting takes a time that is known
    counting = [(0.0, COUNT_SECONDS * counted), (COUNT_SECONDS * MOST_COUNTED, 0.0)]
    return max(
        _steps_of_endless(recipe, density, step, left - start - known, each + more)
        for start, each in density.ways()
        for known, more in counting
    )


def _counted_per_document(recipe: Recipe, density: Density) -> float:
    """Tokens of a document that the strategies count: those of the training split."""
    return density.tokens_per_document * (1 - recipe.data.heldout)


def _steps_of_endless(recipe: Recipe, density: Density, step: float, left: float, per_document: float) -> int:
    """In the seconds that are left, where every document of a corpus without end takes some, too."""
    left -= per_document  # documents are read whole
    # every step brings its own text, up to the limit, and there is a least amount in any case
    one_epoch = left / (step + documents_for(recipe, density, 1) * per_document)
    repeated = (left - document_limit(recipe, density) * per_document) / step
    least = (left - least_documents(recipe, density) * per_document) / step
    return int(min(max(one_epoch, repeated), least))


def _nothing_fits(
    recipe: Recipe, binding: str, split: Split, fixed: dict[str, float], tokens_per_step: int, profile: Profile
) -> str:
    value = getattr(recipe.budget, binding)
    if binding == "time":
        around = sum(fixed.values()) + reserve_seconds(float(value))
        return (
            f"nothing fits the time: budget.time = {value}, of which {Seconds(around).short()} are set-up, evaluation "
            f"and reserve, and one step takes {Seconds(split.step_seconds).short()}; raise it or lower evaluate.rows"
        )
    if binding == "flops":
        step = Flops(profile.cost.train_flops_per_token * tokens_per_step).short()
        return f"nothing fits the computation: budget.flops = {value}, and one step takes {step}"
    return f"nothing fits: budget.{binding} = {value} is less than one step of {tokens_per_step:,} tokens"
