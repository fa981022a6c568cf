"""Finished run folders whose losses are those of a law that the tests know."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

from shoestring.core import recipe_file
from shoestring.core.family import network_cost
from shoestring.core.records import Machine, Plan, Point, Profile
from shoestring.core.results import Evaluation, Outcome
from shoestring.core.run_folder import RunFolder

VOCABULARY, LENGTH, BATCH = 257, 64, 16
MACHINE = Machine(
    device="cpu",
    device_name="test",
    threads=1,
    memory_bytes=None,
    system="test",
    python="3",
    versions={},
)


def write_run(
    folder: Path,
    width: int,
    layers: int,
    steps: int,
    loss: Callable[[float, float], float],
    evaluations: int = 10,
    latents: int | None = None,
    flops_per_second: float = 1e10,
    done: bool = True,
) -> Path:
    """A run of `steps`; `loss` takes N (total) and D (predictions), at the end and along its curve."""
    name = f"{width}x{layers}-{steps}"
    model: dict[str, object] = {"width": width, "layers": layers, "heads": 4}
    if latents is not None:
        model |= {"family": "perceiver_ar", "latents": latents}
    values = {
        "run": {"name": name},
        "budget": {"steps": steps},
        "data": {"length": LENGTH},
        "model": model,
        "train": {"batch": BATCH, "lr": 3e-4},
    }
    recipe = recipe_file.build(values, "test")
    run = RunFolder(folder / name)
    run.path.mkdir(parents=True)
    run.claim(recipe)
    cost = network_cost(recipe.model, VOCABULARY, LENGTH)
    params, predictions = float(cost.total_parameters), BATCH * (latents or LENGTH)
    seconds = BATCH * LENGTH * cost.train_flops_per_token / flops_per_second
    Profile(
        machine=MACHINE,
        workload=recipe.workload,
        length=LENGTH,
        points=(Point(batch=BATCH, seconds=seconds, slowest_seconds=seconds, peak_bytes=None),),
        setup_seconds=1.0,
        update_seconds=0.0,
        validate_seconds_per_row=0.01,
        checkpoint_seconds=0.1,
        checkpoint_bytes=1000,
        available_bytes=None,
        stopped="enough",
        cost=cost,
    ).write(run.profile)
    Plan(binding="steps", steps=steps).write(run.plan)
    with run.metrics.open("w") as file:
        for index in range(1, evaluations + 1):
            step = steps * index // evaluations
            tokens = step * BATCH * LENGTH
            file.write(json.dumps({"step": step, "tokens": tokens, "loss": 9.0, "lr": 0.1, "grad_norm": 1.0}) + "\n")
            file.write(json.dumps({"step": step, "heldout_loss": loss(params, step * predictions)}) + "\n")
    final = loss(params, steps * predictions)
    Evaluation(
        step=steps,
        rows=8,
        tokens=8 * LENGTH,
        loss=final,
        perplexity=math.exp(final),
        bits_per_byte=None,
        loss_by_position=(final,),
        baselines={},
    ).write(run.evaluation)
    if done:
        Outcome(
            steps=steps,
            tokens=steps * BATCH * LENGTH,
            seconds=10.0,
            segments=1,
            tokens_per_second=100.0,
            disk_bytes=1,
            peak_bytes=None,
            loss=final,
            shortened=None,
        ).write(run.done)
    return run.path
