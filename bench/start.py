"""From the command to the first step, and the share of a time budget spent in steps; a public trainer beside it.

    python bench/start.py [--only NAME …] [--time 100s …] [--cold-only] [--peer five_minutes.py] [--out FOLDER]

Each case is run as a new user would: `cold` with empty caches and no data, `warm` again with what that left behind (a
run of another name, its data prepared), and `resume` after that run was stopped halfway. Seconds are those of the run's
own timeline, from the start of the process; `wall` is the clock of this script around the whole process.
The peer trains on the rows of the first case; its steps take 20 seconds by its own clock.
Results are merged into the record that is there, way by way of a case and a budget; each has its commit and date.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import record
import torch

from shoestring.core import recipe_file
from shoestring.core.recipe import Recipe
from shoestring.core.run_folder import RunFolder
from shoestring.core.units import Seconds
from shoestring.data.store.prepare import planned_documents, store_folder
from shoestring.data.store.store import Store
from shoestring.runs.plan import read_plan
from shoestring.track import read_lines

LLAMA = {"width": 1024, "layers": 20, "heads": 16, "kv_heads": 4}
CASES: dict[str, dict[str, dict[str, Any]]] = {
    "small (4.9 M)": {
        "data": {"tokenizer": "words:2000", "length": 256},
        "model": {"width": 256, "layers": 5, "heads": 4},
        "train": {"batch": 128},
    },
    "llama (254 M)": {"data": {"tokenizer": "words:31998", "length": 1024}, "model": LLAMA, "train": {"batch": 64}},
    "masked": {
        "data": {"tokenizer": "words:8000", "length": 128},
        "model": {"family": "masked_lm", "width": 512, "layers": 8, "heads": 8},
        "train": {"batch": 128},
    },
    "qwen2 of transformers": {
        "data": {"tokenizer": "words:8000", "length": 512},
        "model": {"family": "hf"},
        "train": {"batch": 64},
    },
}  # fmt: skip
QWEN2 = {
    "model_type": "qwen2", "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8,
    "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 8002, "max_position_embeddings": 512,
}  # fmt: skip
DEMO = {
    "demo": {
        "data": {"tokenizer": "words:2000", "length": 128},
        "model": {"width": 128, "layers": 3, "heads": 4},
        "train": {"batch": 16, "lr": 3e-3},
    }
}
PEER_SECONDS = 20
BEFORE = ("start", "measure", "plan", "prepare", "set-up", "first step")
"""Parts of a run until its first step is taken."""


def write_recipe(name: str, sections: dict[str, Any], folder: Path, time_budget: str) -> Path:
    values: dict[str, Any] = {section: dict(fields) for section, fields in sections.items()}
    values["run"] = {"name": name, "folder": str(folder / "runs")}
    values["budget"] = {"time": time_budget}
    values["data"] |= {"source": "stories", "folder": str(folder / "stores")}
    if values["model"].get("family") == "hf":
        (folder / "qwen2").mkdir(exist_ok=True)
        (folder / "qwen2" / "config.json").write_text(json.dumps(QWEN2))
        values["model"]["name"] = str(folder / "qwen2")
    file = folder / f"{name}.toml"
    file.write_text(recipe_file.dump(recipe_file.build(values, name)))
    return file


def train(file: Path, folder: Path, *more: str) -> tuple[Recipe, float]:
    """The recipe that was trained, and the seconds of the whole process."""
    environment = os.environ | {"SHOESTRING_CACHE": str(folder / "cache")}
    command = [sys.executable, "-m", "shoestring", "train", str(file), "--json", *more]
    started = time.perf_counter()
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    seconds = time.perf_counter() - started
    if ended.returncode not in (0, 1):
        sys.exit(f"{' '.join(command)}: {ended.stderr[-2000:]}")
    return recipe_file.load(file), seconds


def sessions(recipe: Recipe) -> list[dict[str, float]]:
    """The parts of every session of a run."""
    told: list[dict[str, float]] = []
    for line in read_lines(RunFolder.of(recipe).timings):
        if line.get("event") == "start":
            told.append({})
        if "parts" in line:
            told[-1] = line["parts"]
    return told


def numbers(parts: dict[str, float], wall: float, budget: float) -> dict[str, Any]:
    return {
        "first_step": sum(parts.get(name, 0.0) for name in BEFORE),
        "steps_share": parts.get("train", 0.0) / budget,
        "finish": sum(parts.get(name, 0.0) for name in ("last evaluation", "last checkpoint", "page")),
        "wall": wall,
        "exit": wall - sum(parts.values()),
        "parts": parts,
    }


def case(name: str, sections: dict[str, Any], budget: str, cold_only: bool, peer: Path | None) -> dict[str, Any]:
    seconds = float(Seconds.parse(budget))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        recipe, wall = train(write_recipe("cold", sections, folder, budget), folder)
        found = {"budget": seconds, "cold": outcome(recipe) | numbers(sessions(recipe)[0], wall, seconds)}
        if not cold_only:
            warm, wall = train(write_recipe("warm", sections, folder, budget), folder, "--time", f"{seconds / 2:.0f}s")
            found["warm"] = numbers(sessions(warm)[0], wall, seconds)
            _, wall = train(folder / "warm.toml", folder)
            found["resume"] = outcome(warm) | numbers(sessions(warm)[1], wall, seconds)
        if peer is not None:
            found["peer"] = five_minutes(peer, recipe, folder)
    print(name, json.dumps({way: {k: v for k, v in told.items() if k != "parts"} for way, told in found.items()
                            if isinstance(told, dict)}, indent=2), flush=True)  # fmt: skip
    return found


def outcome(recipe: Recipe) -> dict[str, Any]:
    """What the run learned, and its plan beside it."""
    folder = RunFolder.of(recipe)
    done, plan = (json.loads(path.read_text()) for path in (folder.done, folder.plan))
    told = {name: done[name] for name in ("loss", "steps", "tokens", "seconds", "peak_bytes")}
    counted = {"baselines": json.loads(folder.evaluation.read_text())["baselines"]}
    compiled = [
        (line["step"], line["elapsed"]) for line in read_lines(folder.timings) if line.get("event") == "compiled"
    ]
    changes = [line["total"] for line in read_lines(folder.metrics) if line.get("event") in ("shortened", "lengthened")]
    planned = {name: plan[name] for name in ("steps", "seconds", "peak_bytes")}
    return told | counted | {"planned": planned, "compiled": compiled, "changes": changes}


def five_minutes(peer: Path, recipe: Recipe, folder: Path) -> dict[str, Any]:
    """The peer on the same rows, timed from outside; its loss is its own."""
    plan = read_plan(recipe, RunFolder.of(recipe).plan)
    store = Store(store_folder(recipe.data, recipe.run.seed, planned_documents(recipe.data, plan)))
    files = []
    for split in ("train", "heldout"):
        rows = store.split(split, recipe.data.length)
        np.save(folder / f"{split}.npy", rows.rows(np.arange(len(rows))).astype(np.uint16))
        files.append(str(folder / f"{split}.npy"))
    batch = recipe.batch * recipe.data.length
    depth = ["--depth", "4", "--batch-tokens", str(batch), "--rows", str(recipe.batch)]
    command = [sys.executable, str(peer), *files, "--seconds", str(PEER_SECONDS), *depth]
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(folder / "peer"), "TRITON_CACHE_DIR": str(folder / "pt")}
    started = time.perf_counter()
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    wall = time.perf_counter() - started
    if ended.returncode:
        return {"error": ended.stderr.strip().splitlines()[-1], "wall": wall}
    told: dict[str, Any] = json.loads(ended.stdout.strip().splitlines()[-1])
    return told | {"wall": wall, "besides_steps": wall - PEER_SECONDS}


def main() -> None:
    cases = CASES if torch.cuda.is_available() else DEMO
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", default=list(cases), help="of " + ", ".join(cases))
    parser.add_argument("--time", nargs="+", default=["100s"], help="budgets")
    parser.add_argument("--cold-only", action="store_true", help="no warm and no resumed run")
    parser.add_argument("--peer", type=Path, help="the file of the public trainer, which needs a GPU")
    parser.add_argument("--out", type=Path, default=None, help="write the record here instead of results/")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.only if name not in cases]:
        parser.error(f"--only {' '.join(unknown)}: unknown")
    results, peer = record.earlier("start", arguments.out), arguments.peer
    for name in arguments.only:
        for budget in arguments.time:
            origin = {"commit": record.commit(), "date": time.strftime("%Y-%m-%d")}
            found = case(name, cases[name], budget, arguments.cold_only, peer)
            ways = {way: origin | told if isinstance(told, dict) else told for way, told in found.items()}
            results[f"{name}, {budget}"] = results.get(f"{name}, {budget}", {}) | ways
            peer = None
            record.write("start", {"results": results}, arguments.out)


if __name__ == "__main__":
    main()
