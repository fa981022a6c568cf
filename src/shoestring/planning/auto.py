"""The values of fields that are "auto": from published laws and our own, each with its rule, source and constants.

All functions are pure. `rates` chooses learning rates, and `regularisation` what depends on how often a text is read.
N is parameters without embeddings, D positions of training, B positions of a step, U positions of the training text
that are not repeated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from shoestring.core.choices import SHAPE, Choice, Choices
from shoestring.core.errors import PlanError
from shoestring.core.family import family_of, is_compiled, network_cost
from shoestring.core.recipe import Recipe
from shoestring.core.records import Cost
from shoestring.core.sections import MOST_ROWS, Model, number
from shoestring.core.warmup import least_steps
from shoestring.cost.seconds import update_seconds
from shoestring.planning.earlier import Tried
from shoestring.planning.make import REPORT_SECONDS, reserve_seconds
from shoestring.planning.rates import (
    BATCH_FACTOR,
    STEP_BATCH,
    STEP_BATCH_D,
    WITH_LAW,
    Chosen,
    best_lr,
    corrected_lr,
    law_batch,
    short,
)
from shoestring.planning.regularisation import (
    MOST_OF_VOCABULARY,
    RATES,
    best_cooldown,
    best_decay,
    best_dropout,
    best_pairs,
    best_pointer,
    best_vocabulary_dropout,
    useful_epochs,
)

HALF_LIFE = 500_000
"""Positions after which the mean squared gradient has forgotten half of a step."""
MOST_BETA2, LEAST_BETA2 = 0.999, 0.95
WARMUP = 0.05

LAW_A, LAW_B, LAW_EXPONENT = 521.0, 1488.0, 0.353
REPEAT_D, REPEAT_N = 15.4, 5.3
"""Data-constrained law (Muennighoff et al. 2023): loss terms A / N^e and B / D^e, and how fast repeated text and
parameters beyond what the text supports lose their value."""
ASPECT, CHANNELS = 64, 64
"""Width per layer and channels per head of a network whose size is chosen, as in nanochat."""
LEAST_WIDTH, MOST_WIDTH = 32, 4096
"""With little text a network of 32 × 2 beats one of 64 × 2: 1.57 and 1.71 with 65,536 positions and 4e11 FLOPs, where
with new text 64 × 2 has 1.52 and 32 × 2 1.54 (results/regret-cpu.json, results/log.md)."""
STEP_OVERHEAD = 0.003
"""Seconds of a step on a GPU that a larger batch does not lengthen: launches, the update."""
SETUP_SECONDS = {("cpu", False): 4.0, ("cpu", True): 40.0, ("cuda", False): 6.0, ("cuda", True): 15.0}
"""From the command to steps at full speed, by device and whether layers are compiled."""
TRAIN_SHARE = 0.85
"""Of the time, what steps take; the rest evaluates, saves and reports."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of a run before anything is chosen."""

    vocabulary: int
    unique: float | None
    """Positions of the training text; None: as many as the run reads."""
    device: str
    """"cpu" or "cuda"."""
    speed: float | None
    """FLOPs per second of whole passes on one device; None: not needed, or unknown."""
    devices: int = 1
    tried: tuple[Tried, ...] = ()
    """Finished runs of this kind beside it."""


