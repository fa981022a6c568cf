"""What a deadline buys: our held-out loss beside a public trainer's, at equal seconds from the command to its end.

    python bench/deadline.py --peer five_minutes.py [--task stories|stream] [--text stories.txt.gz] [--time 60]
                             [--seeds 3] [--set FIELD=VALUE …] [--depth 4]
                             [--at-once [--prepare] [--beside NAME:FIELD=VALUE,… …]]
                             [--work FOLDER] [--out FOLDER]

Tasks: `stories`, the bytes of --text, 5 % of them held out; `stream`, rows of 256 tokens of an HMM. It has 100 states
and is fitted to the 100 most frequent words of stories; every row has its own permutation of the symbols, and losses
are nats above the oracle's.
Ours is what `shoestring best TEXT --time …` would train, with some seeds; --set changes fields of it, and is recorded.
The peer gets the training rows of our first run (of the stream, as many as it may read) and the held-out rows that it
was scored on, with its learning rate swept over 1, 2 and 4 times its own. Its clock counts training alone, so the
seconds that it is given are what is left after all else, as timed in the run before; a first run, which compiles, is
not counted. Ours keeps what it compiled from seed to seed, so only its first is cold.
With --at-once all runs of the stream, ours and the peer's, share the GPU for the same seconds;
--prepare makes the HMM, the rows and what the peer compiles in a call before, with the same --work. --beside adds a run
of ours with other fields, seed 0: it is in the record, and no part of our mean.
Wanted: our mean at most 0.97 of the peer's best, and for the stream 0.95.
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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import record
from variants import as_variant, give_shape

from shoestring.core import recipe_file
from shoestring.core.recipe import Recipe
from shoestring.core.records import Plan
from shoestring.core.run_folder import RunFolder
from shoestring.datasets.corpus import StoreCorpus, StreamCorpus, open_corpus
from shoestring.probe.machine import pick_device
from shoestring.runs.best import Corpus, Values, look_at, recipe_of, values_for
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
STATES, SYMBOLS, LENGTH = 100, 100, 256
"""Of the stream."""
PEER_TOKENS = 4e6
"""Per second: more than the peer reads."""
ROWS_AT_ONCE = 4096

Told = dict[str, Any]
"""What is told of a run."""


def fit_hmm(folder: Path) -> None:
    """The HMM of the stream, in runs/hmm; its seconds are nobody's."""
    recipe = recipe_file.build(
        {
            "run": {"name": "hmm", "folder": str(folder / "runs")},
            "data": {
                "source": "stories", "folder": str(folder / "stores"), "documents": 10_000, "length": 100,
                "tokenizer": f"words:{SYMBOLS}",
            },
            "hmm": {"states": STATES},
            "budget": {"epochs": 10},
        },
        "the HMM",
    )  # fmt: skip
    (folder / "hmm.toml").write_text(recipe_file.dump(recipe))
    command = [sys.executable, "-m", "shoestring", "hmm", "fit", str(folder / "hmm.toml")]
    subprocess.run(command, check=True, capture_output=True)


def values_of(asked: argparse.Namespace, name: str, folder: Path) -> Values:
    """What `best` would train on the text; on the stream, the same fields."""
    kind = pick_device().type
    if asked.task == "stories":
        return values_for(look_at(str(asked.text.resolve())), asked.time, kind, name, "bytes")
    if not (folder / "runs" / "hmm").is_dir():
        fit_hmm(folder)
    values = values_for(Corpus("stream"), asked.time, kind, name)
    values["data"] = {"stream": (f"hmm:{folder / 'runs' / 'hmm'}", ""), "length": (LENGTH, "")}
    values["stream"] = {"symbols": ("sequence", ""), "start": ("stationary", "")}
    return values


