"""The lines of a plan, each a number with its reason, and what a scaling law says about it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from shoestring.core.errors import PlanError
from shoestring.core.family import family_of
from shoestring.core.recipe import Recipe
from shoestring.core.records import Density, Line, Plan, Profile
from shoestring.core.sections import number
from shoestring.core.train_section import Train
from shoestring.core.units import Bytes, Count, Flops, Interval, Seconds, counted, rate, with_name
from shoestring.core.warmup import least_steps, warmup_reason, warmup_share
from shoestring.planning.corpus import Corpus, full_passes
from shoestring.planning.expect import turn_lines
from shoestring.planning.figures import show_bytes, show_count, show_seconds
from shoestring.planning.simulate import difference_bytes
from shoestring.planning.speed_up import speed_up_lines
from shoestring.planning.split import Split, is_measured
from shoestring.planning.stops import evaluation_count

_STORED_TOKEN = 2
"""Bytes per token in a store, for a vocabulary up to 65,536."""
_NEAR = 2.0
"""A model within this factor of the optimum loses next to nothing: the minimum of a law is flat."""


def plan_lines(
    recipe: Recipe, profile: Profile, split: Split, corpus: Corpus, plan: Plan, reserve: float | None
) -> list[Line]:
    """The plan for people; `reserve` seconds of the time budget are kept free."""
    assert plan.steps and plan.tokens and plan.seconds and plan.tokens_per_second and plan.flops
    field = "train.tokens" if recipe.train.tokens else "train.batch"
    step_tokens = f"{recipe.batch * recipe.data.length:,} positions"
    limit = getattr(recipe.budget, plan.binding)
    steps_reason = f"budget.{plan.binding} = {limit}"
    if plan.binding == "time":
        steps_reason = f"what fits {limit}, with {Seconds(reserve or 0.0).short()} in reserve"
    corrected = "" if plan.correction is None else " and corrected"
    spread = split.point.slowest_seconds / split.point.seconds - 1
    slowest = f"the slowest pass {'may take' if profile.estimated else 'took'} {spread:.0%} longer"
    kept = f"{'store, ' if corpus.bytes else ''}{recipe.train.keep} last checkpoints, the best, and one being written"
    kept += ", one before the cool-down" if recipe.train.cools else ""
    saved = _saved_line(recipe.train, plan.steps)
    kept += ", and those of chosen steps" if saved else ""
    memory = "unknown" if split.peak_bytes is None else Bytes(split.peak_bytes).short()
    groups = ", ".join(f"{name} {Count(number).short()}" for name, number in profile.cost.parameters.items() if number)
    split_shown = f"{split.per_device} × {split.accumulate} × {split.devices}"
    table = [
        ("effective batch", counted(recipe.batch, "row"), f"{field}: {step_tokens} per step"),
        *_growth_lines(recipe),
        ("split", split_shown, f"micro-batch × accumulation × devices; {split.reason}"),
        *(("devices", str(split.devices), note) for note in devices_note(split.devices, profile)),
        *_sharing_lines(recipe, split.devices, profile.cost.total_parameters),
        *speed_up_lines(recipe, profile, split),
        ("steps", Count(plan.steps).short(), steps_reason),
        warmup_line(recipe, plan.steps),
        ("positions", Count(plan.tokens).short(), f"{counted(plan.steps, 'step')} × {step_tokens}"),
        ("predictions", *_predictions(recipe, plan)),
        ("speed", rate(plan.tokens_per_second, "positions/s"), f"{profile.how}{corrected}; {slowest}"),
        overall_line(plan, recipe),
        ("computation", Flops(plan.flops).short(), f"{Flops(profile.cost.train_flops_per_token).short()} per position"),
        *_corpus_lines(recipe, corpus, plan, profile.density),
        ("seconds", shown(plan, "seconds", plan.seconds), parts_reason(plan.parts)),
        ("disk", Bytes(plan.disk_bytes or 0).short(), f"at most: {kept}"),
        *saved,
        ("memory", memory, _memory_reason(recipe, profile, split)),
        ("parameters", Count(profile.cost.total_parameters).short(), groups),
    ]
    lines = [Line(quantity=quantity, value=value, reason=reason) for quantity, value, reason in table]
    repeated = _turn_lines(recipe, profile, corpus, plan) or repetition_lines(plan.epochs, full_passes(recipe))
    return [*lines, *download_lines(plan), *repeated]


def _turn_lines(recipe: Recipe, profile: Profile, corpus: Corpus, plan: Plan) -> list[Line]:
    """A note where the held-out loss is expected to rise; none where the rule is not measured: for masked tokens,
    classes, dropout, and weights that were trained before."""
    model = recipe.model
    unmeasured = recipe.data.label or recipe.data.pair or model.drops or model.init or model.name
    if corpus.rows is None or plan.epochs is None or unmeasured or family_of(model).predicts_hidden(model):
        return []
    text = counted(round(corpus.rows), "row") if corpus.text_bytes is None else show_bytes(corpus.text_bytes)
    unique = corpus.rows * recipe.data.length / full_passes(recipe)
    return turn_lines(plan.epochs / full_passes(recipe), profile.cost.total_parameters, unique, text)


def warmup_line(recipe: Recipe, total: int) -> tuple[str, str, str]:
    """The steps until the learning rate is at its peak, and why so many."""
    if recipe.train.continued:
        return "warm-up", counted(0, "step"), "train.continued: the optimizer has its state"
    steps = total * warmup_share(total, number(recipe.train.warmup), least_steps(recipe))
    return "warm-up", counted(round(steps), "step"), warmup_reason(recipe, total)


def overall_line(plan: Plan, recipe: Recipe) -> tuple[str, str, str]:
    """The speed that counts evaluations and checkpoints, with their share of the time."""
    parts = {name: plan.parts[name] for name in ("train", "evaluations", "checkpoints")}
    share = 1 - parts["train"] / sum(parts.values())
    told = parts_reason(parts)
    reason = f"with evaluations and checkpoints, {share:.1%} of the time" + (f": {told}" if told else "")
    wanted, planned = evaluation_count(recipe), plan.evaluations or 0
    if 0 < planned < wanted:
        each = Seconds(parts["evaluations"] / planned).short()
        reason += f"; {counted(planned, 'evaluation')} in place of {wanted}, since one takes {each}"
    return "overall speed", rate(plan.overall_tokens_per_second or 0.0, "positions/s"), reason


REPETITION = "repetition"
"""The quantity of the line on text that is read too often."""
DOWNLOAD = "to download"
"""The quantity of the line on the text that a budget reads."""
USEFUL_EPOCHS = 4.0
"""Epochs up to which repeated text is worth nearly as much as new text (Muennighoff et al. 2023)."""


def download_lines(plan: Plan, margin: float = 1.0) -> list[Line]:
    """The text that the budget could read without repeating any; none where that is not known."""
    entries, gigabytes = plan.wanted_entries, plan.wanted_gigabytes
    if entries is None or gigabytes is None:
        return []
    more = "" if margin == 1 else f" × {margin:g} margin"
    there = "" if plan.entries is None else f"; this plan reads {counted(plan.entries, 'entry', 'entries')}"
    reason = f"{shown(plan, 'wanted_gigabytes', gigabytes)} of text: one epoch of what the budget reads{more}{there}"
    value = f"{with_name(shown(plan, 'wanted_entries', entries), 'entries')}"
    return [Line(quantity=DOWNLOAD, value=value, reason=reason)]


def with_margin(plan: Plan, margin: float) -> Plan:
    """The plan with `margin` times as much text to download."""
    if margin < 1:
        raise PlanError(f"--margin {margin:g}: must be at least 1; 1.25 is a quarter more than needed")
    if plan.wanted_entries is None or plan.wanted_gigabytes is None:
        raise PlanError(f"--margin {margin:g}: this plan has no text to download")
    more = {name: (low * margin, high * margin) for name, (low, high) in plan.intervals.items() if "wanted" in name}
    wider = replace(
        plan,
        wanted_entries=math.ceil(plan.wanted_entries * margin),
        wanted_gigabytes=plan.wanted_gigabytes * margin,
        intervals=plan.intervals | more,
    )
    (line,) = download_lines(wider, margin)
    return replace(wider, lines=tuple(line if old.quantity == DOWNLOAD else old for old in plan.lines))


def repetition_lines(epochs: float | None, full: float = 1.0) -> list[Line]:
    """A note where text is read so often that more of it would serve better; `full` epochs predict every token once."""
    if epochs is None or epochs / full <= USEFUL_EPOCHS:
        return []
    reason = (
        f"after about {USEFUL_EPOCHS * full:g} epochs repeated text teaches little; get more text, or train for less"
    )
    return [
        Line(
            quantity=REPETITION,
            value=f"{epochs:,.0f} epochs" if epochs >= 100 else with_name(f"{epochs:.3g}", "epochs"),
            reason=reason,
        )
    ]


def _predictions(recipe: Recipe, plan: Plan) -> tuple[str, str]:
    """The tokens that contribute to the loss, and why they are not all positions."""
    if plan.predictions is None:
        return "unknown", "what contributes to the loss; known when the rows are packed"
    share = f"{plan.predictions / (plan.tokens or 1):.1%} of the positions"
    if plan.predictions == plan.tokens:
        return Count(plan.predictions).short(), "every position; this is the D of a scaling law"
    family = family_of(recipe.model)
    if recipe.data.label is not None:
        why = "the class of each row"
    elif recipe.data.pair is not None:
        why = "completions, and not their prompts"
    elif family.predicts_hidden(recipe.model):
        why = "the hidden tokens" + (", and padding has none" if recipe.data.packing == "pad" else "")
    elif family.last_predictions(recipe.model) is not None:
        why = "the latents"
    else:
        why = "not of padding" if recipe.data.packing == "pad" else "not across documents"
    return Count(plan.predictions).short(), f"{share}: {why}; this is the D of a scaling law"


def _saved_line(train: Train, steps: int) -> list[tuple[str, str, str]]:
    """The steps whose checkpoints are all kept, and those that the run does not reach."""
    if train.save_every is None and train.save_steps is None:
        return []
    given = {"save_every": train.save_every, "save_steps": train.save_steps}
    reason = " and ".join(f"train.{name} = {value}" for name, value in given.items() if value is not None)
    named = [] if train.save_steps is None else train.save_steps.given
    beyond = [f"{step:,}" for step in (*named, train.save_every or 0) if step > steps]
    reason += f"; beyond the {counted(steps, 'step')} of the run: {', '.join(beyond)}" if beyond else ""
    return [("kept steps", f"{train.saved_count(steps):,}", reason)]


def _growth_lines(recipe: Recipe) -> list[tuple[str, str, str]]:
    """How far the batch may grow."""
    if recipe.train.grow is None:
        return []
    most = counted(recipe.batch << recipe.train.grow, "row")
    reason = (
        "train.grow: updates take the rows of several steps where the gradient noise is larger; steps stay as planned"
    )
    return [("updates", f"up to {most}", reason)]


def _sharing_lines(recipe: Recipe, workers: int, weights: int) -> list[tuple[str, str, str]]:
    """What each of several workers sends, and when."""
    if workers == 1 or recipe.parallel is None or recipe.parallel.shard:
        return []
    parallel, gradients = recipe.parallel, 4 * weights
    if parallel.shares == "async":
        return [("sent", "nothing", "parallel.strategy: the workers share memory, and nobody waits for another")]
    if parallel.shares == "sync":
        why = "the gradients of each worker; all wait for the slowest"
        return [("sent", f"{Bytes(gradients).short()} per step", why)]
    bits = parallel.difference_bits or 32
    average = difference_bytes(weights, bits)
    share = average / parallel.every / gradients
    reason = f"parallel.sync_every, {bits} bits per number: {share:.2%} of what gradients in every step would be"
    return [("sent", f"{Bytes(round(average)).short()} per {counted(parallel.every, 'step')}", reason)]


def devices_note(devices: int, profile: Profile) -> list[str]:
    """A note where the profile was measured with another number of devices than `devices`."""
    if devices == profile.devices:
        return []
    return [
        f"{profile.how} on {profile.devices}, planned for {devices}: the rows of a step are divided, and an update "
        f"takes as long; communication is not counted"
    ]


def _corpus_lines(recipe: Recipe, corpus: Corpus, plan: Plan, density: Density | None) -> list[tuple[str, str, str]]:
    read = counted((plan.steps or 0) * recipe.batch, "row")
    if corpus.rows is None:
        stored = Bytes(_STORED_TOKEN * (plan.tokens or 0)).short()
        return [
            ("rows", "no end", corpus.reason),
            ("epochs", "less than 1", f"{read}, each read once"),
            ("stored rows", "none", f"a token store would take {stored}, at {_STORED_TOKEN} bytes per token"),
        ]
    epochs = ("epochs", *epochs_read(recipe, plan, corpus.rows))
    if corpus.documents is None or corpus.tokens_per_document is None:
        return [("rows", Count(corpus.rows).short(), corpus.reason), epochs]
    text_bytes = corpus.text_bytes or 0.0
    per_document = f"{Bytes(round(text_bytes / corpus.documents)).short()} per document, {_counted_from(density)}"
    own = ", which has rows of its own" if recipe.data.packing == "pad" else ""
    return [
        ("documents", shown(plan, "entries", corpus.documents), corpus.reason),
        ("text", shown(plan, "gigabytes", text_bytes / 1e9), per_document),
        ("rows", show_count(corpus.rows), f"for training, {corpus.tokens_per_document:.0f} tokens per document{own}"),
        epochs,
    ]


def _counted_from(density: Density | None) -> str:
    """How much of a corpus its density was counted from."""
    if density is not None and density.tokens_per_gb_error == 0:
        return "all counted"
    if density is not None and density.tokens_per_gb_error is None:
        return f"from its first {counted(density.documents, 'entry', 'entries')}, unverified"
    return "from a sample"


def epochs_read(recipe: Recipe, plan: Plan, rows: int) -> tuple[str, str]:
    """How often a plan reads its rows, and how many these are."""
    return f"{plan.epochs or 0:.2f}", f"{counted(plan.samples or 0, 'row')} read of {rows:,}{_latents(recipe)}"


def _latents(recipe: Recipe) -> str:
    """A note where only the latents of a row are predicted."""
    latents, length = family_of(recipe.model).last_predictions(recipe.model), recipe.data.length
    if latents is None:
        return ""
    share = f"; {latents} of {length} tokens of a row are predicted"
    if not recipe.data.random_offset:
        return f"{share}, the same every epoch; data.random_offset moves them"
    return f"{share}, others every epoch: {math.ceil(full_passes(recipe))} epochs for each token once on average"


def parts_reason(parts: dict[str, float]) -> str:
    """The parts of a run's seconds, without those below 0.05 s."""
    return " + ".join(f"{Seconds(seconds).short()} {name}" for name, seconds in parts.items() if seconds >= 0.05)