def choose(recipe: Recipe, facts: Facts) -> Choices:
    """A choice for every field of the recipe that is "auto"."""
    wanted, found, regularised = recipe.autos, list[Choice](), regularises(recipe)
    if recipe.budget.epochs == "auto" and facts.unique is None:
        raise PlanError('budget.epochs = "auto": the corpus has no end, so an epoch has no length; leave it out')
    written = recipe.fingerprint

    def take(field: str, chosen: Chosen) -> Recipe:
        found.append(Choice(field=field, value=chosen.value, reason=chosen.reason))
        return with_value(recipe, field, chosen.value)

    for name in ("model.pairs", "model.pointer"):  # which change neither N nor FLOPs, or hardly
        if name in wanted:
            recipe = with_value(recipe, name, 0)
    if "model.size" in wanted:
        model, reason = best_size(recipe, facts)
        reasons = (reason, f"width / {ASPECT}, at least 2", f"{model.width // model.heads} channels each")
        for field, why in zip(SHAPE, reasons, strict=True):
            found.append(Choice(field=field, value=getattr(model, field.partition(".")[2]), reason=why))
        recipe = replace(recipe, model=model)
    for name in RATES:  # they change no count of parameters
        if name in wanted:
            recipe = with_value(recipe, name, 0.0)
    cost = _cost(recipe, facts)
    n = without_embedding(cost)
    if "budget.epochs" in wanted and facts.unique is not None:
        recipe = take("budget.epochs", useful_epochs(n, facts.unique, regularised))
    d = positions(recipe, facts, cost)
    if "train.batch" in wanted:
        recipe = take("train.batch", best_batch(recipe, facts, cost, d))
    b = float(recipe.batch * recipe.data.length)
    steps = max(1.0, d / b)
    epochs = None if facts.unique is None else d / facts.unique
    if "train.lr" in wanted:
        if recipe.train.optimizer not in WITH_LAW:
            raise PlanError(
                f"train.lr: missing; the laws are for {' and '.join(WITH_LAW)}, and train.optimizer = "
                f'"{recipe.train.optimizer}" needs a number'
            )
        family = family_of(recipe.model)
        trained = family.begins_trained(recipe.model)
        law = best_lr(n, d, b, recipe.train.optimizer, trained, family)
        recipe = take("train.lr", corrected_lr(law, facts.tried, n, d))
    if "train.warmup" in wanted:
        recipe = take("train.warmup", best_warmup(least_steps(recipe)))
    if "train.beta2" in wanted:
        recipe = take("train.beta2", best_beta2(b))
    if "train.weight_decay" in wanted:
        recipe = take("train.weight_decay", best_decay(n, d, steps, number(recipe.train.lr), facts.unique))
    if "model.dropout" in wanted:
        recipe = take("model.dropout", best_dropout(n, facts.unique, epochs))
    rate, table = number(recipe.model.dropout), float(facts.vocabulary * recipe.model.width)
    often = epochs if recipe.train.optimizer == "muon" else None
    for name, most in zip(RATES[1:], MOST_OF_VOCABULARY, strict=True):
        if name in wanted:
            recipe = take(name, best_vocabulary_dropout(most, rate, table, facts.unique, often))
    if "train.cooldown" in wanted:
        drops_tokens = bool(recipe.model.output_dropout and recipe.model.word_dropout)
        recipe = take("train.cooldown", best_cooldown(epochs, drops_tokens))
    if "model.pairs" in wanted:
        recipe = take("model.pairs", best_pairs(facts.vocabulary, epochs))
    if "model.pointer" in wanted:
        recipe = take("model.pointer", best_pointer(table, facts.unique))
    return Choices(recipe=written, chosen=tuple(found))


def with_value(recipe: Recipe, field: str, value: Any) -> Recipe:
    """The recipe with another value of "section.field"."""
    section, _, name = field.partition(".")
    return replace(recipe, **{section: replace(getattr(recipe, section), **{name: value})})


def positions(recipe: Recipe, facts: Facts, cost: Cost) -> float:
    """D: the positions that the tightest budget allows, before any plan."""
    budget, allowed = recipe.budget, list[float]()
    if budget.tokens is not None:
        allowed.append(float(int(budget.tokens)))
    if budget.steps is not None:
        allowed.append(float(int(budget.steps)) * recipe.batch * recipe.data.length)
    if budget.flops is not None:
        allowed.append(float(budget.flops) / cost.train_flops_per_token)
    if isinstance(budget.epochs, float) and facts.unique is not None:
        allowed.append(budget.epochs * facts.unique)
    if budget.time is not None and facts.speed is not None:
        time = float(budget.time)
        left = (
            time
            - SETUP_SECONDS[facts.device, is_compiled(recipe, facts.device)]
            - reserve_seconds(time)
            - REPORT_SECONDS
        )
        allowed.append(_in_seconds(recipe, facts, cost, TRAIN_SHARE * max(0.05 * time, left)))
    if not allowed:
        raise PlanError('"auto": the budget says nothing about the tokens of this run; give budget.tokens')
    return max(min(allowed), 1.0)


def _in_seconds(recipe: Recipe, facts: Facts, cost: Cost, seconds: float) -> float:
    """The positions of so many seconds of steps, each of which takes a time besides its passes."""
    each, besides = _step_seconds(recipe, facts, cost)
    d = seconds / each
    for _ in range(_ROUNDS):
        b = (
            _cpu_batch(d, besides / each).positions
            if "train.batch" in recipe.autos
            else float(recipe.batch * recipe.data.length)
        )
        d = seconds / (each + besides / max(b, recipe.data.length))
    return d


def _step_seconds(recipe: Recipe, facts: Facts, cost: Cost) -> tuple[float, float]:
    """Seconds of a step on a CPU for each position, and besides; on a GPU the latter is hidden by the batch."""
    speed = pass_speed(recipe.model, facts)
    each = cost.train_flops_per_token / speed
    if facts.device != "cpu":
        return each, 0.0
    return each, update_seconds(recipe, cost, cost.total_parameters, facts.device, speed)