def write_ours(asked: argparse.Namespace, seed: int, folder: Path, beside: str | None = None) -> Path:
    """The recipe of one of our runs, or of one `beside` them."""
    name = f"seed{seed}" if beside is None else beside
    changes = asked.changes + ([] if beside is None else asked.beside[beside])
    values = values_of(asked, name, folder)
    give_shape(values, changes)
    values["run"] |= {"seed": (seed, ""), "folder": (str(folder / "runs"), "")}
    values["data"]["folder"] = (str(folder / "stores"), "")
    values.setdefault("evaluate", {})["rows"] = (SCORED, "")
    file = folder / f"{name}.toml"
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
        "loss": evaluation["loss"], "baselines": evaluation["baselines"], "wall": wall,
        "chosen": {choice["field"]: choice["value"] for choice in chosen},
    }  # fmt: skip


def write_rows(recipe: Recipe, seconds: float, folder: Path) -> list[str]:
    """Our training rows, and the held-out ones that are scored, as the peer reads them."""
    return rows_to_files(open_corpus(recipe, read_plan(recipe, RunFolder.of(recipe).plan)), recipe, seconds, folder)


def rows_to_files(corpus: object, recipe: Recipe, seconds: float, folder: Path) -> list[str]:
    assert isinstance(corpus, StoreCorpus | StreamCorpus), "it has rows of tokens"
    source, at_once = corpus.training(pick_device()), ROWS_AT_ONCE
    rows = len(corpus.training_rows) if isinstance(corpus, StoreCorpus) else int(PEER_TOKENS * seconds / LENGTH)
    shape = rows, recipe.data.length + 1
    found = np.lib.format.open_memmap(folder / "train.npy", "w+", np.uint16, shape)
    for step, first in enumerate(range(0, rows, at_once)):
        part = source.batch(source.order(recipe.run.seed, step, at_once)).ids[: rows - first]
        found[first : first + at_once] = part.cpu().numpy()
    found.flush()
    np.save(folder / "heldout.npy", corpus.heldout().ids.numpy().astype(np.uint16))
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


def peer_options(depth: int) -> list[str]:
    return ["--depth", str(depth), "--head", "64", "--batch-tokens", "32768", "--rows", "64"]


def seconds_besides(peer: Path, files: list[str], depth: int, folder: Path) -> float:
    """What the peer takes beside training, once it is compiled."""
    theirs(peer, files, 1.0, peer_options(depth), folder)  # compiles
    besides: float = theirs(peer, files, 1.0, peer_options(depth), folder)["besides"]
    return besides


def peer_run(
    peer: Path, files: list[str], depth: int, seconds: float, lr: float, besides: float, folder: Path
) -> dict[str, Any]:
    """A run that took the time, or the last of some."""
    options = [*peer_options(depth), "--matrix-lr", f"{lr:g}"]
    for _ in range(ATTEMPTS):
        told = theirs(peer, files, max(1.0, seconds - besides), options, folder)
        besides = told["besides"]
        if abs(told["wall"] / seconds - 1) <= NEAR:
            break
    return told | {"lr": lr}


def swept(asked: argparse.Namespace, files: list[str], folder: Path) -> Iterator[dict[str, Any]]:
    """One run for each learning rate."""
    besides = seconds_besides(asked.peer, files, asked.depth, folder)
    for factor in SWEEP:
        told = peer_run(asked.peer, files, asked.depth, asked.time, factor * PEER_LR, besides, folder)
        besides = told["besides"]
        yield told


