"""What a deadline buys: our held-out loss beside a public trainer's, at equal seconds from the command to its end.

    python bench/deadline.py --peer five_minutes.py [--text stories.txt.gz] [--time 60] [--seeds 3]
                             [--set FIELD=VALUE …] [--depth 4] [--out FOLDER]

Ours is what `shoestring best TEXT --time …` would train, with some seeds; --set changes fields of it, and is recorded.
The peer gets the training rows of our first run and the held-out rows that it was scored on, with its learning rate
swept over 1, 2 and 4 times its own. Its clock counts training alone, so the seconds that it is given are what is left
after all else, as timed in the run before; a first run, which compiles, is not counted. Ours keeps what it compiled
from seed to seed, so only its first is cold.
Wanted: our mean at most 0.97 of the peer's best.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import record

from shoestring.core import recipe_file
from shoestring.core.recipe import Recipe
from shoestring.core.run_folder import RunFolder
from shoestring.datasets.corpus import StoreCorpus, open_corpus
from shoestring.probe.machine import pick_device
from shoestring.runs.best import look_at, recipe_of, values_for
from shoestring.runs.plan import read_plan

STORIES = record.ROOT.parent / "shared" / "data" / "tinystories" / "stories.txt.gz"
PEER_LR = 0.04
"""Its own learning rate of matrices."""
SWEEP = (1.0, 2.0, 4.0)
NEAR = 0.03
"""A peer that ended further from the time than this share of it is run again, with other seconds."""
ATTEMPTS = 3
SCORED = 512
"""Held-out rows."""


def write_ours(text: Path, seconds: float, seed: int, changes: list[str], folder: Path) -> Path:
    values = values_for(look_at(str(text)), seconds, pick_device().type, f"seed{seed}")
    values["run"] |= {"seed": (seed, ""), "folder": (str(folder / "runs"), "")}
    values["data"]["folder"] = (str(folder / "stores"), "")
    values.setdefault("evaluate", {})["rows"] = (SCORED, "")
    file = folder / f"seed{seed}.toml"
    file.write_text(recipe_file.dump(recipe_of(values)))
    file.write_text(recipe_file.dump(recipe_file.load(file, changes)))
    return file


def ours(file: Path, folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "shoestring", "train", str(file), "--json"]
    environment = os.environ | {"SHOESTRING_CACHE": str(folder / "cache")}
    started = time.perf_counter()
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    wall = time.perf_counter() - started
    if ended.returncode not in (0, 1):
        sys.exit(f"{' '.join(command)}: {ended.stderr[-2000:]}")
    run = RunFolder.of(recipe_file.load(file))
    evaluation, done = (json.loads(path.read_text()) for path in (run.evaluation, run.done))
    chosen = json.loads(run.choices.read_text())["chosen"] if run.choices.is_file() else []
    told = {name: done[name] for name in ("steps", "tokens", "peak_bytes")}
    return told | {
        "loss": evaluation["loss"], "bigram": evaluation["baselines"]["bigram"], "wall": wall,
        "chosen": {choice["field"]: choice["value"] for choice in chosen},
    }  # fmt: skip


def write_rows(recipe: Recipe, folder: Path) -> list[str]:
    """Our training rows, and the held-out ones that are scored, as the peer reads them."""
    corpus = open_corpus(recipe, read_plan(recipe, RunFolder.of(recipe).plan))
    assert isinstance(corpus, StoreCorpus), "it reads a text"
    rows = corpus.training_rows
    index = rows.order(recipe.run.seed, 0, len(rows))
    for name, found in (("train", rows.batch(index).ids), ("heldout", corpus.heldout().ids)):
        np.save(folder / f"{name}.npy", found.numpy().astype(np.uint16))
    return [str(folder / f"{name}.npy") for name in ("train", "heldout")]


def theirs(peer: Path, files: list[str], seconds: float, options: list[str], folder: Path) -> dict[str, Any]:
    command = [sys.executable, str(peer), *files, "--seconds", f"{seconds:.1f}", *options]
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(folder / "peer"), "TRITON_CACHE_DIR": str(folder / "pt")}
    started = time.perf_counter()
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    wall = time.perf_counter() - started
    if ended.returncode:
        sys.exit(f"{' '.join(command)}: {ended.stderr[-2000:]}")
    told: dict[str, Any] = json.loads(ended.stdout.strip().splitlines()[-1])
    return told | {"wall": wall, "besides": wall - told["training_seconds"], "seconds": seconds}


def swept(asked: argparse.Namespace, files: list[str], folder: Path) -> list[dict[str, Any]]:
    """One run for each learning rate that took the time."""
    options = ["--depth", str(asked.depth), "--head", "64", "--batch-tokens", "32768", "--rows", "64"]
    theirs(asked.peer, files, 1.0, options, folder)  # compiles
    besides, found = theirs(asked.peer, files, 1.0, options, folder)["besides"], []
    for factor in SWEEP:
        for _ in range(ATTEMPTS):
            rate = ["--matrix-lr", f"{factor * PEER_LR:g}"]
            told = theirs(asked.peer, files, max(1.0, asked.time - besides), [*options, *rate], folder)
            besides = told["besides"]
            if abs(told["wall"] / asked.time - 1) <= NEAR:
                break
        found.append(told | {"lr": factor * PEER_LR})
        print("peer", json.dumps(found[-1]), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, required=True, help="the file of the public trainer, which needs a GPU")
    parser.add_argument("--text", type=Path, default=STORIES)
    parser.add_argument("--time", type=float, default=60.0, help="seconds")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", dest="changes")
    parser.add_argument("--depth", type=int, default=4, help="layers of the peer's network")
    parser.add_argument("--out", type=Path, help="folder of the record; default: results")
    asked = parser.parse_args()
    results = record.earlier("deadline", asked.out)
    with tempfile.TemporaryDirectory() as scratch:
        folder, mine = Path(scratch), list[dict[str, Any]]()
        for seed in range(asked.seeds):
            file = write_ours(asked.text.resolve(), asked.time, seed, asked.changes, folder)
            mine.append(ours(file, folder))
            print("ours", json.dumps(mine[-1]), flush=True)
        files = write_rows(RunFolder(folder / "runs" / "seed0").read_recipe(), folder)
        peers = swept(asked, files, folder)
    mean, best = statistics.mean(run["loss"] for run in mine), min(run["nats"] for run in peers)
    print(f"ours {mean:.4f}, the peer's best {best:.4f}: {mean / best:.3f} of it in {asked.time:g} s")
    origin = {"commit": record.commit(), "date": time.strftime("%Y-%m-%d"), "changes": asked.changes}
    told = {"time": asked.time, "ours": mine, "peer": peers, "loss": mean, "peer_loss": best, "ratio": mean / best}
    results[f"{asked.text.name.partition('.')[0]}, {asked.time:g}s"] = origin | told
    record.write("deadline", {"results": results}, asked.out)


if __name__ == "__main__":
    main()