_ROUNDS = 4
"""In which the batch and the positions of a run settle."""
FULL_WIDTH, WIDTH_POWER = {"cpu": 256, "cuda": 1024}, {"cpu": 0.55, "cuda": 1.0}
"""The width from which on passes reach the speed of large products, and how it falls below: on one core 17.6, 43.9 and
123 s per million positions of 32 × 2, 64 × 2 and 128 × 3, and on another 0.15, 0.24, 0.35, 0.42 and 0.52 of a large
product with 32, 64, 128, 192 and 256 channels; on an H200 3.6 M positions per second of 256 × 6."""


def pass_speed(model: Model, facts: Facts) -> float:
    """FLOPs per second of whole passes of this network on all devices."""
    assert facts.speed is not None, "it was asked for"
    return facts.speed * facts.devices * width_share(model, facts.device)


def width_share(model: Model, device: str) -> float:
    """Of the speed of large products, what passes of this width reach."""
    if "width" not in family_of(model).fields:
        return 1.0
    return float(min(1.0, (model.width / FULL_WIDTH[device]) ** WIDTH_POWER[device]))


def sizes(model: Model) -> Iterable[Model]:
    """Networks of one ratio of width and layers, the smallest first."""
    width = LEAST_WIDTH
    while width <= MOST_WIDTH:
        channels = CHANNELS if width >= 4 * CHANNELS else CHANNELS // 2
        yield replace(model, size=None, width=width, layers=max(2, width // ASPECT), heads=width // channels)
        width += 32 if width < 256 else 64 if width < 1024 else 128


def best_size(recipe: Recipe, facts: Facts) -> tuple[Model, str]:
    """The network with the least loss by the data-constrained law, for what the budget lets each of them read."""
    least: tuple[float, Model, float, float] | None = None
    regularised = regularises(recipe)
    dropped = 0.0 if recipe.model.dropout == "auto" else recipe.model.dropout
    repeated: tuple[Model, float, float] | None = None
    reads = 0.0
    for model in sizes(replace(recipe.model, dropout=dropped)):
        cost = _cost(replace(recipe, model=model), facts)
        n = without_embedding(cost)
        budget = recipe.budget if recipe.budget.epochs != "auto" else replace(recipe.budget, epochs=None)
        d = positions(replace(recipe, budget=budget, model=model), facts, cost)
        reads = reads or d / (facts.unique or math.inf)  # of the smallest
        if reads >= REPEATS and d < (facts.unique or 0.0):
            continue  # the law knows no text that is so little
        if regularised and facts.unique is not None and is_repeated(n, d, facts.unique):
            repeated = model, n, d
        if recipe.budget.epochs == "auto" and facts.unique is not None:
            d = min(d, useful_epochs(n, facts.unique).value * facts.unique)
        loss = constrained_loss(n, d, facts.unique)
        if least is None or loss < least[0]:
            least = loss, model, n, d
    assert least is not None, "there are sizes"
    _, model, n, d = least
    if repeated is not None and facts.unique is not None and repeated[1] > n:
        model, n, d = repeated
        return model, (
            f"N = {short(n)} can read the text {d / facts.unique:.3g} times in the budget: the largest that can "
            f"read it {REPEATS:g} times and has at most {PER_POSITION:g} parameters for each of its "
            f"{short(facts.unique)} positions, with dropout so that it is not learned by heart (results/log.md)"
        )
    text = "each read once" if facts.unique is None or facts.unique >= d else f"{d / facts.unique:.3g} epochs"
    return model, (
        f"N = {short(n)} reads D = {short(d)} ({text}) in the budget: the least {LAW_A:g} N^-{LAW_EXPONENT} + "
        f"{LAW_B:g} D^-{LAW_EXPONENT}, with repeats worth less (Muennighoff et al. 2023)"
    )


def constrained_loss(n: float, d: float, unique: float | None) -> float:
    """The loss above its limit, by the law: N parameters read D positions, and U of those are unique."""
    text = d if unique is None else min(d, unique)
    supported = (LAW_A / LAW_B) ** (1 / LAW_EXPONENT) * text  # parameters that the unique text supports
    used = min(n, supported) if d > text else n
    d_worth = text + text * REPEAT_D * (1 - math.exp(-(d / text - 1) / REPEAT_D))
    n_worth = used + used * REPEAT_N * (1 - math.exp(-(n / used - 1) / REPEAT_N))
    return float(LAW_A * n_worth**-LAW_EXPONENT + LAW_B * d_worth**-LAW_EXPONENT)


REPEATS, PER_POSITION = 16.0, 12.0
"""A text that is read so often makes a larger network worth it than the data-constrained law says, which was fitted
without dropout. With 1.9 M pieces of stories on an H200, 192 × 3 without dropout has 0.550 nats per byte after 17
epochs, 320 × 5 with 0.1 0.510, and 512 × 8 with 0.3, 12 parameters for each position, 0.506 after 32."""


def is_repeated(n: float, d: float, unique: float) -> bool:
    """Whether N parameters read a text so often, and are not too many for it."""
    return d >= REPEATS * unique and n <= PER_POSITION * unique


def regularises(recipe: Recipe) -> bool:
    """Whether a network may have dropout."""
    return recipe.model.dropout == "auto" or recipe.model.dropout > 0


def best_batch(recipe: Recipe, facts: Facts, cost: Cost, d: float) -> Chosen:
    """Rows of a step: by a law of D, at least what fills the device, and such that they divide over the devices."""
    length, law, fewest = recipe.data.length, law_batch(d), d / FEWEST_STEPS
    reason = f"{STEP_BATCH * BATCH_FACTOR:.3g} D^{STEP_BATCH_D} positions, D = {short(d)}: Step Law × {BATCH_FACTOR}"
    wanted, more = law, ""
    if facts.speed is not None and recipe.budget.time is not None:
        each, besides = _step_seconds(recipe, facts, cost)
        if facts.device == "cpu":
            filled = _cpu_batch(d, besides / each)
            fewest, more = filled.positions, filled.reason
        elif STEP_OVERHEAD / each > law:
            wanted = min(STEP_OVERHEAD / each, 4 * law)
            reason = f"fills the device, at most 4 times the law of {short(law)}: {reason}"
    text = math.inf if facts.unique is None else facts.unique / FEWEST_PER_EPOCH
    rows = min(wanted, fewest, text) / length / facts.devices
    if fewest < wanted and fewest <= text:
        reason += more or _AT_LEAST
    elif text < wanted:
        reason += f", but about {FEWEST_PER_EPOCH} steps per epoch at least"
    per_device = 1 << max(0, round(math.log2(max(1.0, rows))))
    return Chosen(min(MOST_ROWS, per_device * facts.devices), f"{reason}; a power of 2 per device")


class _Step(NamedTuple):
    positions: float
    reason: str
    """Why they are fewer than the law's."""


def _cpu_batch(d: float, besides: float) -> _Step:
    """The step that begins with as long as so many positions `besides` take: of as many positions as the law has or,
    for `FEWEST_STEPS`, fewer; but of a short run rather larger, up to where time would be lost to it."""
    law = law_batch(d)
    filled = min(law, math.sqrt(law * besides), d / FEWEST_FILLED_STEPS)
    if filled <= d / FEWEST_STEPS:
        return _Step(min(law, d / FEWEST_STEPS), _AT_LEAST)
    return _Step(
        filled,
        f", but at least {FEWEST_FILLED_STEPS} steps, and fewer than {FEWEST_STEPS:,} as each begins with as long as "
        f"{short(besides)} positions take",
    )


FEWEST_PER_EPOCH = 32
FEWEST_STEPS = 1000
"""A run has about as many, whatever its batch should be: with 122 steps of 4,096 positions a network of 27 k parameters
stayed at the loss of the unigram, 3.05, and with 488 steps of 1,024 it reached 2.04."""


_AT_LEAST = f", but about {FEWEST_STEPS:,} steps at least"

FEWEST_FILLED_STEPS = 250
"""Of a run on a CPU whose steps take longer than their positions."""


def best_warmup(least: int) -> Chosen:
    """The warm-up as a share of the steps; its floor in steps is the schedule's."""
    return Chosen(WARMUP, f"{WARMUP:.0%} of the steps, and at least {least}, as the family needs")


def best_beta2(b: float) -> Chosen:
    """The decay of the mean squared gradient."""
    found = min(MOST_BETA2, max(LEAST_BETA2, 0.5 ** (b / HALF_LIFE)))
    return Chosen(
        float(f"{found:.4g}"),
        f"half-life of {short(HALF_LIFE)} positions, {LEAST_BETA2:g} to {MOST_BETA2:g}; {short(b)} per step",
    )


def without_embedding(cost: Cost) -> float:
    """N."""
    return float(cost.total_parameters - cost.parameters.get("embedding", 0))


def _cost(recipe: Recipe, facts: Facts) -> Cost:
    return network_cost(recipe.model, facts.vocabulary, recipe.data.length, recipe.data.masked)
