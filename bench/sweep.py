"""What a sweep costs besides its runs: planning many of them, and reporting long curves.

python bench/sweep.py [--runs 10000] [--reported 200] [--points 5000] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import record

from shoestring.core.family import network_cost
from shoestring.core.records import Machine, Plan, Point, Profile
from shoestring.core.results import Evaluation, Outcome
from shoestring.core.run_folder import RunFolder
from shoestring.runs.reporter import Reporter
from shoestring.studies.sweep.grid import Grid, read_grid
from shoestring.studies.sweep.report import write_report
from shoestring.studies.sweep.results import read_report, write_csv
from shoestring.studies.sweep.survey import keep, sentences, survey, table

RECIPE = """
[run]
name = "sweep"

[budget]
steps = {steps}

[data]
source = "stories"
tokenizer = "words:200"
length = 64
documents = 1000

[model]
width = 64
layers = 2
heads = 4

[train]
batch = 8
lr = 1e-3
"""


def dry_run(file: Path, runs: int, distinct: int) -> dict[str, Any]:
    """Seconds of all that --dry-run does, with so many costs that differ."""
    steps, seeds = ",".join(str(100 + number) for number in range(distinct)), runs // distinct
    started = time.perf_counter()
    found = survey(read_grid(file, (), [f"budget.steps={steps}"], seeds=seeds), Reporter())
    table(found), sentences(found)
    seconds = time.perf_counter() - started
    assert len(found.to_do) == distinct * seeds, [why for run in found.index.runs if (why := found.problem(run))][:1]
    return {"runs": distinct * seeds, "distinct": distinct, "seconds": seconds, "per_run": seconds / distinct / seeds}


def report(file: Path, runs: int, points: int) -> dict[str, Any]:
    """Seconds to read, draw and write the report of finished runs."""
    rates = ",".join(f"{(1 + number) * 1e-4:g}" for number in range(runs // 10))
    grid = read_grid(file, (), [f"train.lr={rates}", "model.layers=1,2,3,4,5"], seeds=2)
    found = survey(grid, Reporter())
    keep(found)
    write_runs(grid, points)
    started = time.perf_counter()
    made = read_report(found.folder)
    read = time.perf_counter() - started
    write_csv(made, found.folder.table)
    write_report(made, found.folder)
    seconds = time.perf_counter() - started
    assert {row.state for row in made.rows} == {"done"}
    return {"runs": len(made.rows), "points": points, "read_seconds": read, "seconds": seconds}


def write_runs(grid: Grid, points: int) -> None:
    """Run folders as if every run of the grid were done, each with so many training and held-out losses."""
    machine = Machine(device="cpu", device_name="x", threads=1, memory_bytes=None, system="x", python="3", versions={})
    for number, planned in enumerate(grid.runs):
        recipe = planned.recipe
        folder, cost = RunFolder.of(recipe), network_cost(recipe.model, 200, recipe.data.length)
        folder.path.mkdir(parents=True)
        folder.claim(recipe)
        tokens, loss = recipe.batch * recipe.data.length, 2.0 + number / len(grid.runs)
        with folder.metrics.open("w") as file:
            for step in range(1, points + 1):
                line = {"step": step, "tokens": step * tokens, "loss": loss + 5 / step, "lr": 1e-3, "grad_norm": 0.5}
                file.write(json.dumps(line | {"heldout_loss": loss + 6 / step, "heldout_error": 0.01}) + "\n")
        final = loss + 6 / points
        pass_seconds = Point(batch=8, seconds=0.1, slowest_seconds=0.2, peak_bytes=10**8)
        Profile(
            machine=machine, workload=recipe.workload, length=recipe.data.length, points=(pass_seconds,),
            setup_seconds=1.0, update_seconds=0.0, validate_seconds_per_row=0.0, checkpoint_seconds=0.0,
            checkpoint_bytes=1, available_bytes=None, stopped="enough", cost=cost,
        ).write(folder.profile)  # fmt: skip
        Plan(binding="steps", steps=points, seconds=9.0).write(folder.plan)
        Evaluation(
            step=points, rows=8, tokens=512, loss=final, perplexity=2.718281828459045**final, bits_per_byte=None,
            loss_by_position=(final,) * recipe.data.length, baselines={},
        ).write(folder.evaluation)  # fmt: skip
        Outcome(
            steps=points, tokens=points * tokens, seconds=10.0, segments=1, tokens_per_second=100.0, disk_bytes=1,
            peak_bytes=None, loss=final, shortened=None,
        ).write(folder.done)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--reported", type=int, default=200)
    parser.add_argument("--points", type=int, default=5000)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    out = None if given.out is None else given.out.resolve()
    results: dict[str, Any] = {}
    for name, distinct in (("seeds", 10), ("every cost differs", given.runs)):
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            file = Path("sweep.toml")
            file.write_text(RECIPE.format(steps=100))
            results[name] = dry_run(file, given.runs, distinct)
            print(name, results[name])
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        file = Path("sweep.toml")
        file.write_text(RECIPE.format(steps=given.points))
        results["report"] = report(file, given.reported, given.points)
        print(results["report"])
    os.chdir(record.ROOT)
    record.write("sweep", {"results": results}, out)


if __name__ == "__main__":
    main()
