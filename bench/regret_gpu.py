"""Regret of `auto` in real seconds on a GPU: its held-out loss against the best of random settings of the same time.

    python bench/regret_gpu.py [--text stories.txt.gz] [--time 60] [--runs 24] [--autos 2] [--at-once 6]
                               [--sizes 192x3 …] [--batches 16 …] [--rows 512] [--limit SECONDS] [--work FOLDER]
                               [--out FOLDER]

`auto` is what `shoestring best TEXT --time …` trains: it may end before the time. A random setting has the same recipe,
but a size, a batch, a learning rate and a decay that are drawn by their logarithms, and no limit of epochs; like every
run it ends where it overfits. Every run is a command from its start to its end, in a folder of its own, so that none
learns from another; what one has compiled serves the next. 5 % of the text is held out, and --rows of it are scored.

Runs go in groups of --at-once on the one GPU, each with a share of its speed and memory. So that every run has as many
neighbours, random settings are added until all groups are full; one `auto` is in each of the first groups. The record
is written after every group, and runs that it has are not run again: so a call may take some of the groups. No group
begins that would end after --limit. Curves and forecasts are in regret_curves.json beside the record.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import deadline
import record
import torch
from regret import log_uniform

from shoestring.core import recipe_file
from shoestring.core.records import Plan, Profile
from shoestring.core.run_folder import RunFolder
from shoestring.core.units import Bytes
from shoestring.runs.best import recipe_of
from shoestring.runs.prepare import prepare_recipe
from shoestring.runs.reporter import Reporter
from shoestring.track import read_lines
from shoestring.track.curve import Curve, TrainingLine

SIZES = ("192x3", "256x4", "320x5", "384x6", "512x8", "640x10", "768x12")
CHANNELS = 64
"""Of a head."""
BATCHES = (16, 32, 64, 128, 256)
"""Rows."""
RATES, DECAYS = (1e-3, 2e-2), (0.1, 5.0)
SHARES = (0.1, 0.2, 0.4, 0.7)
"""Of a run's steps, after which the record has what it expected."""
POINTS = 300
"""Of a training curve, at most."""
SPARE = 15.0
"""Seconds beyond the time that a group may take."""
MEMORY_SHARE = 0.9
"""Of the GPU's memory, what the runs of a group may take together."""
Setting = dict[str, Any]
"""Fields of the recipe by name; of `auto` none."""


