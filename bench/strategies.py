"""Synchronous, local and asynchronous training on the tweets: loss, macro-F1, seconds, traffic and staleness.

    python bench/strategies.py [--seeds 3] [--minutes 10]

Every strategy first chooses among three of its own settings, with two workers and a seed that is not used again. Then
1, 2 and 4 workers take the same rows in the same order with the same effective batch, and one process fine-tunes what
they trained on the classes. Last, four workers, one of them twice as slow. A run that would begin after the
minutes are over is left out, and the record says so.
"""

from __future__ import annotations

import argparse
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
MEAN = {"parallel.outer_lr": "1", "parallel.outer_momentum": "0"}
"""Local SGD: the plain mean of the weights."""
EVERY = {"parallel.sync_every": "20"}
VARIANTS: dict[str, list[dict[str, str]]] = {
    "sync": [{"train.lr": lr} for lr in ("2e-3", "4e-3", "8e-3")],
    "local": [EVERY | {"train.lr": "4e-3"}, EVERY | {"train.lr": "8e-3"}, EVERY | MEAN | {"train.lr": "4e-3"}],
    "async": [{"train.lr": lr} for lr in ("2e-3", "4e-3", "8e-3")],
}


class Setting(NamedTuple):
    """Workers that share what they learn in one way."""

    strategy: str
    workers: int
    slow: str | None = None

    @property
    def name(self) -> str:
        return f"{self.strategy} {self.workers}" + ("" if self.slow is None else f", slow {self.slow}")


SETTINGS = [Setting("sync", 1), *(Setting(strategy, n) for strategy in ("sync", "local", "async") for n in (2, 4))]
SLOW = [Setting(strategy, 4, "1:2x") for strategy in ("sync", "local", "async")]


def train(recipe: str, folder: Path, name: str, fields: dict[str, str], *options: str) -> dict[str, Any]:
    """Run a recipe to its end; its outcome, evaluation and curve."""
    shared = {"run.name": name, "run.folder": str(folder), "data.folder": str(folder), "data.source": f"csv:{TWEETS}"}
    settings = [part for field, value in (shared | fields).items() for part in ("--set", f"{field}={value}")]
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
    when = {line["step"]: line["elapsed"] for line in lines["timings"] if "elapsed" in line}
    return [(when[line["step"]], line["heldout_loss"]) for line in lines["metrics"] if "heldout_loss" in line]


def measured(setting: Setting, fields: dict[str, str], seed: int, folder: Path, classes: bool) -> dict[str, Any]:
    """The numbers of one run, and of the classifier that begins with its weights."""
    name = f"{setting.name.replace(' ', '-').replace(',', '')}-{seed}".replace(":", "-")
    shares = {"parallel.workers": str(setting.workers), "parallel.strategy": setting.strategy, "run.seed": str(seed)}
    options = ["--slow-worker", setting.slow] if setting.slow else []
    found = train("mini.toml", folder, name, fields | shares, *options)
    outcome, sharing = found["outcome"], found["outcome"]["sharing"] or {}
    stale = [age for age, count in enumerate(sharing.get("staleness", [])) for _ in range(count)]
    tuned = {"run.seed": str(seed), "model.init": str(folder / name)}
    scores = train("mini_classes.toml", folder, f"{name}-classes", tuned)["evaluation"] if classes else {}
    print(f"{setting.name}, seed {seed}: loss {outcome['loss']:.4f}, {found['seconds']:.1f} s", flush=True)
    return {
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
        "macro_f1": scores.get("macro_f1"),
        "curve": found["curve"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    end, load = time.monotonic() + 60 * arguments.minutes, [os.getloadavg()[0]]
    results: dict[str, Any] = {}
    left_out = []
    with tempfile.TemporaryDirectory() as text:
        folder, best = Path(text), {}
        for strategy, variants in VARIANTS.items():
            tried = []
            for number, fields in enumerate(variants):
                place = folder / f"tuning-{strategy}-{number}"
                setting = Setting(strategy, 2)
                tried.append(measured(setting, fields, TUNING_SEED, place, classes=False)["loss"])
            best[strategy] = variants[tried.index(min(tried))]
            results[f"tuning {strategy}"] = [{"fields": f, "loss": loss} for f, loss in zip(variants, tried)]
        for seed in range(arguments.seeds):
            for setting in [*SETTINGS, *SLOW]:
                if setting.slow and seed:
                    continue
                if time.monotonic() > end:
                    left_out.append(f"{setting.name}, seed {seed}")
                    continue
                fields, classes = best[setting.strategy], setting.slow is None
                one = measured(setting, fields, seed, folder / f"seed-{seed}", classes)
                results.setdefault(setting.name, []).append(one)
    load.append(os.getloadavg()[0])
    record.write("strategies", {"results": results, "left_out": left_out, "load": load}, arguments.out)


if __name__ == "__main__":
    main()
