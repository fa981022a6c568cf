"""How soon a Swift has the held-out loss that a Llama with AdamW has after some minutes; a public trainer beside it.

    python bench/time_to_loss.py [--task stories|stream|wikitext] [--minutes 5] [--row NAME …] [--limit SECONDS]
                                 [--peer five_minutes.py] [--depth 8] [--rates 0.00075 … 0.012] [--shares 0.2 0.35 …]
                                 [--text FILE] [--wikitext FOLDER] [--hmm RUN] [--work FOLDER] [--set FIELD=VALUE …]
                                 [--out FOLDER]

Tasks: `stories`, the built-in stories as bytes (or --text); `stream`, rows of 256 tokens of an HMM, each with its own
permutation of the symbols; `wikitext`, WikiText-2 as bytes, at most two epochs. All networks have 64 × --depth
channels and --depth layers. A row is one command from its start to its end: its seconds have set-up, compiling and
scoring, and the first row of a call is cold.

    llama:RATE    a Llama with AdamW at one of the rates, for all the minutes
    swift:SHARE   a Swift with Muon at the law's rate, for a share of the minutes (and of the epochs)
    peer:SECONDS:RATE   the public trainer for so many seconds (with --peer), after two short runs that compile

The record is written after each row, and rows that it has are not run again: so a task may take several calls. No row
begins that would end after --limit. The held-out rows are checked to be the same for all rows of a task; for `stream`
that needs the same HMM, which --hmm names if it is fitted already. Wanted: the Llama's best loss in 35 % of its
seconds, and less loss than the peer's at 60, 120 and 300 s.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import deadline
import numpy as np
import record

from shoestring.core import recipe_file
from shoestring.core.family import network_cost
from shoestring.core.records import Plan
from shoestring.core.run_folder import RunFolder
from shoestring.datasets.corpus import open_corpus
from shoestring.probe.machine import pick_device
from shoestring.runs.best import SWIFT_PARTS, Values, recipe_of, values_for
from shoestring.runs.look_at import Corpus, look_at
from shoestring.runs.plan import read_plan
from shoestring.runs.prepare import prepare_recipe
from shoestring.runs.reporter import Reporter
from shoestring.runs.settle import settled

WIKITEXT = record.ROOT.parent / "shared" / "data" / "wikitext-2"
RATES = (0.00075, 0.0015, 0.003, 0.006, 0.012)
SHARES = (0.2, 0.35, 0.4, 1.0)
PEER_SECONDS = (60, 120, 300)
DEPTHS = {"stories": 8, "stream": 8, "wikitext": 12}
EPOCHS = 2.0
"""Of WikiText-2."""
DOCUMENTS, DOCUMENT_BYTES = 1_500_000, 660
"""Of the built-in stories: more than a run reads. It prepares only what it needs."""


def corpus_of(asked: argparse.Namespace) -> Corpus:
    if asked.task == "wikitext":
        return look_at(str((asked.wikitext / "train.txt.gz").resolve()))
    if asked.text is not None:
        return look_at(str(asked.text.resolve()))
    return Corpus("stories", {"source": ("stories", ""), "documents": (asked.documents, "")})


def values_of(asked: argparse.Namespace, row: str, folder: Path) -> Values:
    """The fields of a row: those of `best`, but for the network and what the row says."""
    kind, _, amount = row.partition(":")
    share = float(amount) if kind == "swift" else 1.0
    seconds, device = share * 60 * asked.minutes, pick_device().type
    name = row.replace(":", "-").replace(".", "_")
    if asked.task == "stream":
        known = argparse.Namespace(task="stream", time=seconds, hmm=asked.hmm)
        values = deadline.values_of(known, name, folder)
    else:
        values = values_for(corpus_of(asked), seconds, device, name, "bytes")
    if asked.task == "wikitext":
        values["budget"]["epochs"] = (share * EPOCHS, "")
    values["run"]["folder"] = (str(folder / "runs"), "")
    values["data"]["folder"] = (str(folder / "stores"), "")
    values.setdefault("evaluate", {})["rows"] = (asked.rows, "")
    shape = {"width": 64 * asked.depth, "layers": asked.depth, "heads": asked.depth}
    values["model"] = {"dropout": ("auto", ""), **{field: (value, "") for field, value in shape.items()}}
    if kind == "llama":
        values["train"] |= {"optimizer": ("adamw", ""), "lr": (float(amount), "")}
    else:
        values["model"] |= {"family": ("swift", ""), "parts": (asked.parts, ""), "tied": (False, "")}
    return values


def write_recipe(asked: argparse.Namespace, row: str, folder: Path) -> Path:
    file = folder / f"{row.replace(':', '-')}.toml"
    file.write_text(recipe_file.dump(recipe_of(values_of(asked, row, folder))))
    file.write_text(recipe_file.dump(recipe_file.load(file, asked.changes)))
    return file


def hash_of(ids: Any) -> str:
    """Of the held-out rows."""
    return hashlib.sha256(np.ascontiguousarray(np.asarray(ids), dtype=np.int64).tobytes()).hexdigest()[:16]


def ours(asked: argparse.Namespace, row: str, folder: Path) -> dict[str, Any]:
    file = write_recipe(asked, row, folder)
    cold = not (folder / "cache").exists()
    found = deadline.ours(file, folder)
    run = RunFolder.of(recipe_file.load(file))
    recipe, done = settled(run.read_recipe(), run).recipe, json.loads(run.done.read_text())
    corpus = open_corpus(recipe, read_plan(recipe, run.plan))
    cost = network_cost(recipe.model, corpus.vocab_size, recipe.data.length)
    told = {"cold": cold, "timeline": done["timeline"], "parameters": cost.total_parameters}
    told |= {"heldout": hash_of(corpus.heldout().ids)} | ({"parts": asked.parts} if row.startswith("swift") else {})
    return found | told


def peers_rows(asked: argparse.Namespace, seconds: float, folder: Path) -> tuple[list[str], str]:
    """The files of rows that the peer reads, and the hash of the held-out ones."""
    recipe = recipe_file.load(write_recipe(asked, f"llama:{RATES[0]:g}", folder))
    plan = Plan(binding="")
    if recipe.data.stream is None:
        needed = deadline.PEER_TOKENS * seconds / DOCUMENT_BYTES / asked.documents
        plan = replace(plan, share=1.0 if recipe.data.documents is None else min(1.0, needed))
        prepare_recipe(recipe, plan, Reporter())
    files = deadline.rows_to_files(open_corpus(recipe, plan), recipe, seconds, folder)
    return files, hash_of(np.load(files[1]))


def peers(asked: argparse.Namespace, row: str, folder: Path, besides: list[float]) -> dict[str, Any]:
    """A row of the peer; `besides` are the seconds beside training of its earlier runs on this machine."""
    if asked.peer is None:
        sys.exit(f"{row} needs --peer FILE")
    seconds, lr = map(float, row.split(":")[1:])
    files, heldout = peers_rows(asked, seconds, folder)
    options = deadline.peer_options(asked.depth, deadline.PEER_BATCH)
    if not besides:
        besides.append(deadline.seconds_besides(asked.peer, files, options, folder))
    found = deadline.peer_run(asked.peer, files, options, seconds, lr, besides[-1], folder)
    besides.append(found["besides"])
    return found | {"loss": found["nats"], "heldout": heldout}


def at_target(rows: dict[str, Any], least: float) -> dict[str, Any]:
    """The Llama's best loss, and the seconds that a Swift has it after: the least of the rows that have it, and on the
    line of logs through the two rows around it."""
    llamas = [run for name, run in rows.items() if name.startswith("llama:")]
    swifts = sorted((run for name, run in rows.items() if name.startswith("swift:")), key=lambda run: run["wall"])
    if not llamas:
        return {}
    target = min(llamas, key=lambda run: run["loss"])
    found = {"target": target["loss"], "llama_seconds": target["wall"], "llamas": len(llamas)}
    first = next((i for i, run in enumerate(swifts) if run["loss"] <= target["loss"]), None)
    if first is None:
        return found
    found |= {"seconds": swifts[first]["wall"], "share": swifts[first]["wall"] / target["wall"]}
    if first:
        (a, x), (b, y) = (
            (math.log(run["wall"]), math.log(run["loss"] - least)) for run in swifts[first - 1 : first + 1]
        )
        line = math.exp(a + (b - a) * (x - math.log(target["loss"] - least)) / (x - y))
        found |= {"on_line": line, "share_on_line": line / target["wall"]}
    return found


def beside_peer(rows: dict[str, Any]) -> dict[str, Any]:
    """By seconds: the peer's loss at the best of its rates, and that of the longest Swift that took no longer."""
    found: dict[str, Any] = {}
    swifts = [run for name, run in rows.items() if name.startswith("swift:")]
    for name, run in rows.items():
        kind, _, rest = name.partition(":")
        at = rest.partition(":")[0]
        if kind == "peer" and (at not in found or run["loss"] < found[at]["peer"]):
            within = [other for other in swifts if other["wall"] <= (1 + deadline.NEAR) * float(at)]
            longest = max(within, key=lambda run: float(run["wall"]), default={"loss": None})
            found[at] = {"peer": run["loss"], "lr": run["lr"], "swift": longest["loss"]}
    return found