def _show_gigabytes(value: float) -> str:
    return show_bytes(value * 1e9)


_PRINTERS = {"seconds": show_seconds, "entries": show_count, "gigabytes": _show_gigabytes}
_PRINTERS |= {"wanted_entries": show_count, "wanted_gigabytes": _show_gigabytes}


def shown(plan: Plan, name: str, value: float) -> str:
    """A number of the plan with its interval, where it has one."""
    low, high = plan.intervals.get(name, (value, value))
    return Interval(low, value, high).show(_PRINTERS[name])


def _memory_reason(recipe: Recipe, profile: Profile, split: Split) -> str:
    how = f"{profile.how} peak" if is_measured(profile, split.point) else f"computed from {profile.how} peaks"
    if recipe.budget.memory is not None:
        return f"{how}; budget.memory = {recipe.budget.memory}"
    free = "unknown" if profile.available_bytes is None else Bytes(profile.available_bytes).short()
    return f"{how}; {free} were free"


class Optimum(NamedTuple):
    """The model with the least loss for the computation of a plan, by a law."""

    parameters: Interval
    tokens: float
    source: str
    """What the law was fitted to."""
    notes: tuple[str, ...] = ()
    """How far parameters, tokens and computation are outside the law's data."""


def law_lines(optimum: Optimum, plan: Plan, parameters: float) -> list[Line]:
    """Whether a model of `parameters`, counted as the law counts them, is near the optimum for this plan."""
    budget = "this computation" if plan.flops is None else Flops(plan.flops).short()
    notes = "".join(f"; {note}" for note in optimum.notes)
    reason = f"for {budget}, with {show_count(optimum.tokens)} tokens, by {optimum.source}{notes}"
    ratio = parameters / optimum.parameters.expected
    if ratio > _NEAR:
        advice = f"too large by {ratio:.3g}: a smaller model would see more tokens and end lower"
    elif ratio < 1 / _NEAR:
        advice = f"too small by {1 / ratio:.3g}: a larger model would end lower for the same computation"
    else:
        advice = f"near the optimum: {ratio:.3g} of it"
    return [
        Line(quantity="best model", value=optimum.parameters.show(show_count), reason=reason),
        Line(quantity="this model", value=show_count(parameters), reason=advice),
    ]
