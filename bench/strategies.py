"""Synchronous, local and asynchronous training on the tweets: loss, macro-F1, seconds, traffic and staleness.

    python bench/strategies.py [--seeds 3] [--minutes 10] [--resume FOLDER]

Every strategy first chooses the best of three learning rates of its own, with two workers (sync: one, whose steps they
take) and a seed that is not used again; local then also chooses among three outer updates. Then 1, 2 and 4 workers take
the same rows in the same order with the same effective batch, and one process fine-tunes what they trained on the
classes. Seconds are worth reading only from a machine that does nothing else: the record has its load. A run that would
begin after the minutes are over is left out, and the record says so; with a folder, what it holds is not run again.
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
from pathlib import Path
from typing import Any, NamedTuple

import record

RECIPES = record.ROOT / "recipes" / "sync_async"
TWEETS = record.ROOT.parent / "shared" / "data" / "hate-speech-tweets" / "labeled_data.csv.gz"
TUNING_SEED = 100
EVERY = {"parallel.sync_every": "5"}
RATES = {"sync": ("2e-3", "4e-3", "8e-3"), "local": ("3e-3", "4e-3", "6e-3"), "async": ("1e-3", "2e-3", "4e-3")}
OUTER = [{}, *({"parallel.outer_lr": lr, "parallel.outer_momentum": m} for lr, m in (("1", "0.3"), ("0.7", "0.9")))]
"""The plain mean, some momentum, and DiLoCo's."""


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


SETTINGS = [Setting("sync", 1), *(Setting(strategy, n) for strategy in ("local", "async", "sync") for n in (2, 4))]


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


def measured(setting: Setting, fields: dict[str, str], seed: int, folder: Path, name: str = "") -> dict[str, Any]:
    """The numbers of one run; those that are known are read."""
    name = name or setting.run(seed)
    known = folder / f"{name}.json"
    if known.is_file():
        return dict(json.loads(known.read_text()))
    shares = {"parallel.workers": str(setting.workers), "parallel.strategy": setting.strategy, "run.seed": str(seed)}
    found = train("mini.toml", folder, name, fields | shares)
    outcome, sharing = found["outcome"], found["outcome"]["sharing"] or {}
    stale = [age for age, count in enumerate(sharing.get("staleness", [])) for _ in range(count)]
    print(f"{name}: loss {outcome['loss']:.4f}, {found['seconds']:.1f} s", flush=True)
    numbers = {
        "seed": seed,
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
    }
    known.write_text(json.dumps(numbers))
    return numbers


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
        setting = Setting(strategy, 1 if strategy == "sync" else 2)  # synchronous workers take the steps of one
        found.append(Tried(fields, measured(setting, fields, TUNING_SEED, folder, name)["loss"]))

    for lr in RATES[strategy]:
        attempt({"train.lr": lr} | (EVERY if strategy == "local" else {}))
    if strategy == "local":
        chosen = best_of(found)
        for outer in OUTER[1:]:
            attempt(chosen | outer)
    return found


def best_of(tried: list[Tried]) -> dict[str, str]:
    return min(tried, key=lambda each: each.loss).fields


def run_all(folder: Path, seeds: int, end: float) -> dict[str, Any]:
    """Everything that there is time for."""
    tuning = {strategy: tuned(strategy, folder) for strategy in RATES}
    results: dict[str, list[dict[str, Any]]] = {setting.name: [] for setting in SETTINGS}
    left_out = []
    several = [setting for setting in SETTINGS if setting.strategy == "sync" and setting.workers > 1]
    others = [setting for setting in SETTINGS if setting not in several]  # the losses of `several` are those of one
    for seed, setting in [*itertools.product(range(seeds), others), *itertools.product(range(seeds), several)]:
        if time.monotonic() > end and not (folder / f"{setting.run(seed)}.json").is_file():
            left_out.append(f"{setting.name}, seed {seed}")
        else:
            results[setting.name].append(measured(setting, best_of(tuning[setting.strategy]), seed, folder))
    for seed, setting in itertools.product(range(seeds), SETTINGS):
        if time.monotonic() > end and not (folder / f"{setting.run(seed)}-classes" / "evaluation.json").is_file():
            left_out.append(f"classes of {setting.name}, seed {seed}")
        elif seed < len(results[setting.name]):
            results[setting.name][seed]["macro_f1"] = macro_f1(setting, seed, folder)
    tried = {strategy: [each._asdict() for each in found] for strategy, found in tuning.items()}
    return {"tuning": tried, "results": results, "left_out": left_out}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--resume", type=Path, metavar="FOLDER")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    begun, load = time.monotonic(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as text:
        folder = arguments.resume or Path(text)
        folder.mkdir(exist_ok=True)
        values = run_all(folder, arguments.seeds, begun + 60 * arguments.minutes)
    taken = {} if arguments.resume else {"seconds": time.monotonic() - begun}
    record.write("strategies", values | {"load": load} | taken, arguments.out)


if __name__ == "__main__":
    main()