def all_at_once(asked: argparse.Namespace, folder: Path) -> tuple[list[Told], list[Told], dict[str, Told]]:
    """Ours and the peer's, on rows that need no preparation."""
    written = [write_ours(asked, seed, folder) for seed in range(asked.seeds)]
    kept = folder / "besides.json"
    if not kept.is_file():
        recipe, share = recipe_file.load(written[0]), asked.time / (asked.seeds + len(SWEEP))
        rows = rows_to_files(open_corpus(recipe, Plan(binding="")), recipe, share, folder)
        besides = seconds_besides(asked.peer, rows, asked.depth, folder)
        kept.write_text(json.dumps({"files": rows, "besides": besides}))
    if asked.prepare:
        sys.exit(0)
    prepared = json.loads(kept.read_text())
    files, left = prepared["files"], asked.time - prepared["besides"]

    def swept_run(factor: float) -> dict[str, Any]:
        lr = factor * PEER_LR
        options = [*peer_options(asked.depth), "--matrix-lr", f"{lr:g}"]
        return theirs(asked.peer, files, left, options, folder) | {"lr": lr}

    others = {name: write_ours(asked, 0, folder, name) for name in asked.beside}
    with ThreadPoolExecutor(asked.seeds + len(others) + len(SWEEP)) as pool:
        mine = [pool.submit(ours, file, folder) for file in written]
        beside = {name: pool.submit(ours, file, folder) for name, file in others.items()}
        peers = [pool.submit(swept_run, factor) for factor in SWEEP]
        for run in as_completed([*mine, *beside.values(), *peers]):
            print(json.dumps(run.result()), flush=True)
    told = {name: run.result() | {"changes": asked.beside[name]} for name, run in beside.items()}
    return [run.result() for run in mine], [run.result() for run in peers], told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, required=True, help="the file of the public trainer, which needs a GPU")
    parser.add_argument("--task", choices=("stories", "stream"), default="stories")
    parser.add_argument("--text", type=Path, default=STORIES)
    parser.add_argument("--time", type=float, default=60.0, help="seconds")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", dest="changes")
    parser.add_argument("--depth", type=int, default=4, help="layers of the peer's network")
    parser.add_argument("--at-once", action="store_true", help="all runs of the stream share the GPU")
    parser.add_argument("--prepare", action="store_true", help="with --at-once: end before the runs begin")
    parser.add_argument("--beside", action="append", default=[], type=as_variant, metavar="NAME:FIELD=VALUE,…")
    parser.add_argument("--work", type=Path, help="folder of the runs; default: one that is removed")
    parser.add_argument("--out", type=Path, help="folder of the record; default: results")
    asked = parser.parse_args()
    asked.beside = dict(asked.beside)
    if asked.beside and not asked.at_once:
        parser.error("--beside needs --at-once")
    if asked.at_once and asked.task != "stream":
        parser.error("--at-once needs --task stream, whose rows are made without a run")
    with tempfile.TemporaryDirectory() as scratch:
        folder = (asked.work or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        if asked.at_once:
            written = write_record(asked, *all_at_once(asked, folder))
        else:
            written = one_by_one(asked, folder)
    print("ours {loss:.4f}, the peer's best {peer_loss:.4f}: {ratio:.3f} of it in {time:g} s".format(**written))


def one_by_one(asked: argparse.Namespace, folder: Path) -> dict[str, Any]:
    mine, peers, written = list[dict[str, Any]](), list[dict[str, Any]](), dict[str, Any]()
    for seed in range(asked.seeds):
        mine.append(ours(write_ours(asked, seed, folder), folder))
        print("ours", json.dumps(mine[-1]), flush=True)
    files = write_rows(RunFolder(folder / "runs" / "seed0").read_recipe(), asked.time, folder)
    for told in swept(asked, files, folder):
        peers.append(told)
        print("peer", json.dumps(told), flush=True)
        written = write_record(asked, mine, peers, {})  # what is there, should the machine be taken away
    return written


def write_record(asked: argparse.Namespace, mine: list[Told], peers: list[Told], beside: dict[str, Told]) -> Told:
    least = 0.0 if asked.task == "stories" else mine[0]["baselines"]["oracle"]
    mean, best = statistics.mean(run["loss"] for run in mine) - least, min(run["nats"] for run in peers) - least
    found = {
        "commit": record.commit(), "date": time.strftime("%Y-%m-%d"), "changes": asked.changes, "time": asked.time,
        "at_once": len(mine) + len(peers) + len(beside) if asked.at_once else 1, "ours": mine, "peer": peers,
        "beside": beside, "loss": mean, "peer_loss": best, "ratio": mean / best,
    }  # fmt: skip
    results = record.earlier("deadline", asked.out)
    results[f"{asked.task}, {asked.time:g}s"] = found
    record.write("deadline", {"results": results}, asked.out)
    return found


if __name__ == "__main__":
    main()
