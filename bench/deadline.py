"""What a deadline buys: our held-out loss beside a public trainer's, at equal seconds from the command to its end.

    python bench/deadline.py --peer five_minutes.py [--task stories|stream] [--text stories.txt.gz] [--time 60]
                             [--row ours:0 peer:0.04 …] [--limit SECONDS] [--set FIELD=VALUE …]
                             [--depth 4] [--peer-batch 32768] [--besides SECONDS] [--hmm RUN]
                             [--work FOLDER] [--out FOLDER]

Tasks: `stories`, the bytes of --text, 5 % of them held out; `stream`, rows of 256 tokens of an HMM. It has 100 states
and is fitted to the 100 most frequent words of stories (--hmm, if that is done already); every row has its own
permutation of the symbols, and losses are nats above the oracle's.
A row is one run, alone on the device. `ours:SEED` is what `shoestring best TEXT --time …` would train; --set changes
fields of it, and is recorded. It keeps what it compiled from seed to seed, so only the first of a call is cold.
`peer:RATE` is the peer with that learning rate of its matrices: by default its own, twice and four times that. It
gets our training rows (of the stream, as many as it may read) and the held-out rows that we are scored on. Its clock
counts training alone, so the seconds that it is given are what is left after all else, as timed in the run before; two
runs before the first, one to compile and one to time, are not counted. With --besides these are left out: it trains
for all but so many seconds, and what it compiles costs it nothing.
The record is written after each row, and rows that it has are not run again: so a task may take several calls. No row
begins that would end after --limit. Wanted: our mean at most 0.97 of the peer's best, and for the stream 0.95.
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
from typing import Any

import numpy as np
import record
from variants import give_shape

from shoestring.core import recipe_file
from shoestring.core.recipe import Recipe
from shoestring.core.records import Plan
from shoestring.core.run_folder import RunFolder
from shoestring.datasets.corpus import StoreCorpus, StreamCorpus, open_corpus
from shoestring.probe.machine import pick_device
from shoestring.runs.best import Values, recipe_of, values_for
from shoestring.runs.look_at import Corpus, look_at
from shoestring.runs.prepare import prepare_recipe
from shoestring.runs.reporter import Reporter

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
PEER_BATCH = 32768
"""Tokens per step."""
PEER_TOKENS = 4e6
"""Per second: more than the peer reads."""
ROWS_AT_ONCE = 4096
SPARE = 30.0
"""Seconds beyond its own that a row may take."""
COMPILES = 110.0
"""Seconds of the two runs before the peer's first."""


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
    hmm = folder / "runs" / "hmm"
    if not hmm.exists() and asked.hmm is not None:
        hmm.parent.mkdir(parents=True, exist_ok=True)
        hmm.symlink_to(asked.hmm.resolve())
    elif not hmm.exists():
        fit_hmm(folder)
    values = values_for(Corpus("stream"), asked.time, kind, name)
    values["data"] = {"stream": (f"hmm:{hmm}", ""), "length": (LENGTH, "")}
    values["stream"] = {"symbols": ("sequence", ""), "start": ("stationary", "")}
    return values


def write_ours(asked: argparse.Namespace, seed: int, folder: Path) -> Path:
    """The recipe of one of our runs."""
    values = values_of(asked, f"seed{seed}", folder)
    give_shape(values, asked.changes)
    values["run"] |= {"seed": (seed, ""), "folder": (str(folder / "runs"), "")}
    values["data"]["folder"] = (str(folder / "stores"), "")
    values.setdefault("evaluate", {})["rows"] = (SCORED, "")
    file = folder / f"seed{seed}.toml"
    file.write_text(recipe_file.dump(recipe_of(values)))
    file.write_text(recipe_file.dump(recipe_file.load(file, asked.changes)))
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
    plan = Plan(binding="")
    if recipe.data.stream is None:
        prepare_recipe(recipe, plan, Reporter())
    return rows_to_files(open_corpus(recipe, plan), recipe, seconds, folder)


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


def peer_options(depth: int, batch: int) -> list[str]:
    return ["--depth", str(depth), "--head", "64", "--batch-tokens", str(batch), "--rows", "64"]


def seconds_besides(peer: Path, files: list[str], options: list[str], folder: Path) -> float:
    """What the peer takes beside training, once it is compiled."""
    theirs(peer, files, 1.0, options, folder)  # compiles
    besides: float = theirs(peer, files, 1.0, options, folder)["besides"]
    return besides


def peer_run(
    peer: Path, files: list[str], options: list[str], seconds: float, lr: float, besides: float, folder: Path
) -> dict[str, Any]:
    """A run that took the time, or the last of some."""
    options = [*options, "--matrix-lr", f"{lr:g}"]
    for _ in range(ATTEMPTS):
        told = theirs(peer, files, max(1.0, seconds - besides), options, folder)
        besides = told["besides"]
        if abs(told["wall"] / seconds - 1) <= NEAR:
            break
    return told | {"lr": lr}


