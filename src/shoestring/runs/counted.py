"""The profile of a network on this machine by counting: only one product is timed, so that a run begins at once.

Bytes are counted from the recipe. Seconds are FLOPs by the speed of that product, and may be off by a factor; the first
steps of the run replace them (`runs/first_steps.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, NamedTuple

import torch

from shoestring.core.environment import launched
from shoestring.core.errors import PlanError, ShoestringError
from shoestring.core.family import is_compiled, learned_of
from shoestring.core.recipe import Recipe
from shoestring.core.records import Machine, Point, Profile
from shoestring.core.units import Bytes
from shoestring.cost.memory import CONTEXT_BYTES, HELD_SHARE, PROCESS_BYTES, estimate_memory
from shoestring.cost.seconds import training_flops, update_seconds
from shoestring.planning.auto import width_share
from shoestring.planning.split import divisors_of
from shoestring.probe.machine import available_bytes, describe_machine
from shoestring.runs.estimate import saved_bytes
from shoestring.runs.prepare import vocabulary_of
from shoestring.runs.task import Task
from shoestring.training.precision import DTYPES, has_bf16

ROOM_SHARE = 0.8
"""Of the free memory: what is counted to take more is measured."""
CPU_POSITIONS = 4096
"""Of a micro-batch on a CPU: more do not fit its caches, and are no faster."""
PASS_SHARE = {"cpu": 0.5, "cuda": 0.6}
"""Of the speed of a large product, what whole passes reach; with batches that fill the device."""
SPREAD = 2.0
"""The factor by which seconds may be off, either way."""
PRODUCT = {"cpu": 512, "cuda": 4096}
"""Rows and columns of the timed matrices."""
PRODUCT_SECONDS = 0.05
SETUP_SECONDS = {("cpu", False): 2.0, ("cpu", True): 40.0, ("cuda", False): 4.0, ("cuda", True): 20.0}
"""From a plan to the first step at full speed, by device and whether it is compiled."""
WRITTEN_BYTES_PER_SECOND = 5e8
WAITED_SHARE = {"cpu": 1.0, "cuda": 0.2}
"""Of a checkpoint's writing, what a run waits for."""


class Here(NamedTuple):
    """What counting needs to know of this machine; it can be looked up once for many recipes."""

    device: torch.device
    machine: Machine
    free: int | None
    """Bytes."""
    flops: Callable[[Recipe], float]
    """Per second, of a large product in the recipe's precision."""


def look(device: torch.device) -> Here:
    """This machine as it is now; a product is timed once per precision, when its speed is asked for."""
    known: dict[torch.dtype, float] = {}

    def flops(recipe: Recipe) -> float:
        dtype = product_dtype(device, recipe)
        if dtype not in known:
            known[dtype] = product_flops(device, recipe)
        return known[dtype]

    return Here(device, describe_machine(device), available_bytes(device), flops)


