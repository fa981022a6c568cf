"""Estimate: the profile and the plan of a recipe on a GPU that was not measured, from counted FLOPs and bytes."""

from __future__ import annotations

import difflib
from dataclasses import replace

from shoestring.core.errors import UserError
from shoestring.core.family import learned_of, network_cost
from shoestring.core.recipe import Recipe
from shoestring.core.records import Cost, Density, Line, Machine, Plan, Point, Profile
from shoestring.core.units import Bytes, Interval, Seconds
from shoestring.cost.gpus import GPUS, Gpu, find_gpu
from shoestring.cost.memory import estimate_memory
from shoestring.cost.seconds import UTILISATION, estimate_seconds, precision_on
from shoestring.planning.auto import Facts, choose
from shoestring.planning.corpus import Ready, full_passes
from shoestring.planning.history import NO_HISTORY
from shoestring.planning.split import MEMORY_SHARE, divisors_of
from shoestring.runs.network_task import plan_network
from shoestring.runs.prepare import ready_rows, specials_per_row
from shoestring.runs.settle import speed_of_gpu, unique_positions

DRIVER_SHARE = 0.03
"""Share of a GPU's memory that programs cannot use."""
SETUP_SECONDS = 25.0
"""From the start of a process to the first full-speed step: on an H200 with empty caches 10 to 20 s of four recipes
(results/start-h200.json)."""
WRITTEN_BYTES_PER_SECOND = 1e9
"""For a checkpoint; assumed."""
STATE_BYTES = 12
"""Per parameter in a checkpoint: the weight and two moments."""


def saved_bytes(recipe: Recipe, cost: Cost, vocabulary: int) -> int:
    """Bytes of a checkpoint, by its parameters: all weights, and the state of those that are learned."""
    tuned = learned_of(recipe, vocabulary)
    learned, whole = (cost.total_parameters,) * 2 if tuned is None else (tuned.learned, tuned.all)
    return 4 * (whole - learned) + learned * (STATE_BYTES + (0 if recipe.train.ema is None else 4))


def known_gpu(name: str) -> Gpu:
    """The GPU of that name; raises UserError with the nearest names."""
    gpu = find_gpu(name)
    if gpu is None:
        close = difflib.get_close_matches(name, GPUS, n=3, cutoff=0.4) or sorted(GPUS)
        raise UserError(f'--gpu "{name}": unknown; known ones are for example {", ".join(close)}')
    return gpu


def pass_seconds(recipe: Recipe, vocabulary: int, gpu: str, rows: int) -> Interval:
    """Estimated seconds of a forward and backward pass over so many rows."""
    known_gpu(gpu)
    seconds = estimate_seconds(recipe, vocabulary, gpu, rows)
    if seconds is None:
        reason = f"its peak in {precision_on(recipe, gpu)} is not known"
        raise UserError(f'--gpu "{gpu}": its time cannot be estimated ({reason}); measure there: shoestring measure')
    return seconds


def estimate_profile(recipe: Recipe, vocabulary: int, gpu: str, density: Density | None = None) -> Profile:
    """The profile of a recipe's training on a GPU, by arithmetic; `stopped` says that nothing was measured.

    It has a point for every divisor of the effective batch that fits the GPU, for plans of several devices or less
    memory. Seconds are proportional to rows: no batch is faster than another.
    """
    memory = estimate_memory(recipe, vocabulary, "cuda")
    visible = int(known_gpu(gpu).memory_bytes * (1 - DRIVER_SHARE))
    fitting = [rows for rows in divisors_of(recipe.batch) if memory.device_bytes(rows) <= MEMORY_SHARE * visible]
    least = recipe.train.per_device or 1
    if least not in fitting:
        raise UserError(
            f'--gpu "{gpu}": a micro-batch of {least} would need {Bytes(memory.device_bytes(least)).short()} of its '
            f'{Bytes(visible).short()}; use a smaller model or data.length, or train.recompute = "full"'
        )
    row = pass_seconds(recipe, vocabulary, gpu, 1)
    cost = network_cost(recipe.model, vocabulary, recipe.data.length, recipe.data.masked)
    saved = saved_bytes(recipe, cost, vocabulary)
    share = f"{UTILISATION.expected:.0%} ({UTILISATION.low:.0%} to {UTILISATION.high:.0%})"
    size, unknown = known_gpu(gpu).memory_bytes, {"system": "unknown", "python": "unknown"}
    return Profile(
        machine=Machine(device="cuda", device_name=gpu, threads=1, memory_bytes=size, versions={}, **unknown),
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
        update_seconds=0.0,  # the utilisation is that of whole steps
        validate_seconds_per_row=row.expected / 3,  # a forward pass alone
        checkpoint_seconds=saved / WRITTEN_BYTES_PER_SECOND,
        checkpoint_bytes=saved,
        available_bytes=visible,
        stopped=f"nothing was measured: estimated for {gpu} at {share} of its {precision_on(recipe, gpu)} peak",
        cost=cost,
        density=density,
        estimated=True,
    )