def drawn_settings(sizes: Sequence[str], batches: Sequence[int]) -> Iterator[Setting]:
    """Settings without end."""
    drawn = random.Random(0)
    while True:
        width, layers = map(int, drawn.choice(sizes).split("x"))
        yield {
            "model.width": width,
            "model.layers": layers,
            "model.heads": max(1, width // CHANNELS),
            "train.batch": drawn.choice(batches),
            "train.lr": log_uniform(drawn, RATES),
            "train.weight_decay": log_uniform(drawn, DECAYS),
        }


def groups_of(runs: int, autos: int, at_once: int, drawn: Iterator[Setting]) -> list[dict[str, Setting]]:
    """The settings by name in full groups, with an `auto` in each of the first ones."""
    count = max(math.ceil((runs + autos) / at_once), autos)
    others, found = ((f"random{number:02d}", setting) for number, setting in enumerate(drawn)), []
    for number in range(count):
        group: dict[str, Setting] = {f"auto{number}": {}} if number < autos else {}
        found.append(group | dict(next(others) for _ in range(at_once - len(group))))
    return found


def write_recipe(asked: argparse.Namespace, name: str, setting: Setting, folder: Path) -> Path:
    """The recipe of a run: that of `best`, but with what is drawn."""
    values = deadline.values_of(argparse.Namespace(task="stories", text=asked.text, time=asked.time), name, folder)
    seed = int(name.strip("autorndm"))
    values["run"] |= {"seed": (seed, ""), "folder": (str(folder / "runs" / name), "")}
    values["data"]["folder"] = (str(folder / "stores"), "")
    values.setdefault("evaluate", {})["rows"] = (asked.rows, "")
    if torch.cuda.is_available():
        memory = MEMORY_SHARE * torch.cuda.get_device_properties(0).total_memory / asked.at_once
        values["budget"]["memory"] = (str(Bytes(int(memory))), "")
    if setting:
        del values["model"]["size"], values["budget"]["epochs"]
    for field, value in setting.items():
        section, _, key = field.partition(".")
        values[section][key] = (value, "")
    file = folder / f"{name}.toml"
    file.write_text(recipe_file.dump(recipe_of(values)))
    return file


def told_by(file: Path, setting: Setting, folder: Path) -> dict[str, Any]:
    """What became of a run that is trained now; the reason in its place if it failed."""
    try:
        found = deadline.ours(file, folder)
    except SystemExit as failed:
        return {"setting": setting, "failed": str(failed)[-500:]}
    run = RunFolder.of(recipe_file.load(file))
    curve = curve_of(run)
    chosen = {name: value for name, value in found.pop("chosen").items() if name not in setting}
    overfitted = None if curve["turn"] is None else curve["turn"][1]
    shares = forecasts_at(curve["forecasts"], curve["training"][-1][0])
    told = {"setting": setting, "chosen": chosen, **found, "planned": curve["planned"], "overfitted": overfitted}
    return told | {"forecasts": shares, "curve": curve}


def curve_of(run: RunFolder) -> dict[str, Any]:
    """The losses of a run by step, its rates, its plan, and all that it expected."""
    curve, recipe = Curve.of(read_lines(run.metrics)), run.read_recipe()
    forecasts = [line for line in read_lines(run.timings) if line.get("event") == "forecast"]
    return {
        "parameters": Profile.read(run.profile).cost.total_parameters,
        "rows": recipe.batch,
        "planned": json.loads(run.plan.read_text())["steps"],
        "schedule": recipe.train.schedule,
        "training": [(line.step, round(line.loss, 5), line.lr) for line in thinned(curve.training)],
        "heldout": curve.heldout,
        "turn": curve.turn,
        "forecasts": [[line[name] for name in ("step", "loss", "low", "high")] for line in forecasts],
    }


def thinned(lines: Sequence[TrainingLine], most: int = POINTS) -> list[TrainingLine]:
    """At most so many lines, each with the mean loss of all steps since the one before."""
    every, found, before = math.ceil(len(lines) / most), [], 0
    for first in range(0, len(lines), every or 1):
        part, total = lines[first : first + every], 0.0
        begun = before
        for line in part:
            total, before = total + line.loss * (line.step - before), line.step
        found.append(part[-1]._replace(loss=total / max(1, before - begun)))
    return found


def forecasts_at(forecasts: Iterable[Sequence[float]], steps: int) -> dict[str, dict[str, float]]:
    """By share of the steps, the latest forecast until then."""
    found = {}
    for share in SHARES:
        known = [line for line in forecasts if line[0] <= share * steps]
        if known:
            found[f"{share:g}"] = dict(zip(("step", "loss", "low", "high"), known[-1]))
    return found


def regret_of(runs: dict[str, Any]) -> dict[str, Any]:
    """The losses of `auto` against the least of the random settings."""
    losses = {name: run["loss"] for name, run in runs.items() if "loss" in run}
    autos = [loss for name, loss in losses.items() if name.startswith("auto")]
    others = {name: loss for name, loss in losses.items() if name.startswith("random")}
    if not autos or not others:
        return {}
    best = min(others, key=others.__getitem__)
    regrets = [loss / others[best] - 1 for loss in autos]
    return {"best": best, "random": len(others), "regret": statistics.mean(regrets), "regrets": regrets}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, default=deadline.STORIES)
    parser.add_argument("--time", type=float, default=60.0, help="seconds of a run")
    parser.add_argument("--runs", type=int, default=24, help="random settings, at least")
    parser.add_argument("--autos", type=int, default=2, help="runs of `auto`, with different seeds")
    parser.add_argument("--at-once", type=int, default=6, help="runs of a group")
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), metavar="WIDTHxLAYERS")
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES), metavar="ROWS")
    parser.add_argument("--rows", type=int, default=deadline.SCORED, help="held-out rows that are scored")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds of this call")
    parser.add_argument("--work", type=Path, help="folder of runs and compiled code; default: one that is removed")
    parser.add_argument("--out", type=Path, help="folder of the record; default: results")
    asked = parser.parse_args()
    begun, out = time.perf_counter(), asked.out or record.ROOT / "results"
    results = record.earlier("regret_gpu", asked.out)
    task = f"{asked.text.name.partition('.')[0]}, {asked.time:g}s, {asked.at_once} at once"
    runs = results.setdefault(task, {"runs": {}})["runs"]
    kept = out / "regret_curves.json"
    curves = json.loads(kept.read_text()) if kept.is_file() else {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = (asked.work or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        drawn = drawn_settings(asked.sizes, asked.batches)
        for group in groups_of(asked.runs, asked.autos, asked.at_once, drawn):
            if all(name in runs for name in group):
                continue
            if time.perf_counter() - begun + asked.time + SPARE > asked.limit:
                print(f"{', '.join(group)} are left: {asked.limit:g} s would not suffice")
                break
            files = [write_recipe(asked, name, setting, folder) for name, setting in group.items()]
            prepare_recipe(recipe_file.load(files[0]), Plan(binding="", share=1.0), Reporter())  # nobody's seconds
            with ThreadPoolExecutor(asked.at_once) as pool:
                told = list(pool.map(told_by, files, group.values(), [folder] * len(files)))
            origin = {"commit": record.commit(), "date": time.strftime("%Y-%m-%d")}
            for name, found in zip(group, told):
                curves.setdefault(task, {})[name] = found.pop("curve", None)
                runs[name] = found | origin
                print(name, json.dumps(runs[name]), flush=True)
            results[task] = {"time": asked.time, "at_once": asked.at_once, **regret_of(runs), "runs": runs}
            record.write("regret_gpu", {"results": results}, asked.out)  # what is there, should the machine go
            kept.write_text(json.dumps(curves))
    print(json.dumps({name: value for name, value in results[task].items() if name != "runs"}))


if __name__ == "__main__":
    main()
