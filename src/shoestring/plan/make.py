"""The plan of a recipe: every number of the run, each with the rule it came from."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from shoestring.core.errors import PlanError
from shoestring.core.facts import Density, Line, Plan, Profile
from shoestring.core.recipe import Recipe
from shoestring.core.units import Bytes, Count, Flops, Seconds, rate
from shoestring.plan.split import Split, choose_split

RESERVE_SECONDS = 1.5
RESERVE_SHARE = 0.03
"""Kept free at the end of a time budget, for a machine that is a little slower than it was when measured."""
REPORT_SECONDS = 2.5
"""The page and the counting strategies of the last evaluation, on one slow core."""
_PREPARE_SHARE = 0.10
"""Of the time budget: an endless corpus is read no longer than this, and then repeated."""

StoreBytes = Callable[[float, float], int]
"""Bytes on disk of a store with this many tokens and documents."""


def checkpoint_interval(recipe: Recipe) -> float:
    """Seconds between checkpoints."""
    if recipe.train.checkpoint_every is not None:
        return float(recipe.train.checkpoint_every)
    return min(600.0, max(1.0, float(recipe.budget.time or 12000) / 20))


def evaluation_count(recipe: Recipe) -> int:
    return math.ceil(1 / recipe.evaluate.every)


@dataclass(frozen=True)
class Ready:
    """Rows that are there before the run, with no corpus to read: a stream, or a store that was made before."""

    rows: int | None
    """For training; None where they never end."""
    bytes: int
    what: str


@dataclass(frozen=True)
class _Corpus:
    """What is read: of a text, the least of what the steps need, what there is, and what time and disk allow."""

    reason: str
    rows: int | None
    """For training; None where they never end."""
    bytes: int
    """On disk."""
    documents: int | None = None
    text_bytes: float | None = None
    tokens_per_document: float | None = None
    seconds: float = 0.0
    """To prepare it."""
    whole: bool = False
    """All there is of a text is read."""


def make_plan(
    recipe: Recipe,
    profile: Profile,
    store_bytes: StoreBytes,
    spent: float = 0.0,
    free_disk: int | None = None,
    ready: Ready | None = None,
    devices: int = 1,
) -> Plan:
    """`spent` seconds of the time budget are gone already, and `free_disk` bytes may be written where that is known.

    Raises PlanError when nothing fits, saying why.
    """
    supply = ready or profile.density
    assert supply is not None, "a profile is planned with together with its corpus"
    split = choose_split(profile, recipe.batch, recipe.train.per_device, recipe.budget.memory, devices)
    tokens_per_step = recipe.batch * recipe.data.length
    fixed = _fixed_seconds(recipe, profile, spent)
    steps, binding = _steps(recipe, profile, supply, split, fixed)
    if isinstance(supply, Ready):
        corpus = _ready(recipe, supply, profile, free_disk)
    else:
        corpus = _corpus(recipe, supply, store_bytes, profile, steps, free_disk)
    tokens = steps * tokens_per_step
    saves = steps * split.step_seconds / checkpoint_interval(recipe) + evaluation_count(recipe)
    parts = fixed | {
        "prepare": corpus.seconds,
        "train": steps * split.step_seconds,
        "checkpoints": saves * profile.checkpoint_seconds,
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
        disk_bytes=corpus.bytes + _kept_bytes(recipe, profile),
        peak_bytes=split.peak_bytes,
        evaluations=evaluation_count(recipe),
    )
    lines = tuple(_lines(recipe, profile, split, corpus, plan))
    return replace(plan, lines=lines)


def _fixed_seconds(recipe: Recipe, profile: Profile, spent: float) -> dict[str, float]:
    """What does not grow with the steps."""
    validation = recipe.evaluate.rows * profile.validate_seconds_per_row
    return {
        "spent so far": spent,
        "set-up": profile.setup_seconds,
        "evaluations": evaluation_count(recipe) * validation,
        "finish": validation + REPORT_SECONDS,
    }


def _steps(
    recipe: Recipe, profile: Profile, supply: Density | Ready, split: Split, fixed: dict[str, float]
) -> tuple[int, str]:
    """The steps that every budget allows, and the budget that allows the fewest."""
    budget, tokens_per_step = recipe.budget, recipe.batch * recipe.data.length
    allowed: dict[str, int] = {}
    if budget.steps is not None:
        allowed["steps"] = int(budget.steps)
    if budget.tokens is not None:
        allowed["tokens"] = int(budget.tokens) // tokens_per_step
    if budget.flops is not None:
        allowed["flops"] = int(float(budget.flops) / (profile.cost.train_flops_per_token * tokens_per_step))
    if budget.epochs is not None:
        rows = supply.rows if isinstance(supply, Ready) else _rows_there_are(recipe, supply)
        if rows is None:
            raise PlanError("budget.epochs: the corpus has no end, so an epoch has no length; give data.documents too")
        allowed["epochs"] = round(budget.epochs * rows / recipe.batch)
    if budget.time is not None:
        allowed["time"] = _steps_in_time(recipe, profile, supply, split, fixed)
    binding = min(allowed, key=lambda name: allowed[name])
    if allowed[binding] < 1:
        raise PlanError(_nothing_fits(recipe, binding, split, fixed, tokens_per_step, profile))
    return allowed[binding], binding


def _rows_there_are(recipe: Recipe, density: Density) -> float | None:
    documents = available_documents(recipe, density)
    if documents is None:
        return None
    return documents * (1 - recipe.data.heldout) * _rows_per_document(recipe, density)


def _rows_per_document(recipe: Recipe, density: Density) -> float:
    """Rows that a document fills, of average length.

    Where it has rows of its own, at least one; the last row of a document that takes several is half full on average.
    """
    if recipe.data.packing == "pad":
        return max(1.0, (density.tokens_per_document - 1) / recipe.data.length + 0.5)
    return density.tokens_per_document / recipe.data.length


def _steps_in_time(
    recipe: Recipe, profile: Profile, density: Density | Ready, split: Split, fixed: dict[str, float]
) -> int:
    """Steps that fit the time budget, each with its share of checkpoints and of the text it needs."""
    time = float(recipe.budget.time or 0)
    reserve = RESERVE_SECONDS + RESERVE_SHARE * time
    left = time - sum(fixed.values()) - reserve - evaluation_count(recipe) * profile.checkpoint_seconds
    step = split.step_seconds * (1 + profile.checkpoint_seconds / checkpoint_interval(recipe))
    if isinstance(density, Ready):
        return int(left / step)
    per_document = density.seconds / density.documents
    if (available := available_documents(recipe, density)) is not None:
        return int((left - available * per_document) / step)
    left -= per_document  # documents are read whole
    # an endless corpus: every step brings its own text, up to the limit, and there is a least amount in any case
    one_epoch = left / (step + _documents_for(recipe, density, 1) * per_document)
    repeated = (left - _document_limit(recipe, density) * per_document) / step
    least = (left - _least_documents(recipe, density) * per_document) / step
    return int(min(max(one_epoch, repeated), least))


def available_documents(recipe: Recipe, density: Density) -> int | None:
    """Documents there are to read; None: no end."""
    numbers = [n for n in (recipe.data.documents, density.total_documents) if n is not None]
    return min(int(n) for n in numbers) if numbers else None


def _documents_for(recipe: Recipe, density: Density, steps: int) -> float:
    """Documents that give every step of one epoch rows of its own."""
    return steps * recipe.batch / _rows_per_document(recipe, density) / (1 - recipe.data.heldout)


def _least_documents(recipe: Recipe, density: Density) -> int:
    """Enough for the held-out rows, and for one step of training."""
    heldout = recipe.evaluate.rows / _rows_per_document(recipe, density) / recipe.data.heldout
    return math.ceil(max(heldout, _documents_for(recipe, density, 1))) + 1


def _document_limit(recipe: Recipe, density: Density) -> float:
    """Most documents of an endless corpus, by the time they may take; what there is otherwise."""
    if (available := available_documents(recipe, density)) is not None:
        return available
    if recipe.budget.time is None:
        return math.inf
    in_time = _PREPARE_SHARE * float(recipe.budget.time) * density.documents / density.seconds
    return max(in_time, _least_documents(recipe, density))


def _kept_bytes(recipe: Recipe, profile: Profile) -> int:
    """Checkpoints on disk at the worst moment: those kept, the best, and the one being written."""
    return (recipe.train.keep + 2) * profile.checkpoint_bytes


def _corpus(
    recipe: Recipe, density: Density, store_bytes: StoreBytes, profile: Profile, steps: int, free_disk: int | None
) -> _Corpus:
    needed = max(math.ceil(_documents_for(recipe, density, steps)), _least_documents(recipe, density))
    limit = _document_limit(recipe, density)
    if available_documents(recipe, density) is not None:
        documents, reason = int(limit), "all there are" if recipe.data.documents is None else "data.documents"
    elif needed <= limit:
        documents, reason = needed, "one epoch of the steps, and the held-out rows"
    else:
        documents, reason = int(limit), f"as many as {_PREPARE_SHARE:.0%} of the time prepares; then repeated"

    def size(number: int) -> int:
        return store_bytes(number * density.tokens_per_document, number)

    limits = [(recipe.budget.disk, f"budget.disk = {recipe.budget.disk}"), (free_disk, "what is free on the disk")]
    for disk, name in limits:
        if disk is None:
            continue
        room = int(disk) - _kept_bytes(recipe, profile)
        least = min(documents, _least_documents(recipe, density))
        if size(least) > room:
            raise PlanError(
                f"nothing fits the disk: {Bytes(int(disk)).short()} ({name}), of which the checkpoints take "
                f"{Bytes(_kept_bytes(recipe, profile)).short()}; make room, or take a smaller model or train.keep"
            )
        if size(documents) > room:
            reason = f"as many as {name} holds; then repeated"
            documents = bisect.bisect_right(range(documents), room, lo=least, key=size) - 1
    rows = documents * (1 - recipe.data.heldout) * _rows_per_document(recipe, density)
    all_there_are = density.total_documents is not None and documents >= density.total_documents
    return _Corpus(
        reason=reason,
        rows=max(1, int(rows)),
        bytes=size(documents),
        documents=documents,
        text_bytes=documents * density.text_bytes / density.documents,
        tokens_per_document=density.tokens_per_document,
        seconds=documents * density.seconds / density.documents,
        whole=all_there_are and (recipe.data.documents is None or documents < int(recipe.data.documents)),
    )


def _ready(recipe: Recipe, ready: Ready, profile: Profile, free_disk: int | None) -> _Corpus:
    """Nothing is written but checkpoints."""
    needed = _kept_bytes(recipe, profile)
    budget = (recipe.budget.disk, f"budget.disk = {recipe.budget.disk}", needed + ready.bytes)
    for disk, name, taken in (budget, (free_disk, "what is free", needed)):
        if disk is not None and taken > int(disk):
            what = "the checkpoints" if taken == needed else "the store and the checkpoints"
            raise PlanError(
                f"nothing fits the disk: {Bytes(int(disk)).short()} ({name}), and {what} take {Bytes(taken).short()}; "
                f"make room, or take a smaller model or train.keep"
            )
    return _Corpus(reason=ready.what, rows=ready.rows, bytes=ready.bytes)


def _nothing_fits(
    recipe: Recipe, binding: str, split: Split, fixed: dict[str, float], tokens_per_step: int, profile: Profile
) -> str:
    value = getattr(recipe.budget, binding)
    if binding == "time":
        around = sum(fixed.values()) + RESERVE_SECONDS + RESERVE_SHARE * float(value)
        return (
            f"nothing fits the time: budget.time = {value}, of which {Seconds(around).short()} are set-up, evaluation "
            f"and reserve, and one step takes {Seconds(split.step_seconds).short()}; raise it or lower evaluate.rows"
        )
    if binding == "flops":
        step = Flops(profile.cost.train_flops_per_token * tokens_per_step).short()
        return f"nothing fits the computation: budget.flops = {value}, and one step takes {step}"
    return f"nothing fits: budget.{binding} = {value} is less than one step of {tokens_per_step:,} tokens"


def _lines(recipe: Recipe, profile: Profile, split: Split, corpus: _Corpus, plan: Plan) -> list[Line]:
    """The plan for people."""
    assert plan.steps and plan.tokens and plan.seconds and plan.tokens_per_second and plan.flops
    asked = "train.tokens" if recipe.train.tokens else "train.batch"
    spread = max(p.slowest_seconds / p.seconds for p in profile.points if p.batch == split.per_device) - 1
    in_parts = " + ".join(f"{Seconds(v).short()} {k}" for k, v in plan.parts.items() if v >= 0.05)
    table = [
        ("effective batch", f"{recipe.batch} rows", f"{asked}: {recipe.batch * recipe.data.length:,} tokens a step"),
        (
            "split",
            f"{split.per_device} × {split.accumulate} × {split.devices}",
            f"rows × accumulation × devices; {split.reason}",
        ),
        ("steps", Count(plan.steps).short(), _steps_reason(recipe, plan.binding)),
        ("tokens", Count(plan.tokens).short(), f"{plan.steps:,} steps × {recipe.batch * recipe.data.length:,} tokens"),
        ("speed", rate(plan.tokens_per_second, "tokens/s"), f"measured; the slowest pass took {spread:.0%} longer"),
        ("computation", Flops(plan.flops).short(), f"{Flops(profile.cost.train_flops_per_token).short()} a token"),
        *_corpus_lines(recipe, corpus, plan),
        ("seconds", Seconds(plan.seconds).short(), in_parts),
        (
            "disk",
            Bytes(plan.disk_bytes or 0).short(),
            f"at most: {'store, ' if corpus.bytes else ''}{recipe.train.keep} last checkpoints, the best, and one "
            f"being written",
        ),
        ("memory", _memory(split), _memory_reason(recipe, profile)),
        ("parameters", Count(profile.cost.total_parameters).short(), _groups(profile.cost.parameters)),
    ]
    return [Line(quantity=quantity, value=value, reason=reason) for quantity, value, reason in table]


def _corpus_lines(recipe: Recipe, corpus: _Corpus, plan: Plan) -> list[tuple[str, str, str]]:
    read = f"{(plan.steps or 0) * recipe.batch:,} rows"
    if corpus.rows is None:
        return [("rows", "no end", corpus.reason), ("epochs", "less than 1", f"{read}, each read once")]
    epochs = ("epochs", f"{plan.epochs or 0:.2f}", f"{read} read of {corpus.rows:,}{_latents(recipe)}")
    if corpus.documents is None or corpus.tokens_per_document is None:
        return [("rows", Count(corpus.rows).short(), corpus.reason), epochs]
    own = ", which has rows of its own" if recipe.data.packing == "pad" else ""
    return [
        ("documents", Count(corpus.documents).short(), corpus.reason),
        ("rows", Count(corpus.rows).short(), f"for training, {corpus.tokens_per_document:.0f} tokens a document{own}"),
        epochs,
    ]


def _latents(recipe: Recipe) -> str:
    """Of a row only the latents are predicted."""
    latents, length = recipe.model.latents, recipe.data.length
    if latents is None or recipe.hmm is not None:
        return ""
    share = f"; {latents} of {length} tokens of a row are predicted"
    if not recipe.data.shift:
        return f"{share}, the same ones every epoch: data.shift moves them"
    return f"{share}, other ones every epoch: {math.ceil(length / latents)} epochs for each token once on average"


def _steps_reason(recipe: Recipe, binding: str) -> str:
    limit = getattr(recipe.budget, binding)
    if binding == "time":
        reserve = Seconds(RESERVE_SECONDS + RESERVE_SHARE * float(limit)).short()
        return f"what fits {limit}, with {reserve} in reserve"
    return f"budget.{binding} = {limit}"


def _memory(split: Split) -> str:
    return "unknown" if split.peak_bytes is None else Bytes(split.peak_bytes).short()


def _memory_reason(recipe: Recipe, profile: Profile) -> str:
    if recipe.budget.memory is not None:
        return f"measured peak; budget.memory = {recipe.budget.memory}"
    free = "unknown" if profile.available_bytes is None else Bytes(profile.available_bytes).short()
    return f"measured peak; {free} were free"


def _groups(parameters: dict[str, int]) -> str:
    return ", ".join(f"{name} {Count(number).short()}" for name, number in parameters.items() if number)