def plan_on_gpu(recipe: Recipe, vocabulary: int, gpu: str, devices: int = 1) -> Plan:
    """The plan of a recipe on a GPU by name; every line is an estimate.

    A hub data set is not read, so the plan says nothing about preparing it, nor about epochs.
    """
    recipe.need_network("--gpu: is for networks; an HMM is measured with: shoestring measure RECIPE")
    ready, density, hub = ready_rows(recipe), None, recipe.data.source.kind == "hf"
    if ready is None and hub:
        ready = Ready(None, 0, "not looked at: a hub data set; preparing it is not in this plan")
    elif ready is None:
        from shoestring.data.read.corpora import open_source
        from shoestring.data.read.density import estimate_density

        density = estimate_density(open_source(recipe.data, recipe.run.seed), recipe.data, recipe.run.seed)
        density = replace(density, row_specials=specials_per_row(recipe))
    chosen: tuple[Line, ...] = ()
    if recipe.autos:
        recipe, chosen = _settled(recipe, vocabulary, gpu, devices, ready or density)
    profile = estimate_profile(recipe, vocabulary, gpu, density)
    plan = plan_network(recipe, ready, profile, 0.0, devices, NO_HISTORY)
    plan = replace(plan, lines=(*plan.lines, *chosen))
    return _as_estimate(recipe, plan, profile, unread=hub and density is None)


def _settled(
    recipe: Recipe, vocabulary: int, gpu: str, devices: int, supply: Ready | Density | None
) -> tuple[Recipe, tuple[Line, ...]]:
    """The recipe with numbers in place of "auto", as they would be chosen there, and their lines."""
    assert supply is not None, "there is a corpus, or rows that are ready"
    known_gpu(gpu)
    _, speed = speed_of_gpu(gpu)(recipe)
    unique = unique_positions(recipe, supply)
    chosen = choose(recipe, Facts(vocabulary=vocabulary, unique=unique, device="cuda", speed=speed, devices=devices))
    return chosen.applied(recipe, "the recipe"), chosen.lines()


def _as_estimate(recipe: Recipe, plan: Plan, profile: Profile, unread: bool) -> Plan:
    """The plan with the range of the estimate instead of a measured spread, and lines that say so."""
    point = profile.points[0]
    assert plan.seconds is not None and point.fastest_seconds is not None
    train, fixed = plan.parts["train"], plan.seconds - plan.parts["train"]
    ends = tuple(fixed + train * bound / point.seconds for bound in (point.fastest_seconds, point.slowest_seconds))
    seconds = Interval(ends[0], plan.seconds, ends[1]).show(lambda value: Seconds(value).short())
    unknown = ("rows", "epochs", "stored rows") if unread else ()
    lines = [Line(quantity="gpu", value=profile.machine.device_name, reason=profile.stopped)]
    lines += [
        replace(line, value=seconds) if line.quantity == "seconds" else line
        for line in plan.lines
        if line.quantity not in unknown
    ]
    if unread:
        passes = full_passes(recipe)
        reading = f"{passes:g} epochs are one reading of it" if passes > 1 else "not looked at"
        lines.append(Line(quantity="corpus", value="unknown", reason=f"a hub data set; {reading}"))
    return replace(plan, lines=tuple(lines), intervals=plan.intervals | {"seconds": (ends[0], ends[1])})
