"""Synchronous, local and asynchronous training of BERT base's shape by 1, 2 and 4 processes on one GPU.

    python bench/strategies_gpu.py --data FOLDER [--steps 150] [--only sync-1,async-2] [--seconds 280] [--tiny]

FOLDER holds labeled_data.csv.gz, the tweets. Every setting takes the same rows in the same order with the same
effective batch, in micro-batches of 32: what differs is who computes which of them, and when it is applied. From random
weights, with one rate for each strategy, which was not tuned here. A setting that would begin after so many seconds is
left out, and the record says so; those of an earlier record that are not run again are kept. The record is written
after every setting.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import record
from strategies import SETTINGS, Setting, train

FIELDS = {
    "data.tokenizer": "words:30000",
    "data.length": "128",
    "data.packing": "concat",
    "data.documents": "",
    "model.width": "768",
    "model.layers": "12",
    "model.heads": "12",
    "train.batch": "128",
    "train.per_device": "32",
    "evaluate.rows": "256",
    "evaluate.every": "1",
}
"""BERT base's shape, on a recipe that is smaller."""
TINY = {
    "data.tokenizer": "words:500",
    "data.length": "32",
    "data.documents": "1000",
    "model.width": "32",
    "model.layers": "1",
    "model.heads": "2",
    "train.batch": "16",
    "train.per_device": "4",
    "evaluate.rows": "32",
}
SYNC_EVERY = 10
ASYNC_RATE = 0.5
"""Of the rate of the others: its best of three in miniature was half of theirs (docs/how-to/strategies.md)."""
WARM = 2 / 3
"""Share of the steps that the pace leaves out: layers are compiled beside the first ones, and passes recorded."""


def fields_of(setting: Setting, arguments: argparse.Namespace) -> dict[str, str]:
    """Fields of the recipe in which a setting differs from it."""
    rate = arguments.lr * (ASYNC_RATE if setting.strategy == "async" else 1.0)
    found = FIELDS | (TINY if arguments.tiny else {})
    found |= {"data.source": f"csv:{arguments.data / 'labeled_data.csv.gz'}", "budget.steps": str(arguments.steps)}
    found |= {"train.lr": repr(rate), "parallel.workers": str(setting.workers), "parallel.strategy": setting.strategy}
    return found | ({"parallel.sync_every": str(SYNC_EVERY)} if setting.strategy == "local" else {})


def pace(run: Path, tokens_per_step: float) -> float:
    """Tokens per second from the first warm step to the last, evaluations and checkpoints in between included."""
    lines = [json.loads(text) for text in (run / "timings.jsonl").open()]
    times = {line["step"]: line["elapsed"] for line in lines if "event" not in line}
    last = max(times)
    first = min(step for step in times if step >= WARM * last)
    return (last - first) * tokens_per_step / (times[last] - times[first])


def measured(setting: Setting, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The numbers of one setting."""
    name, fields = setting.run(0), fields_of(setting, arguments)
    found = train("mini.toml", folder, name, fields)
    outcome, sharing = found["outcome"], found["outcome"]["sharing"] or {}
    counts = sharing.get("staleness", [])
    stale = [age for age, count in enumerate(counts) for _ in range(count)]
    numbers = {
        "seed": 0,
        "batch": int(fields["train.batch"]),
        "lr": float(fields["train.lr"]),
        "loss": outcome["loss"],
        "perplexity": math.exp(outcome["loss"]),
        "seconds": found["seconds"],
        "tokens": outcome["tokens"],
        "tokens_per_second": pace(folder / name, outcome["tokens"] / arguments.steps),
        "paced_from": WARM,
        "sent_bytes": sharing.get("sent_bytes"),
        "memory": sharing.get("memory"),
        "staleness": counts,
        "staleness_mean": statistics.fmean(stale) if stale else None,
        "staleness_max": max(stale) if stale else None,
        "timeline": outcome["timeline"],
        "curve": found["curve"],
        "commit": record.commit(),
    }
    rate = numbers["tokens_per_second"]
    shutil.rmtree(folder / name)  # its checkpoints take gigabytes
    print(f"{setting.name}: loss {outcome['loss']:.4f}, {found['seconds']:.1f} s, {rate:,.0f} tokens/s", flush=True)
    return numbers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--lr", type=float, default=2e-4, help="of sync and local; async has half of it")
    parser.add_argument("--only", help="settings, as in sync-1,async-2")
    parser.add_argument("--seconds", type=float, default=280.0)
    parser.add_argument("--tiny", action="store_true", help="a miniature, to try the script on a CPU")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    arguments.data = arguments.data.resolve()
    names = [f"{setting.strategy}-{setting.workers}" for setting in SETTINGS]
    wanted = arguments.only.split(",") if arguments.only else names
    if unknown := [name for name in wanted if name not in names]:
        raise SystemExit(f"--only {','.join(unknown)}: choose among {', '.join(names)}")
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")  # of each process
    begun, load = time.monotonic(), os.getloadavg()[0]
    results = {} if arguments.tiny else record.earlier("strategies", arguments.out)
    left_out = []
    shape = FIELDS | (TINY if arguments.tiny else {})
    with tempfile.TemporaryDirectory() as folder:
        for setting in (each for each, name in zip(SETTINGS, names, strict=True) if name in wanted):
            if time.monotonic() - begun > arguments.seconds:
                left_out.append(setting.name)
            else:
                results[setting.name] = [measured(setting, arguments, Path(folder))]
            values = {"shape": shape, "steps": arguments.steps, "sync_every": SYNC_EVERY, "load": load}
            values["results"] = {each.name: results[each.name] for each in SETTINGS if each.name in results}
            record.write("strategies", values | {"left_out": left_out}, arguments.out)


if __name__ == "__main__":
    main()
