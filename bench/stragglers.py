"""The virtual clock of `plan --simulate` against real runs, and what a slow worker costs each strategy.

    python bench/stragglers.py [--step 2s] [--steps 24]

2 and 4 workers train recipes/sync_async/mini.toml, with and without one at half speed. Passes sleep
(`--step-seconds`), so that two cores can play four devices: what is compared is who waits for whom, not how fast a
core is. Then the three strategies train for longer with four workers, one at half speed, and their held-out losses are
recorded by seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import record
from strategies import RECIPES, curve, fields_of, train

from shoestring.core.units import Seconds

STRATEGIES = ("sync", "local", "async")
RATES = {"sync": "4e-3", "local": "4e-3", "async": "4e-3"}
LONG = 120
"""Steps of the runs whose losses are recorded."""


def predicted(workers: int, slow: bool, step: str, fields: dict[str, str], run: Path) -> dict[str, float]:
    """Training seconds of each strategy by the virtual clock, with the profile of a synchronous run."""
    share = f",slow={1 / workers}:2x" if slow else ""
    cluster = f"workers={workers}{share},step={step}"
    shares = {"parallel.workers": str(workers), "parallel.strategy": "sync", "train.lr": RATES["sync"]}
    told = [*fields_of(run.parent, "clock", fields | shares), "--simulate", cluster, "--json"]
    told += ["--profile", str(run / "profile.json")]
    command = [sys.executable, "-m", "shoestring", "plan", str(RECIPES / "mini.toml"), *told]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {each["strategy"]: each["seconds"] for each in json.loads(done.stdout)["strategies"]}


def taken(run: Path) -> float:
    """Seconds of its steps, without start, evaluations and checkpoints."""
    lines = [json.loads(text) for text in (run / "timings.jsonl").open()]
    parts = next(line["parts"] for line in lines if line.get("event") == "end")
    return float(parts["first step"] + parts["train"])


def slowed(strategy: str, workers: int, slow: bool, step: str, fields: dict[str, str], folder: Path) -> Path:
    """A run whose passes sleep, in its folder."""
    name = f"{strategy}-{workers}-{'slow' if slow else 'even'}-{fields['budget.steps']}"
    shares = {"parallel.workers": str(workers), "parallel.strategy": strategy}
    if strategy == "local":
        shares["parallel.sync_every"] = "6"
    options = ["--step-seconds", step, *(["--slow-worker", "1:2x"] if slow else [])]
    train("mini.toml", folder, name, fields | shares | {"train.lr": RATES[strategy]}, *options)
    return folder / name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step", default="2s")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    load, step = os.getloadavg()[0], str(Seconds.parse(arguments.step))
    results: dict[str, dict[str, float]] = {}
    curves: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        short = {"budget.steps": str(arguments.steps), "evaluate.every": "1"}
        for workers in (2, 4):
            for slow in (False, True):
                clock: dict[str, float] = {}
                for strategy in STRATEGIES:
                    run = slowed(strategy, workers, slow, step, short, folder)
                    clock = clock or predicted(workers, slow, step, short, run)
                    seconds = taken(run)
                    name = f"{strategy}, {workers} workers" + (", one at half speed" if slow else "")
                    results[name] = {"simulated": clock[strategy], "seconds": seconds}
                    print(f"{name}: {clock[strategy]:.2f} s simulated, {seconds:.2f} s taken", flush=True)
        for strategy in STRATEGIES:
            long = {"budget.steps": str(LONG), "evaluate.every": "0.1"}
            run = slowed(strategy, 4, True, "1s", long, folder)
            begun = curve_begin(run)
            curves[strategy] = [(when - begun, loss) for when, loss in curve(run)]
            print(f"{strategy}: {curves[strategy][-1]}", flush=True)
    values = {"results": results, "curves": curves, "load": load, "steps": arguments.steps, "step": step}
    record.write("stragglers", values, arguments.out)


def curve_begin(run: Path) -> float:
    """When the first step of a run began, in seconds since its start."""
    lines = [json.loads(text) for text in (run / "timings.jsonl").open()]
    parts = next(line["parts"] for line in lines if line.get("event") == "end")
    return sum(parts.get(name, 0.0) for name in ("start", "plan", "measure", "prepare", "set-up"))


if __name__ == "__main__":
    main()
