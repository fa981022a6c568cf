"""Estimate: the profile and the plan of a recipe on a card that nobody measured, from counted FLOPs and bytes."""

from __future__ import annotations

import difflib
from dataclasses import replace
from pathlib import Path

from shoestring.core.errors import UserError
from shoestring.core.facts import Density, Line, Machine, Plan, Point, Profile
from shoestring.core.files import free_bytes
from shoestring.core.recipe import Recipe
from shoestring.core.units import Bytes, Interval, Seconds
from shoestring.cost.cards import CARDS, Card, find_card
from shoestring.cost.memory import estimate_memory
from shoestring.cost.networks import network_cost
from shoestring.cost.seconds import UTILISATION, Range, estimate_seconds
from shoestring.data.sizes import estimate_bytes
from shoestring.plan.corpus import Ready
from shoestring.plan.make import make_plan
from shoestring.plan.split import MEMORY_SHARE, divisors_of
from shoestring.stages.isoflop import full_passes
from shoestring.stages.plan import ready_rows

DRIVER_SHARE = 0.03
"""Of a card's memory, that a program does not see."""
SETUP_SECONDS = 90.0
"""From the start of a process to the first full-speed step; assumed: it is mostly torch's compiler."""
WRITTEN_BYTES_PER_SECOND = 1e9
"""Of a checkpoint; assumed."""
STATE_BYTES = 12
"""Of a parameter in a checkpoint: the weight and two moments."""


def known_card(name: str) -> Card:
    """The card of that name; raises UserError with the nearest names."""
    found = find_card(name)
    if found is None:
        close = difflib.get_close_matches(name, CARDS, n=3, cutoff=0.4) or sorted(CARDS)
        raise UserError(f'--card "{name}": unknown; known ones are for example {", ".join(close)}')
    return found


def pass_seconds(recipe: Recipe, vocabulary: int, card: str, rows: int) -> Range:
    """Seconds of a forward and backward pass over so many rows, as an estimate."""
    known_card(card)
    found = estimate_seconds(recipe, vocabulary, card, rows)
    if found is None:
        reason = "train.precision = fp32" if recipe.train.precision == "fp32" else "it has no products in bf16"
        raise UserError(f'--card "{card}": its time cannot be estimated ({reason}); measure there: shoestring measure')
    return found


def estimate_profile(recipe: Recipe, vocabulary: int, card: str, density: Density | None = None) -> Profile:
    """What a card would do with a recipe's training, by arithmetic; `stopped` says that nothing was measured.

    It has a point for every divisor of the effective batch that fits the card, so that a plan for several devices, or
    for less memory, finds its own. Seconds are proportional to rows here: no batch is faster than another.
    """
    memory = estimate_memory(recipe, vocabulary, "cuda")
    visible = int(known_card(card).memory_bytes * (1 - DRIVER_SHARE))
    fitting = [rows for rows in divisors_of(recipe.batch) if memory.device_bytes(rows) <= MEMORY_SHARE * visible]
    least = recipe.train.per_device or 1
    if least not in fitting:
        raise UserError(
            f'--card "{card}": {least} rows at a time would need {Bytes(memory.device_bytes(least)).short()} of its '
            f'{Bytes(visible).short()}; take a smaller model or data.length, or train.recompute = "full"'
        )
    row = pass_seconds(recipe, vocabulary, card, 1)
    cost = network_cost(recipe.model, vocabulary, recipe.data.length, recipe.data.masked)
    saved = cost.total_parameters * (STATE_BYTES + (0 if recipe.train.ema is None else 4))
    return Profile(
        machine=Machine(
            device="cuda",
            device_name=card,
            threads=1,
            memory_bytes=known_card(card).memory_bytes,
            system="unknown",
            python="unknown",
            versions={},
        ),
        workload=recipe.workload,
        length=recipe.data.length,
        points=tuple(
            Point(
                batch=rows,
                seconds=rows * row.expected,
                slowest_seconds=rows * row.high,
                fastest_seconds=rows * row.low,
                peak_bytes=memory.device_bytes(rows),
            )
            for rows in fitting
        ),
        setup_seconds=SETUP_SECONDS,
        update_seconds=0.0,  # the share of the peak that was reached is that of whole steps
        validate_seconds_per_row=row.expected / 3,  # a forward pass alone
        checkpoint_seconds=saved / WRITTEN_BYTES_PER_SECOND,
        checkpoint_bytes=saved,
        available_bytes=visible,
        stopped=f"nothing was measured: estimated for {card} at {_utilisation()} of its bf16 peak",
        cost=cost,
        density=density,
        estimated=True,
    )


def _utilisation() -> str:
    return f"{UTILISATION.expected:.0%} ({UTILISATION.low:.0%} to {UTILISATION.high:.0%})"


def plan_on_card(recipe: Recipe, vocabulary: int, card: str, devices: int = 1) -> Plan:
    """The plan of a recipe on a card by name, every line of it an estimate.

    A hub data set is not looked at, so the plan says nothing about preparing it, nor about epochs.
    """
    if recipe.hmm is not None:
        raise UserError("--card: is for networks; an HMM is measured with: shoestring measure RECIPE")
    ready, density = ready_rows(recipe), None
    if ready is None and recipe.data.source.startswith("hf:"):
        ready = Ready(None, 0, "not looked at: a hub data set; preparing it is not in this plan")
    elif ready is None:
        from shoestring.data.density import estimate_density
        from shoestring.data.sources import open_source

        density = estimate_density(open_source(recipe.data, recipe.run.seed), recipe.data, recipe.run.seed)
    profile = estimate_profile(recipe, vocabulary, card, density)

    def store_bytes(tokens: float, documents: float) -> int:
        return estimate_bytes(tokens, documents, recipe.data)

    plan = make_plan(recipe, profile, store_bytes, 0.0, free_bytes(Path(recipe.run.folder)), ready, devices)
    return _as_estimate(
        recipe, plan, profile, looked_at=density is not None or not recipe.data.source.startswith("hf:")
    )


def _as_estimate(recipe: Recipe, plan: Plan, profile: Profile, looked_at: bool) -> Plan:
    """The plan with the range of the estimate in place of a spread that was measured, and lines that say so."""
    point = profile.points[0]
    assert plan.seconds is not None and point.fastest_seconds is not None
    train, fixed = plan.parts["train"], plan.seconds - plan.parts["train"]
    ends = tuple(fixed + train * bound / point.seconds for bound in (point.fastest_seconds, point.slowest_seconds))
    seconds = Interval(ends[0], plan.seconds, ends[1]).show(lambda value: Seconds(value).short())
    unknown = () if looked_at else ("rows", "epochs", "stored rows")
    lines = [Line(quantity="card", value=profile.machine.device_name, reason=profile.stopped)]
    for line in plan.lines:
        if line.quantity == "seconds":
            lines.append(replace(line, value=seconds))
        elif line.quantity not in unknown:
            lines.append(line)
    if not looked_at:
        reading = (
            f"{full_passes(recipe):g} epochs are one reading of it" if full_passes(recipe) > 1 else "not looked at"
        )
        lines.append(Line(quantity="corpus", value="unknown", reason=f"a hub data set; {reading}"))
    return replace(plan, lines=tuple(lines), intervals=plan.intervals | {"seconds": (ends[0], ends[1])})
