"""What halving finds, beside whole grids: each grid is run to its end, and the decisions are replayed from its records.

python bench/halving.py [--steps 600] [--only N] [--runs FOLDER] [--out FOLDER]

With --runs the grids are kept, and those that are finished there are only replayed. The rules were looked at on the
first three grids alone; the others were added to see whether they hold. With --only one grid is run, and nothing
recorded.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import record

from shoestring.core.results import Outcome
from shoestring.core.run_folder import RunFolder
from shoestring.studies.sweep.grid import Grid, read_grid
from shoestring.studies.sweep.halving import Mark, Method, Next, Reached, judged, next_at_once, next_by_rung, shares
from shoestring.studies.sweep.orders import marks_of

RECIPE = """
[run]
name = "halved"

[budget]
steps = {steps}

[data]
source = "stories"
tokenizer = "words:200"
length = 32
documents = 3000

[model]
width = 32
layers = 1
heads = 2

[train]
batch = 8
lr = 3e-3

[evaluate]
rows = 128
every = {every}
"""
EVERY = 0.1
GRIDS = {
    "learning rate × width": ("train.lr=1e-3,3e-3,1e-2", "model.width=16,32,64"),
    "learning rate × batch": ("train.lr=1e-3,3e-3,1e-2", "train.batch=4,8,16"),
    "learning rate × schedule": ("train.lr=2e-3,6e-3,2e-2", "train.schedule=cosine,linear,constant"),
    "learning rate × optimizer": ("train.lr=5e-4,1e-3,2e-3,4e-3,8e-3", "train.optimizer=adamw,muon"),
    "layers × dropout": ("model.layers=1,2,3", "model.dropout=0,0.1,0.3"),
}
METHODS: dict[Method, Callable[..., Next | None]] = {"forecast": next_by_rung, "asha": next_at_once}


def whole_grid(file: Path, over: Sequence[str]) -> tuple[Grid, float]:
    """Run every setting to its end; the seconds of all runs together."""
    options = [word for text in over for word in ("--over", text)]
    command = [sys.executable, "-m", "shoestring", "sweep", str(file), *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    grid = read_grid(file, (), over)
    return grid, sum(Outcome.read(RunFolder.of(run.recipe).done).seconds for run in grid.runs)


def replayed(grid: Grid, method: Method) -> dict[str, Any]:
    """What halving would have found, one run after the other, and its share of all steps."""
    ladder = shares(3, EVERY)
    folders = {run.name: RunFolder.of(run.recipe) for run in grid.runs}
    known = {run.name: marks_of(folders[run.name], run.recipe, ladder) for run in grid.runs}
    losses = {name: Outcome.read(folder.done).loss for name, folder in folders.items()}
    seen: dict[str, tuple[Mark, ...]] = dict.fromkeys(known, ())
    taken, names = 0.0, list(known)
    while True:
        reached: dict[str, Reached] = judged(seen, method)
        found = METHODS[method](names, reached, (), ladder)
        if found is None:
            break
        before = len(seen[found.name])
        taken += ladder[found.rung] - (ladder[before - 1] if before else 0.0)
        seen[found.name] = known[found.name][: found.rung + 1]
    ended = [losses[name] for name, marks in seen.items() if len(marks) == len(ladder)]
    best = min(losses.values())
    return {"share": taken / len(names), "found": min(ended), "best": best, "above": min(ended) / best - 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--only", type=int, choices=range(len(GRIDS)), help="run this grid, and record nothing")
    parser.add_argument("--runs", type=Path, help="keep the runs in this folder")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    out = None if given.out is None else given.out.resolve()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(given.runs or temporary).resolve()
        for number, (name, over) in enumerate(GRIDS.items()):
            if given.only not in (None, number):
                continue
            folder = place / str(number)
            folder.mkdir(parents=True, exist_ok=True)
            os.chdir(folder)
            file = Path("halved.toml")
            file.write_text(RECIPE.format(steps=given.steps, every=EVERY))
            grid, seconds = whole_grid(file, over)
            results[name] = {"runs": len(grid.runs), "seconds": seconds}
            results[name] |= {method: replayed(grid, method) for method in METHODS}
            print(name, results[name], flush=True)
        os.chdir(record.ROOT)
    if given.only is None:
        record.write("halving", {"results": results}, out)


if __name__ == "__main__":
    main()
