"""A deadline that moves: `shoestring best` for a time and then for twice that, beside a new run of twice the time.

    python bench/longer.py [--text stories.txt.gz] [--time 300] [--seeds 1] [--at-once] [--work FOLDER] [--out FOLDER]

The new run has the recipe of the first one. The only difference is the first run's cool-down, after which the second
goes on. With --at-once the two ways share the machine. What has ended in --work is not run again, so a
call may take some of the runs.
Wanted: a held-out loss within 0.3 % of that of the new run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import deadline
import record

from shoestring.core.run_folder import RunFolder
from shoestring.core.units import Seconds
from shoestring.probe.machine import pick_device
from shoestring.runs.best import recipe_of, text_of, values_for, with_choices
from shoestring.runs.look_at import look_at
from shoestring.runs.settle import settled


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, default=deadline.STORIES)
    parser.add_argument("--time", type=float, default=300.0, help="seconds of the first run")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--at-once", action="store_true", help="the two ways share the machine")
    parser.add_argument("--work", type=Path, help="folder of the runs; default: one that is removed")
    parser.add_argument("--out", type=Path, help="folder of the record; default: results")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = (asked.work or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        pairs = [pair(asked, seed, folder) for seed in range(asked.seeds)]
    results = record.earlier("longer", asked.out)
    results[f"{asked.text.name.partition('.')[0]}, {Seconds(asked.time)} to {Seconds(2 * asked.time)}"] = {
        "at_once": asked.at_once, "pairs": pairs, "commit": record.commit(), "date": time.strftime("%Y-%m-%d"),
    }  # fmt: skip
    record.write("longer", {"results": results}, asked.out)


def pair(asked: argparse.Namespace, seed: int, folder: Path) -> dict[str, Any]:
    """Both ways with one seed."""
    name, text = f"seed{seed}", str(asked.text.resolve())
    write_first(asked, name, seed, folder)

    def moved() -> dict[str, Any]:
        short = best(text, asked.time, name, name, folder)
        return {"short": short, "longer": best(text, 2 * asked.time, name, f"{name}-{Seconds(2 * asked.time)}", folder)}

    def fresh() -> dict[str, Any]:
        whole = [f"run.name={name}-fresh", f"budget.time={Seconds(2 * asked.time)}"]
        return command(["train", f"{name}.toml", *(f"--set={setting}" for setting in whole)], f"{name}-fresh", folder)

    if asked.at_once:
        with ThreadPoolExecutor(2) as pool:
            ways = pool.submit(moved), pool.submit(fresh)
            found = {**ways[0].result(), "fresh": ways[1].result()}
    else:
        found = {**moved(), "fresh": fresh()}
    found["difference"] = found["longer"]["loss"] / found["fresh"]["loss"] - 1
    print(json.dumps(found), flush=True)
    return found


def write_first(asked: argparse.Namespace, name: str, seed: int, folder: Path) -> None:
    """The recipe that `best` would write, with this seed and as many held-out rows as in the other benchmarks."""
    file = folder / f"{name}.toml"
    if not file.exists():
        values = values_for(look_at(str(asked.text.resolve())), asked.time, pick_device().type, name, "bytes")
        values["run"]["seed"] = (seed, "")
        values.setdefault("evaluate", {}).setdefault("rows", (deadline.SCORED, ""))
        recipe = recipe_of(values)
        choices = settled(recipe, RunFolder.of(recipe)).choices
        assert choices is not None, "its size is chosen, at least"
        file.write_text(text_of(with_choices(values, choices), "bench/longer.py"))


def best(text: str, seconds: float, name: str, run: str, folder: Path) -> dict[str, Any]:
    return command(["best", text, "--time", str(Seconds(seconds)), "--name", name], run, folder)


def command(words: list[str], run: str, folder: Path) -> dict[str, Any]:
    """What a run of ours has found, in `folder`."""
    environment = os.environ | {"SHOESTRING_CACHE": str(folder / "cache")}
    ended = subprocess.run(
        [sys.executable, "-m", "shoestring", *words], cwd=folder, env=environment, capture_output=True, text=True
    )
    own = RunFolder(folder / "runs" / run)
    if ended.returncode not in (0, 1) or not own.done.is_file():
        sys.exit(f"shoestring {' '.join(words)}: {ended.stderr[-2000:]}")
    done, evaluation = (json.loads(path.read_text()) for path in (own.done, own.evaluation))
    return {"loss": evaluation["loss"], "steps": done["steps"], "seconds": done["seconds"]}


if __name__ == "__main__":
    main()