def peers(asked: argparse.Namespace, lr: float, folder: Path, besides: list[float]) -> dict[str, Any]:
    """A row of the peer; `besides` are the seconds beside training of its earlier ones of this call."""
    if asked.peer is None:
        sys.exit(f"peer:{lr:g} needs --peer FILE")
    options = peer_options(asked.depth, asked.peer_batch)
    files = write_rows(recipe_file.load(write_ours(asked, 0, folder)), asked.time, folder)
    told = {"depth": asked.depth, "batch_tokens": asked.peer_batch}
    if asked.besides is not None:
        given = [*options, "--matrix-lr", f"{lr:g}"]
        found = theirs(asked.peer, files, asked.time - asked.besides, given, folder)
        return found | told | {"lr": lr, "compiles_free": True}
    if not besides:
        besides.append(seconds_besides(asked.peer, files, options, folder))
    found = peer_run(asked.peer, files, options, asked.time, lr, besides[-1], folder)
    besides.append(found["besides"])
    return found | told


def above(run: dict[str, Any], oracle: float | None = None) -> float:
    """A run's held-out loss; of a stream, what it is above the oracle's on the same rows."""
    if "nats" in run:
        return float(run["nats"]) - (oracle or 0.0)
    return float(run["loss"]) - float(run["baselines"].get("oracle", 0.0))


def summary(mine: list[dict[str, Any]], peers: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """By the fields that differ from what is chosen: our mean beside the peer's best, which reads seed 0's rows."""
    found: dict[str, dict[str, float]] = {}
    first = next((run for run in mine if run["seed"] == 0), None)
    if first is None or not peers:
        return found
    best = min(above(run, first["baselines"].get("oracle")) for run in peers)
    for changes in dict.fromkeys(" ".join(run["changes"]) for run in mine):
        mean = statistics.mean(above(run) for run in mine if " ".join(run["changes"]) == changes)
        found[changes or "as chosen"] = {"loss": mean, "peer_loss": best, "ratio": mean / best}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, help="the file of the public trainer, which needs a GPU")
    parser.add_argument("--task", choices=("stories", "stream"), default="stories")
    parser.add_argument("--text", type=Path, default=STORIES)
    parser.add_argument("--time", type=float, default=60.0, help="seconds")
    every = [*(f"ours:{seed}" for seed in range(3)), *(f"peer:{factor * PEER_LR:g}" for factor in SWEEP)]
    parser.add_argument("--row", nargs="+", default=every, help="default: %(default)s")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds of this call")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", dest="changes")
    parser.add_argument("--depth", type=int, default=4, help="layers of the peer's network")
    parser.add_argument("--peer-batch", type=int, default=PEER_BATCH, help="its tokens per step")
    parser.add_argument("--besides", type=float, help="seconds that the peer takes beside training and compiling")
    parser.add_argument("--hmm", type=Path, help="the run of the stream's HMM")
    parser.add_argument("--work", type=Path, help="folder of the runs; default: one that is removed")
    parser.add_argument("--out", type=Path, help="folder of the record; default: results")
    asked, begun = parser.parse_args(), time.perf_counter()
    results, besides = record.earlier("deadline", asked.out), list[float]()
    found = results.setdefault(f"{asked.task}, {asked.time:g}s", {"time": asked.time, "ours": [], "peer": []})
    had = {f"ours:{run['seed']}" for run in found["ours"] if run["changes"] == asked.changes}
    had |= {f"peer:{run['lr']:g}" for run in found["peer"]}
    with tempfile.TemporaryDirectory() as scratch:
        folder = (asked.work or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        for row in (row for row in asked.row if row not in had):
            kind, amount = row.split(":")
            compiles = COMPILES * (kind == "peer" and asked.besides is None and not besides)
            if time.perf_counter() - begun + asked.time + SPARE + compiles > asked.limit:
                print(f"{row} is left: {asked.limit:g} s would not suffice")
                continue
            if kind == "ours":
                told = ours(write_ours(asked, int(amount), folder), folder)
                told |= {"seed": int(amount), "changes": asked.changes}
            else:
                told = peers(asked, float(amount), folder, besides)
            found[kind].append(told | {"commit": record.commit(), "date": time.strftime("%Y-%m-%d")})
            print(row, json.dumps(found[kind][-1]), flush=True)
            found["beside"] = summary(found["ours"], found["peer"])
            record.write("deadline", {"results": results}, asked.out)
    for changes, told in found.get("beside", {}).items():
        print("{}: ours {loss:.4f}, the peer's best {peer_loss:.4f}: {ratio:.3f} of it".format(changes, **told))


if __name__ == "__main__":
    main()
