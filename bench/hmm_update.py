"""Seconds of an HMM's update, as `shoestring measure` times it and as a fit makes it, by part.

    python bench/hmm_update.py [--seconds 5] [--tiles] [--out X]

- measured: steps of the workload that a plan is made from, as long as those of a measurement, and `--seconds` long;
- fitted: a fit of `--seconds` on the rows of the built-in stories, and one on random rows like those that are measured.
Each is the median over its updates, with the E-step apart; of a fit also over its first and its last fifth.
--tiles, on a GPU: E-steps of 256 and 4,224 rows with blocks of several sizes, each checked against float64.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import record
import torch
from measure_workloads import recipe_values
from torch import Tensor

from shoestring.core import recipe_file
from shoestring.hmm.engine import engine_of_updates
from shoestring.hmm.expect import Counts, expect
from shoestring.hmm.fit import Fit
from shoestring.hmm.parameters import random_parameters
from shoestring.probe.machine import pick_device
from shoestring.probe.meter import Meter
from shoestring.probe.trials import repeat, timed
from shoestring.runs.hmm_task import HmmTask
from shoestring.runs.hmm_trainee import fit_settings
from shoestring.runs.hmm_workload import HmmWorkload

BURST = 0.3
"""Seconds of steps that a measurement times at once."""
MANY = 10**6
FEWEST = 5
"""Updates of a fit, however short it is to be."""
BLOCKS = [(16, 128, 4), (16, 256, 8), (32, 128, 4), (32, 256, 8), (64, 128, 4), (128, 128, 8)]
TILED_STATES, TILED_ROWS = (200, 500, 1000), (256, 4224)
"""Of --tiles."""


def measured(work: HmmWorkload, rows: int, seconds: float) -> dict[str, float]:
    """Passes and updates that are waited for one by one, and steps."""
    passes, updates, steps = [], [], []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        passes.append(timed(partial(work.accumulate, rows)))
        updates.append(timed(work.update))
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        steps.append(timed(partial(work.steps, rows, 1)))
    found = {"E-step": passes, "M-step": updates, "update": steps}
    return {name: statistics.median(times) for name, times in found.items()}


def fitted(task: HmmTask, tokens: Tensor, device: torch.device, seconds: float) -> dict[str, float]:
    """A fit's own updates, from the beginning of one E-step to that of the next; E-steps are waited for."""
    counting, begins = [], []
    count = engine_of_updates(device, task.hmm.update_every)

    def counted(*arguments: Any) -> Counts:
        began = time.perf_counter()
        begins.append(began)
        found: Counts = count(*arguments)
        if device.type == "cuda":
            torch.cuda.synchronize()
        counting.append(time.perf_counter() - began)
        return found

    fit = Fit(tokens, fit_settings(task, MANY), symbols=task.symbols, device=device, count=counted)
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(begins) < FEWEST:
        fit.update()
    whole = [after - before for before, after in itertools.pairwise(begins)]
    fifth = max(1, len(whole) // 5)
    return {
        "E-step": statistics.median(counting),
        "update": statistics.median(whole),
        "first fifth": statistics.median(whole[:fifth]),
        "last fifth": statistics.median(whole[-fifth:]),
        "slowest tenth": statistics.quantiles(whole, n=10)[-1],
        "updates": len(begins),
    }


def by_tiles(states: int, symbols: int, tokens: Tensor, device: torch.device) -> dict[str, dict[str, float]]:
    """Median seconds of an E-step, replayed, by blocks, with its largest error against float64; what is taken first."""
    from shoestring.hmm import fused
    from shoestring.hmm.fused import Recorder

    parameters = random_parameters(states, symbols, 0).to(device, torch.float32)
    exact = expect(parameters.to(dtype=torch.float64), tokens)
    found = {}
    kept = fused.tiles
    taken = kept(states, len(tokens))
    for rows, columns, warps in dict.fromkeys([(taken.rows, taken.columns, taken.warps), *BLOCKS]):
        shape = taken._replace(rows=rows, columns=columns, warps=warps)
        fused.tiles = lambda *_, shape=shape: shape
        name, count = f"{rows} rows, {columns} columns, {warps} warps", Recorder()
        try:
            counts = fused.expect_fused(parameters, tokens, count=count)
            off = float((counts.transition - exact.transition).abs().max() / exact.transition.abs().max())
            times = repeat(partial(fused.expect_fused, parameters, tokens, count=count), BURST, 2)  # it waits itself
            found[name] = {"E-step": statistics.median(times), "error": off}
        except Exception as cause:  # a size that the compiler cannot do is a finding
            found[name] = {"refused": str(cause).splitlines()[0][:200]}  # type: ignore[dict-item]
    fused.tiles = kept
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each part")
    parser.add_argument("--tiles", action="store_true", help="on a GPU, E-steps with blocks of other sizes")
    parser.add_argument("--out", type=Path, default=None, help="write the record here instead of results/")
    arguments = parser.parse_args()
    device = pick_device()
    results: dict[str, Any] = {}

    def keep(name: str, found: Any) -> None:
        results[name] = found
        print(name, found, flush=True)

    with tempfile.TemporaryDirectory() as scratch:
        recipe = recipe_file.build(recipe_values("hmm-500", False, Path(scratch), None), "bench/hmm_update.py")
        assert recipe.hmm is not None
        task = HmmTask(recipe, recipe.hmm)
        rows = task.hmm.update_every
        real = torch.from_numpy(task.rows().train)
        random = torch.randint(task.symbols, tuple(real.shape), dtype=torch.int32)
        work = HmmWorkload(task, Meter(device))
        work.steps(rows, 3)
        keep("measured", measured(work, rows, BURST))
        keep("measured, on and on", measured(work, rows, arguments.seconds))
        keep("fitted to stories", fitted(task, real, device, arguments.seconds))
        keep("fitted to random rows", fitted(task, random, device, arguments.seconds))
        keep("measured again", measured(work, rows, BURST))
        if arguments.tiles and device.type == "cuda":
            for states, many in itertools.product(TILED_STATES, TILED_ROWS):
                some = random.repeat(-(-many // len(random)), 1)[:many]
                keep(f"{states} states, {many} rows", by_tiles(states, task.symbols, some, device))
        record.write("hmm-update", {"results": results}, arguments.out)


if __name__ == "__main__":
    main()
