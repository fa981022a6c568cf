"""The virtual clock of `plan --simulate` against real runs, and what a slow worker costs each strategy.

    python bench/stragglers.py [--share 2s] [--steps 12] [--resume FOLDER]

2 and 4 workers train recipes/sync_async/mini.toml, with and without one at half speed. Passes sleep
(`--step-seconds`), so that two cores can play four devices: what is compared is who waits for whom, not how fast a
core is. `--share` is what the passes of one worker take in a step.
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
from strategies import RECIPES, fields_of, train

from shoestring.core.units import Seconds

STRATEGIES = ("sync", "local", "async")
RATES = {"sync": "4e-3", "local": "4e-3", "async": "4e-3"}


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


def taken(run: Path, strategy: str) -> float:
    """Seconds of its steps, as long as those after the first: that one waits until all processes have loaded."""
    lines = [json.loads(text) for text in (run / "timings.jsonl").open()]
    ends = {line["step"]: line["elapsed"] for line in lines if "tokens_per_second" in line}
    if strategy == "sync":  # a line is written after the next step, and that of the last step at once
        del ends[max(ends)]
    first, last, steps = min(ends), max(ends), lines[-1]["step"]
    return float((ends[last] - ends[first]) / (last - first) * steps)


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
    parser.add_argument("--share", default="2s")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--resume", type=Path, metavar="FOLDER", help="what it holds is not run again")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    load, share = os.getloadavg()[0], Seconds.parse(arguments.share)
    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as text:
        folder = arguments.resume or Path(text)
        short = {"budget.steps": str(arguments.steps), "evaluate.every": "1"}
        for workers in (2, 4):
            step = str(Seconds(workers * share))
            for slow in (False, True):
                clock: dict[str, float] = {}
                for strategy in STRATEGIES:
                    run = slowed(strategy, workers, slow, step, short, folder)
                    clock = clock or predicted(workers, slow, step, short, run)
                    seconds = taken(run, strategy)
                    name = f"{strategy}, {workers} workers" + (", one at half speed" if slow else "")
                    results[name] = {"simulated": clock[strategy], "seconds": seconds}
                    print(f"{name}: {clock[strategy]:.2f} s simulated, {seconds:.2f} s taken", flush=True)
    values = {"results": results, "load": load, "steps": arguments.steps, "share": str(share)}
    record.write("stragglers", values, arguments.out)


if __name__ == "__main__":
    main()