def counted_profile(task: Task, device: torch.device, devices: int = 1, here: Here | None = None) -> Profile | None:
    """The profile for a device's share of the batch; None where memory cannot be counted, or may be too small.

    Workers on one GPU have equal parts of its memory; raises PlanError where none fits its part.
    """
    recipe = task.recipe
    if recipe.kind == "hmm" or (recipe.parallel is not None and recipe.parallel.shard and devices > 1):
        return None
    try:
        peaks = counted_peaks(recipe, vocabulary_of(recipe), device, task.batch // devices)
    except ShoestringError:  # of a network that is measured, or files that say more clearly what is wrong
        return None
    here = here or look(device)
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    sharing = sharing_of(recipe, gpus)
    copies = sharing + (gpus > 0 and recipe.strategy == "async")  # one more process holds the weights
    free = None if here.free is None else here.free // copies
    most = free if recipe.budget.memory is None else min(int(recipe.budget.memory), free or int(recipe.budget.memory))
    fitting = {rows: peak for rows, peak in peaks.items() if most is None or peak <= ROOM_SHARE * most}
    if not fitting and copies > 1:
        rows = min(peaks, key=lambda each: peaks[each])
        each, needs = (Bytes(number).short() for number in (most or 0, peaks[rows]))
        raise PlanError(
            f"nothing fits the memory: {copies} processes share a GPU, and each may use {ROOM_SHARE:.0%} of {each}; a "
            f"micro-batch of {rows} needs {needs}. Take fewer parallel.workers, or a smaller model or "
            f"data.length"
        )
    if not fitting:
        return None
    return replace(_profile(task, here._replace(free=free), fitting), sharing=sharing if sharing > 1 else None)


def sharing_of(recipe: Recipe, gpus: int) -> int:
    """The workers of a run on one GPU of this machine; 1 where each has its own, or there is none."""
    here = launched()
    local = recipe.workers if here.world == 1 else here.local_world or 1
    return -(-local // gpus) if gpus else 1


def counted_peaks(recipe: Recipe, vocabulary: int, device: torch.device, share: int) -> dict[int, int]:
    """Bytes of a step above what an idle process has, by micro-batch: those worth trying for `share` rows."""
    kind: Literal["cpu", "cuda"] = "cuda" if device.type == "cuda" else "cpu"
    given = recipe.train.per_device
    candidates = divisors_of(share) if given is None else [given]
    if kind == "cpu" and given is None:
        candidates = [rows for rows in candidates if rows * recipe.data.length <= CPU_POSITIONS] or candidates[:1]
    idle = CONTEXT_BYTES if kind == "cuda" else int(PROCESS_BYTES * (1 + HELD_SHARE))
    estimates = {adds: estimate_memory(recipe, vocabulary, kind, accumulate=adds) for adds in (False, True)}
    return {rows: estimates[rows < share].device_bytes(rows) - idle for rows in candidates}


def _profile(task: Task, here: Here, peaks: dict[int, int]) -> Profile:
    recipe, kind, cost = task.recipe, here.device.type, task.cost()
    speed = PASS_SHARE[kind] * here.flops(recipe)
    if kind == "cpu":
        speed *= width_share(recipe.model, kind)
    row = training_flops(recipe, vocabulary_of(recipe)) / speed
    vocabulary = vocabulary_of(recipe)
    saved, tuned = saved_bytes(recipe, cost, vocabulary), learned_of(recipe, vocabulary)
    written = saved / WRITTEN_BYTES_PER_SECOND
    return Profile(
        machine=here.machine,
        workload=task.workload,
        length=recipe.data.length,
        points=tuple(
            Point(
                batch=rows,
                seconds=rows * row,
                slowest_seconds=rows * row * SPREAD,
                fastest_seconds=rows * row / SPREAD,
                peak_bytes=peak,
            )
            for rows, peak in peaks.items()
        ),
        setup_seconds=SETUP_SECONDS[kind, is_compiled(recipe, kind)],
        update_seconds=update_seconds(
            recipe, cost, cost.total_parameters if tuned is None else tuned.learned, kind, speed
        ),
        validate_seconds_per_row=row / 3,  # a forward pass alone
        checkpoint_seconds=WAITED_SHARE[kind] * written,
        checkpoint_bytes=saved,
        available_bytes=here.free,
        stopped=f"no pass was timed: seconds are FLOPs at {speed:.3g} a second, until the first steps are taken",
        cost=cost,
        write_seconds=written,
        estimated=True,
    )


def product_dtype(device: torch.device, recipe: Recipe) -> torch.dtype:
    """The precision of the recipe's products."""
    return DTYPES[recipe.train.products(device.type, has_bf16(device))]


def product_flops(device: torch.device, recipe: Recipe) -> float:
    """FLOPs per second of a large product in the recipe's precision."""
    size, dtype = PRODUCT[device.type], product_dtype(device, recipe)
    a, b = (torch.ones(size, size, device=device, dtype=dtype) for _ in range(2))

    def once() -> float:
        started = time.perf_counter()
        a @ b
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - started

    once()  # loads the library
    best, spent = float("inf"), 0.0
    while spent < PRODUCT_SECONDS:
        took = once()
        best, spent = min(best, took), spent + took
    return 2.0 * size**3 / best
