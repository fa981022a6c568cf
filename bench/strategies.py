"""Synchronous, local and asynchronous training on the tweets: loss, macro-F1, seconds, traffic and staleness.

    python bench/strategies.py [--seeds 3] [--minutes 10] [--resume FOLDER]
    python bench/strategies.py --only "local 4" [--only "sync 1" ...], or --only all

Every strategy first chooses the best of three learning rates of its own, with a seed that is not used again and two
workers (sync: one, whose steps they take; local: four, which drift apart the most); local then also chooses how its
averages are spaced. Then 1, 2 and 4 workers take the same rows in the same order with the same effective batch, and one
process fine-tunes what they trained on the classes, two runs at a time. A run that would begin after so many minutes of
this is left out, and the record says so; with a folder, what it holds is not run again. `--only` runs these settings
anew, with the fields of the rows that are there, and keeps the other rows. Every run has the cores that others kept
busy in the second before it began: only where nobody did, seconds are published.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import record

RECIPES = record.ROOT / "recipes" / "sync_async"
TWEETS = record.ROOT.parent / "shared" / "data" / "hate-speech-tweets" / "labeled_data.csv.gz"
TUNING_SEED = 100
EVERY = {"parallel.sync_every": "5", "parallel.sync_spacing": "lr"}
RATES = {"sync": ("2e-3", "4e-3", "8e-3"), "local": ("3e-3", "4e-3", "6e-3"), "async": ("1e-3", "2e-3", "4e-3")}
TUNED_WITH = {"sync": 1, "local": 4, "async": 2}
"""Workers."""
SPACING = ("steps",)
"""Other spaces between averages, tried with the best rate."""


class Setting(NamedTuple):
    """Workers that share what they learn in one way."""

    strategy: str
    workers: int

    @property
    def name(self) -> str:
        return f"{self.strategy} {self.workers}"

    def run(self, seed: int) -> str:
        """The name of its run."""
        return f"{self.strategy}-{self.workers}-{seed}"


SETTINGS = [Setting("sync", 1), *(Setting(strategy, n) for strategy in ("sync", "local", "async") for n in (2, 4))]


def fields_of(folder: Path, name: str, fields: dict[str, str]) -> list[str]:
    """Options that set the fields of a run in a folder."""
    shared = {"run.name": name, "run.folder": str(folder), "data.folder": str(folder), "data.source": f"csv:{TWEETS}"}
    return [part for field, value in (shared | fields).items() for part in ("--set", f"{field}={value}")]


def train(recipe: str, folder: Path, name: str, fields: dict[str, str], *options: str) -> dict[str, Any]:
    """Run a recipe to its end; its outcome, evaluation and curve."""
    settings = fields_of(folder, name, fields)
    command = [sys.executable, "-m", "shoestring", "train", str(RECIPES / recipe), *settings, *options]
    begun = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    seconds = time.perf_counter() - begun
    run = folder / name
    outcome, evaluation = (json.loads((run / file).read_text()) for file in ("DONE", "evaluation.json"))
    return {"outcome": outcome, "evaluation": evaluation, "seconds": seconds, "curve": curve(run)}


def curve(run: Path) -> list[tuple[float, float]]:
    """(seconds since the start, held-out loss) of every evaluation."""
    lines = {name: [json.loads(text) for text in (run / f"{name}.jsonl").open()] for name in ("metrics", "timings")}
    when = {line["step"]: line["elapsed"] for line in lines["timings"] if {"step", "elapsed"} <= line.keys()}
    return [(when[line["step"]], line["heldout_loss"]) for line in lines["metrics"] if "heldout_loss" in line]


def busy_cores(seconds: float = 1.0) -> float:
    """Cores that are busy now."""

    def spent() -> float:
        names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
        ticks = dict(zip(names, map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]), strict=False))
        return sum(count for name, count in ticks.items() if name not in ("idle", "iowait")) / os.sysconf("SC_CLK_TCK")

    begun, before = time.perf_counter(), spent()
    time.sleep(seconds)
    return (spent() - before) / (time.perf_counter() - begun)


def measured(setting: Setting, fields: dict[str, str], seed: int, folder: Path, name: str = "") -> dict[str, Any]:
    """The numbers of one run; those that are known are read."""
    name = name or setting.run(seed)
    known = folder / f"{name}.json"
    if known.is_file():
        return dict(json.loads(known.read_text()))
    shares = {"parallel.workers": str(setting.workers), "parallel.strategy": setting.strategy, "run.seed": str(seed)}
    busy = busy_cores()
    found = train("mini.toml", folder, name, fields | shares)
    outcome, sharing = found["outcome"], found["outcome"]["sharing"] or {}
    stale = [age for age, count in enumerate(sharing.get("staleness", [])) for _ in range(count)]
    print(f"{name}: loss {outcome['loss']:.4f}, {found['seconds']:.1f} s", flush=True)
    numbers = {
        "seed": seed,
        "fields": fields,
        "batch": outcome["tokens"] // outcome["steps"] // LENGTH,
        "loss": outcome["loss"],
        "perplexity": math.exp(outcome["loss"]),
        "seconds": found["seconds"],
        "training_seconds": outcome["tokens"] / outcome["tokens_per_second"],
        "tokens": outcome["tokens"],
        "tokens_per_second": outcome["tokens_per_second"],
        "sent_bytes": sharing.get("sent_bytes"),
        "staleness_mean": statistics.fmean(stale) if stale else None,
        "staleness_max": max(stale) if stale else None,
        "curve": found["curve"],
        "busy_cores": busy,
        "commit": record.commit(),
    }
    known.write_text(json.dumps(numbers))
    return numbers


LENGTH = 32
"""`data.length` of the recipe."""


def macro_f1(setting: Setting, seed: int, folder: Path) -> float:
    """Of the classifier that begins with the weights of a run."""
    name = f"{setting.run(seed)}-classes"
    known = folder / name / "evaluation.json"
    if not known.is_file():
        fields = {"run.seed": str(seed), "model.init": str(folder / setting.run(seed))}
        train("mini_classes.toml", folder, name, fields)
    found: float = json.loads(known.read_text())["macro_f1"]
    print(f"{name}: macro-F1 {found:.4f}", flush=True)
    return found


class Tried(NamedTuple):
    """The settings that a strategy chose among, with their losses."""

    fields: dict[str, str]
    loss: float


def tuned(strategy: str, folder: Path) -> list[Tried]:
    """What was tried for a strategy; the best of it is used."""
    found: list[Tried] = []

    def attempt(fields: dict[str, str]) -> None:
        name = f"tuning-{strategy}-{len(found)}"
        setting = Setting(strategy, TUNED_WITH[strategy])
        found.append(Tried(fields, measured(setting, fields, TUNING_SEED, folder, name)["loss"]))

    for lr in RATES[strategy]:
        attempt({"train.lr": lr} | (EVERY if strategy == "local" else {}))
    if strategy == "local":
        chosen = best_of(found)
        for spacing in SPACING:
            attempt(chosen | {"parallel.sync_spacing": spacing})
    return found


def best_of(tried: list[Tried]) -> dict[str, str]:
    return min(tried, key=lambda each: each.loss).fields


def run_settings(
    settings: list[Setting], chosen: dict[str, dict[str, str]], folder: Path, seeds: int, end: float
) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
    """The runs of each setting, and those that there was no time for."""
    results: dict[str, list[dict[str, Any]]] = {setting.name: [] for setting in settings}
    left_out = []
    for seed, setting in itertools.product(range(seeds), settings):
        if time.monotonic() > end and not (folder / f"{setting.run(seed)}.json").is_file():
            left_out.append(f"{setting.name}, seed {seed}")
        else:
            results[setting.name].append(measured(setting, chosen[setting.strategy], seed, folder))

    def classify(run: tuple[Setting, int]) -> None:
        setting, seed = run
        known = folder / f"{setting.run(seed)}-classes" / "evaluation.json"
        row = next((each for each in results[setting.name] if each["seed"] == seed), None)
        if row is None or (time.monotonic() > end and not known.is_file()):
            left_out.append(f"classes of {setting.name}, seed {seed}")
        else:
            row["macro_f1"] = macro_f1(setting, seed, folder)

    with ThreadPoolExecutor(2) as two:
        list(two.map(classify, [(setting, seed) for seed in range(seeds) for setting in settings]))
    return results, left_out


def earlier(out: Path | None) -> dict[str, Any]:
    """The record that is there."""
    path = (out or record.ROOT / "results") / "strategies-cpu.json"
    if not path.is_file():
        raise SystemExit(f"--only: there is no {path} to keep rows of; run all settings first")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--only", action="append", choices=["all", *(setting.name for setting in SETTINGS)])
    parser.add_argument("--resume", type=Path, metavar="FOLDER")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    begun, load = time.monotonic(), os.getloadavg()[0]
    old = earlier(arguments.out) if arguments.only else {}
    only = arguments.only or ["all"]
    settings = [setting for setting in SETTINGS if "all" in only or setting.name in only]
    with tempfile.TemporaryDirectory() as text:
        folder = arguments.resume or Path(text)
        folder.mkdir(exist_ok=True)
        if old:
            tuning = {name: [Tried(**each) for each in tried] for name, tried in old["tuning"].items()}
        else:
            tuning = {strategy: tuned(strategy, folder) for strategy in RATES}
        tuning_seconds, begun = time.monotonic() - begun, time.monotonic()
        chosen = {strategy: best_of(tried) for strategy, tried in tuning.items()}
        for name, rows in old.get("results", {}).items():
            chosen |= {name.split()[0]: row["fields"] for row in rows[:1] if "fields" in row}
        end = begun + 60 * arguments.minutes
        results, left_out = run_settings(settings, chosen, folder, arguments.seeds, end)
    kept = old.get("results", {}) | results
    again = {name.rpartition(",")[0].removeprefix("classes of ") for name in old.get("left_out", [])} & results.keys()
    left_out += [each for each in old.get("left_out", []) if not any(name in each for name in again)]
    values = {
        "tuning": {strategy: [each._asdict() for each in found] for strategy, found in tuning.items()},
        "results": {setting.name: kept[setting.name] for setting in SETTINGS if setting.name in kept},
        "left_out": left_out,
        "load": load,
    }
    taken = {} if arguments.resume or "all" not in only else {"seconds": time.monotonic() - begun}
    tuned_in = old.get("tuning_seconds") if old else tuning_seconds
    taken |= {} if tuned_in is None or arguments.resume else {"tuning_seconds": tuned_in}
    record.write("strategies", values | taken, arguments.out)


if __name__ == "__main__":
    main()
