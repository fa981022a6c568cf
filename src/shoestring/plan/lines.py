"""The plan of a recipe for people: a line for each number, with the rule it came from."""

from __future__ import annotations

import math

from shoestring.core.facts import Line, Plan, Profile
from shoestring.core.recipe import Recipe
from shoestring.core.units import Bytes, Count, Flops, Interval, Seconds, rate
from shoestring.plan.corpus import Corpus
from shoestring.plan.split import Split, is_measured

_STORED_TOKEN = 2
"""Bytes of a token in a store, for a vocabulary up to 65,536."""


def plan_lines(
    recipe: Recipe, profile: Profile, split: Split, corpus: Corpus, plan: Plan, reserve: float | None
) -> list[Line]:
    """The plan for people; `reserve` seconds of a time budget are kept free."""
    assert plan.steps and plan.tokens and plan.seconds and plan.tokens_per_second and plan.flops
    asked = "train.tokens" if recipe.train.tokens else "train.batch"
    spread = split.point.slowest_seconds / split.point.seconds - 1
    taken = f"{'may take' if profile.estimated else 'took'} {spread:.0%} longer"
    table = [
        ("effective batch", f"{recipe.batch} rows", f"{asked}: {recipe.batch * recipe.data.length:,} tokens a step"),
        (
            "split",
            f"{split.per_device} × {split.accumulate} × {split.devices}",
            f"rows × accumulation × devices; {split.reason}",
        ),
        *(("devices", str(split.devices), note) for note in devices_note(split.devices, profile)),
        ("steps", Count(plan.steps).short(), _steps_reason(recipe, plan.binding, reserve)),
        ("tokens", Count(plan.tokens).short(), f"{plan.steps:,} steps × {recipe.batch * recipe.data.length:,} tokens"),
        (
            "speed",
            rate(plan.tokens_per_second, "tokens/s"),
            f"{profile.how}{'' if plan.correction is None else ' and corrected'}; the slowest pass {taken}",
        ),
        ("computation", Flops(plan.flops).short(), f"{Flops(profile.cost.train_flops_per_token).short()} a token"),
        *_corpus_lines(recipe, corpus, plan),
        ("seconds", shown(plan, "seconds", plan.seconds), parts_reason(plan.parts)),
        (
            "disk",
            Bytes(plan.disk_bytes or 0).short(),
            f"at most: {'store, ' if corpus.bytes else ''}{recipe.train.keep} last checkpoints, the best, and one "
            f"being written",
        ),
        ("memory", _memory(split), _memory_reason(recipe, profile, split)),
        ("parameters", Count(profile.cost.total_parameters).short(), _groups(profile.cost.parameters)),
    ]
    return [Line(quantity=quantity, value=value, reason=reason) for quantity, value, reason in table]


def devices_note(devices: int, profile: Profile) -> list[str]:
    """What a plan for `devices` leaves out, where the profile is of another number of them."""
    if devices == profile.devices:
        return []
    return [
        f"{profile.how} on {profile.devices}, planned for {devices}: the rows of a step are divided and an update "
        f"takes as long; what devices tell each other comes on top"
    ]


def _corpus_lines(recipe: Recipe, corpus: Corpus, plan: Plan) -> list[tuple[str, str, str]]:
    read = f"{(plan.steps or 0) * recipe.batch:,} rows"
    if corpus.rows is None:
        stored = Bytes(_STORED_TOKEN * (plan.tokens or 0)).short()
        return [
            ("rows", "no end", corpus.reason),
            ("epochs", "less than 1", f"{read}, each read once"),
            ("stored rows", "none", f"as a token store they would take {stored}, at {_STORED_TOKEN} bytes a token"),
        ]
    epochs = ("epochs", f"{plan.epochs or 0:.2f}", f"{read} read of {corpus.rows:,}{_latents(recipe)}")
    if corpus.documents is None or corpus.tokens_per_document is None:
        return [("rows", Count(corpus.rows).short(), corpus.reason), epochs]
    own = ", which has rows of its own" if recipe.data.packing == "pad" else ""
    return [
        ("documents", shown(plan, "entries", corpus.documents), corpus.reason),
        (
            "text",
            shown(plan, "gigabytes", (corpus.text_bytes or 0.0) / 1e9),
            f"{Bytes(round((corpus.text_bytes or 0.0) / corpus.documents)).short()} a document, from a sample",
        ),
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


def _steps_reason(recipe: Recipe, binding: str, reserve: float | None) -> str:
    limit = getattr(recipe.budget, binding)
    if binding == "time":
        return f"what fits {limit}, with {Seconds(reserve or 0.0).short()} in reserve"
    return f"budget.{binding} = {limit}"


def parts_reason(parts: dict[str, float]) -> str:
    """What the seconds of a run go to; what takes next to none is left out."""
    return " + ".join(f"{Seconds(seconds).short()} {name}" for name, seconds in parts.items() if seconds >= 0.05)


_PRINTERS = {
    "seconds": lambda value: Seconds(value).short(),
    "entries": lambda value: Count(round(value)).short(),
    "gigabytes": lambda value: Bytes(round(value * 1e9)).short(),
}


def shown(plan: Plan, name: str, value: float) -> str:
    """A number of the plan with its interval, where it has one."""
    low, high = plan.intervals.get(name, (value, value))
    return Interval(low, value, high).show(_PRINTERS[name])


def _memory(split: Split) -> str:
    return "unknown" if split.peak_bytes is None else Bytes(split.peak_bytes).short()


def _memory_reason(recipe: Recipe, profile: Profile, split: Split) -> str:
    how = f"{profile.how} peak" if is_measured(profile, split.point) else f"on the line through {profile.how} peaks"
    if recipe.budget.memory is not None:
        return f"{how}; budget.memory = {recipe.budget.memory}"
    free = "unknown" if profile.available_bytes is None else Bytes(profile.available_bytes).short()
    return f"{how}; {free} were free"


def _groups(parameters: dict[str, int]) -> str:
    return ", ".join(f"{name} {Count(number).short()}" for name, number in parameters.items() if number)
