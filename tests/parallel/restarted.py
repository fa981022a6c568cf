"""Runs with an accident each, whose processes are started again; `test_restart` looks at what came of them.

torchrun's own agent starts them, but by forks of a process that has loaded torch, which takes seconds. All runs are
made by the same processes, in turn: what is finished is passed over, and the first that is not is resumed, to its end
or to its accident.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import torch
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from shoestring.core.clock import Clock
from shoestring.core.recipe_file import load
from shoestring.core.records import Plan
from shoestring.models.batch import Batch
from shoestring.models.language_model import LanguageModel
from shoestring.runs import session
from shoestring.runs.reporter import Reporter
from shoestring.runs.runner import run
from shoestring.training.loop import Requests
from shoestring.training.schedule import Schedule
from shoestring.training.stepper import NetworkStep, Stepper

STEPS = 16
ACCIDENT = 6
"""As many steps are taken before it."""
ROWS = 2
PROCESSES = 2
PARTS, LOCAL = "shard=true", "strategy=local sync_every=4 parts=2 difference_bits=8"


class Planned(NamedTuple):
    """A run of two processes."""

    name: str
    parallel: str = "shard=false"
    """Fields of that section."""
    accident: str | None = None


RUNS = (
    Planned("whole-copies"),
    Planned("whole-parts", PARTS),
    Planned("whole-local", LOCAL),
    Planned("killed-copies", accident="killed"),
    Planned("killed-parts", PARTS, accident="killed"),
    Planned("killed-local", LOCAL, accident="all killed"),  # one alone would go on
    Planned("full-parts", PARTS, accident="full"),
)


def main(recipe_file: Path) -> None:
    """All runs, beside a recipe, with a restart for each accident; in a process of its own."""
    os.chdir(recipe_file.parent)
    os.environ["OMP_NUM_THREADS"] = "1"
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=PROCESSES,
        run_id="restarted",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=sum(planned.accident is not None for planned in RUNS),
        start_method="fork",
    )
    elastic_launch(config, train_all)(recipe_file)


def train_all(recipe_file: Path) -> None:
    """In one process of two; nothing is measured or drawn."""
    for planned in RUNS:
        overrides = (
            f"run.name={planned.name}",
            *(f"parallel.{field}" for field in planned.parallel.split()),
            f"budget.steps={STEPS}",
            f"train.per_device={ROWS}",
            "train.checkpoint_every=1ms",
        )
        recipe = load(recipe_file, overrides)
        plan = Plan(
            binding="steps",
            recipe=recipe.fingerprint,
            steps=STEPS,
            effective_batch=recipe.batch,
            per_device=ROWS,
            entries=int(recipe.data.documents or 0),
        )
        plan_file = recipe_file.with_name(f"{planned.name}.{os.environ['RANK']}.json")
        plan.write(plan_file)
        with patch.object(session, "draw", return_value={}), _accident(planned, recipe_file):
            run(recipe, Reporter(), Clock(), plan_file)


def _accident(planned: Planned, beside: Path) -> contextlib.AbstractContextManager[object]:
    """What the second process will meet, or both."""
    rank = os.environ["RANK"]
    if planned.accident == "all killed" or (rank == "1" and planned.accident == "killed"):
        return _killed_once(beside.with_name(f"{planned.name} was killed"))
    if rank == "1" and planned.accident == "full":
        return _out_of_memory()
    return contextlib.nullcontext()


def _killed_once(marker: Path) -> contextlib.AbstractContextManager[object]:
    begin, waiting = Stepper.begin, not marker.exists()

    def broken(self: Stepper, step: int, schedule: Schedule, requests: Requests) -> NetworkStep:
        if step == ACCIDENT and waiting:
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return begin(self, step, schedule, requests)

    return patch.object(Stepper, "begin", broken)


def _out_of_memory() -> contextlib.AbstractContextManager[object]:
    """With more than one row at a time, after so many passes of this process."""
    forward, passes = LanguageModel.forward, 0

    def limited(self: LanguageModel, batch: Batch) -> torch.Tensor:
        nonlocal passes
        passes += self.training
        if passes > ACCIDENT and len(batch.ids) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(self, batch)

    return patch.object(LanguageModel, "forward", limited)