def seconds_of(asked: argparse.Namespace, row: str, first_peer: bool) -> float:
    """What a row takes, about."""
    kind, amount, *_ = row.split(":")
    if kind == "peer":
        return float(amount) + first_peer * deadline.COMPILES
    return float(asked.minutes) * 60 * (float(amount) if kind == "swift" else 1.0) + deadline.SPARE


def all_rows(asked: argparse.Namespace) -> list[str]:
    peers = [
        f"peer:{seconds}:{factor * deadline.PEER_LR:g}"
        for seconds in PEER_SECONDS
        for factor in deadline.SWEEP
        if asked.peer is not None and seconds <= 60 * asked.minutes
    ]
    return [f"llama:{lr:g}" for lr in asked.rates] + [f"swift:{share:g}" for share in asked.shares] + peers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=tuple(DEPTHS), default="stories")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--row", nargs="+", help="default: all that the record has not")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds of this call")
    parser.add_argument("--peer", type=Path, help="the file of the public trainer, which needs a GPU")
    parser.add_argument("--depth", type=int, help="default: 8, of wikitext 12")
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES))
    parser.add_argument("--shares", type=float, nargs="+", default=list(SHARES))
    parser.add_argument("--parts", default=SWIFT_PARTS["cuda"], help="of the Swift")
    parser.add_argument("--rows", type=int, default=deadline.SCORED, help="held out")
    parser.add_argument("--documents", type=int, default=DOCUMENTS)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--wikitext", type=Path, default=WIKITEXT, help="folder of train.txt.gz")
    parser.add_argument("--hmm", type=Path, help="the run of an HMM of the stream")
    parser.add_argument(
        "--work", type=Path, help="folder of runs, stores and compiled code; default: one that is removed"
    )
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", dest="changes")
    parser.add_argument("--out", type=Path, help="folder of the record; default: results")
    asked = parser.parse_args()
    begun, asked.depth = time.perf_counter(), asked.depth or DEPTHS[asked.task]
    results = record.earlier("time_to_loss", asked.out)
    task = f"{asked.task}, {asked.minutes:g} min, {64 * asked.depth} × {asked.depth}"
    found = results.setdefault(task, {"rows": {}})
    for row in [row for row, run in found["rows"].items() if run.get("parts", asked.parts) != asked.parts]:
        del found["rows"][row]  # of another choice
    with tempfile.TemporaryDirectory() as scratch:
        folder, besides = (asked.work or Path(scratch)).resolve(), list[float]()
        folder.mkdir(parents=True, exist_ok=True)
        for row in asked.row or all_rows(asked):
            if row in found["rows"]:
                continue
            if time.perf_counter() - begun + seconds_of(asked, row, not besides) > asked.limit:
                print(f"{row} is left: {asked.limit:g} s would not suffice")
                continue
            peer = row.startswith("peer:")
            told = peers(asked, row, folder, besides) if peer else ours(asked, row, folder)
            origin = {"commit": record.commit(), "date": time.strftime("%Y-%m-%d"), "changes": asked.changes}
            found["rows"][row] = told | origin
            print(row, json.dumps(found["rows"][row]), flush=True)
            if len({run["heldout"] for run in found["rows"].values()}) > 1:
                sys.exit(f"{row}: its held-out rows are not those of the other rows of the record; it is not kept")
            least = next(
                (run["baselines"].get("oracle", 0.0) for run in found["rows"].values() if "baselines" in run), 0.0
            )
            found = results[task] = {  # anew: another row may have moved the loss to reach
                "rows": found["rows"],
                "least": least,
                **at_target(found["rows"], least),
                "beside": beside_peer(found["rows"]),
            }
            record.write("time_to_loss", {"results": results}, asked.out)
    print(json.dumps({name: value for name, value in found.items() if name != "rows"}))


if __name__ == "__main__":
    main()
