"""Which tokenizer a deadline wants: nats per byte of the same held-out text, by tokenizer.

    python bench/pieces.py TEXT [--time 60] [--tokenizers bytes:512 bpe:1024:256 …] [--seeds 1] [--at-once]
                           [--set FIELD=VALUE …] [--work FOLDER] [--out FOLDER]

A run for each is what `shoestring best TEXT --time …` trains, but with that tokenizer and rows of so many tokens, as in
bpe:1024:256; all else is chosen for it. Every run is a command from its start to its end, one after the other or, with
--at-once, together on one GPU, each with a share of it. The same 5 % of the documents are held out in all of them.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import record
from deadline import ours
from variants import give_shape, share_memory

from shoestring.core import recipe_file
from shoestring.core.recipe import Recipe
from shoestring.core.run_folder import RunFolder
from shoestring.probe.machine import pick_device
from shoestring.runs.best import BYTES_PER_PIECE, recipe_of, values_for
from shoestring.runs.look_at import look_at

ROW_BYTES = 1 << 18
"""Bytes of text that are scored, about."""


def recipe_for(asked: argparse.Namespace, tokenizer: str, seed: int, folder: Path) -> Path:
    """The recipe of a run; its store has the tokenizer's name."""
    spec, _, length = tokenizer.rpartition(":")
    device, name = pick_device().type, f"{spec.replace(':', '')}x{length}-{seed}"
    values = values_for(look_at(str(asked.text.resolve())), asked.time, device, name, spec)
    values["run"] |= {"seed": (seed, ""), "folder": (str(folder / name), "")}
    values["data"] |= {
        "length": (int(length), ""), "folder": (str(folder / name / "stores"), ""),
    }  # fmt: skip
    give_shape(values, asked.changes)
    rows = math.ceil(asked.scored / int(length) / (1 if spec == "bytes" else BYTES_PER_PIECE))
    values.setdefault("evaluate", {})["rows"] = (rows, "")
    share_memory(values, len(asked.tokenizers) * asked.seeds if asked.at_once else 1)
    recipe: Recipe = recipe_of(values)
    file = folder / f"{name}.toml"
    file.write_text(recipe_file.dump(recipe))
    file.write_text(recipe_file.dump(recipe_file.load(file, asked.changes)))
    return file


def measured(file: Path, folder: Path) -> dict[str, Any]:
    found = ours(file, folder)
    run = RunFolder.of(recipe_file.load(file))
    evaluation = json.loads(run.evaluation.read_text())
    told = {name: evaluation[name] for name in ("bits_per_byte", "bits_per_byte_error")}
    return {"nats_per_byte": math.log(2) * told["bits_per_byte"], **told, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--time", type=float, default=60.0, help="seconds")
    parser.add_argument("--tokenizers", nargs="+", default=["bytes:512", "bpe:1024:256", "bpe:4096:256"])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--scored", type=int, default=ROW_BYTES, help="bytes of text that are scored, about")
    parser.add_argument("--at-once", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", dest="changes")
    parser.add_argument("--work", type=Path, help="folder of the runs; default: one that is removed")
    parser.add_argument("--out", type=Path, help="folder of the record; default: results")
    asked = parser.parse_args()
    results = record.earlier("pieces", asked.out)
    origin = {
        "commit": record.commit(),
        "date": time.strftime("%Y-%m-%d"),
        "time": asked.time,
        "changes": asked.changes,
    }
    with tempfile.TemporaryDirectory() as scratch:
        folder = (asked.work or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        wanted = [(each, seed) for seed in range(asked.seeds) for each in asked.tokenizers]
        files = [recipe_for(asked, *each, folder) for each in wanted]

        def run(index: int) -> None:
            tokenizer, seed = wanted[index]
            found = measured(files[index], folder) | {"at_once": len(files) if asked.at_once else 1}
            results[f"{asked.text.name}, {asked.time:g}s, {tokenizer}, seed {seed}"] = origin | found
            print(
                f"{tokenizer}, seed {seed}: {found['nats_per_byte']:.4f} nats per byte", json.dumps(found), flush=True
            )
            record.write("pieces", {"results": results}, asked.out)

        with ThreadPoolExecutor(len(files) if asked.at_once else 1) as pool:
            list(pool.map(run, range(len(files))))


if __name__ == "__main__":
    main()
