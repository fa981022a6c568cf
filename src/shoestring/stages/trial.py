"""The child process of `measure`: builds the workload, measures it, tells its findings. Run with -m."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from shoestring.core import recipe as recipes
from shoestring.core.clock import process_age
from shoestring.core.errors import UserError
from shoestring.core.schema import encode
from shoestring.probe.child import tell
from shoestring.probe.machine import available_bytes, describe_machine, pick_device
from shoestring.probe.measure import measure
from shoestring.probe.workload import Workload
from shoestring.stages.hmm_workload import HmmWorkload, hmm_cost
from shoestring.stages.workload import TrainingWorkload, training_cost


def main(recipe_file: str, batches: str, seconds: str) -> None:
    recipe = recipes.load(Path(recipe_file))
    device = pick_device()
    available = available_bytes(device)
    counted = training_cost(recipe) if recipe.hmm is None else hmm_cost(recipe)
    tell({"machine": encode(describe_machine(device)), "available_bytes": available, "cost": encode(counted)})
    sizes = [int(batch) for batch in batches.split(",")]
    workload: Workload = TrainingWorkload(recipe, device) if recipe.hmm is None else HmmWorkload(recipe, device)
    if isinstance(workload, TrainingWorkload) and workload.learner.compiled:
        sizes = sizes[::-2][::-1]  # every other one: each is compiled anew
    workload.accumulate(sizes[0])
    workload.update()
    warm = process_age()
    started = time.perf_counter()
    workload.accumulate(sizes[0])
    workload.update()
    tell({"setup_seconds": warm - (time.perf_counter() - started)})
    limit = recipe.budget.memory
    for finding in measure(workload, sizes, int(limit) if limit is not None else available, float(seconds)):
        tell(encode(finding))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except UserError as mistake:
        tell({"refused": str(mistake)})
        sys.exit(mistake.exit_code)
