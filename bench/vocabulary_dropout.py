"""Dropout of what the output reads and of words, which `best` chooses by how large a table of all tokens is for a text.

    python bench/vocabulary_dropout.py [--seeds 2] [--text FOLDER] [--keep FOLDER] [--out FOLDER]

Runs of a fixed number of steps, with and without both, in pieces of texts of several sizes: the same network, and else
what `best` chooses for it. The ratio is the parameters of a table for each position of the text.
"""

from __future__ import annotations

import argparse
import gzip
import tempfile
from pathlib import Path
from typing import Any

import record

import shoestring
from shoestring.core.records import Plan
from shoestring.core.run_folder import RunFolder

DATA = record.ROOT.parent / "shared" / "data"
SOURCES = {"Shakespeare": "tinyshakespeare/input.txt.gz", "stories": "tinystories/stories.txt.gz"}
SIZES = {36_000: (400, 8, 0.15), 150_000: (900, 12, 0.08)}
"""Bytes of text; steps, rows of a step and the share that is held out."""
PIECES, WIDTH, LENGTH = 512, 96, 64
RATES = {"without": (0.0, 0.0), "with": (0.3, 0.1)}
"""Dropout of what the output reads, and of words."""


def write_text(source: Path, size: int, file: Path) -> Path:
    """The beginning of a text, a document per line."""
    with gzip.open(source, "rt", encoding="utf-8") as opened:
        text = opened.read(size)
    ends = "<|endoftext|>" if "<|endoftext|>" in text else "\n\n"
    file.write_text("".join(" ".join(part.split()) + "\n" for part in text.split(ends) if part.strip()))
    return file


def recipe_of(text: Path, size: int, rates: tuple[float, float], seed: int, folder: Path) -> dict[str, Any]:
    (steps, rows, heldout), (output, words) = SIZES[size], rates
    return {
        "run": {"name": f"{text.stem}-{output:g}-{seed}", "seed": seed, "folder": str(folder / "runs")},
        "budget": {"steps": steps},
        "data": {
            "source": f"text:{text}", "tokenizer": f"bpe:{PIECES}", "length": LENGTH, "heldout": heldout,
            "folder": str(folder / "stores"),
        },
        "model": {
            "family": "swift", "parts": "qk_norm, gains, zero_outputs, value_embeddings, scales", "tied": False,
            "width": WIDTH, "layers": 2, "heads": 3, "dropout": 0.3, "output_dropout": output, "word_dropout": words,
        },
        "train": {
            "optimizer": "muon", "schedule": "cooldown", "cooldown": 0.2, "batch": rows, "lr": 0.013,
            "weight_decay": 0.7, "warmup": 0.05, "beta2": "auto",
        },
        "evaluate": {"rows": 400, "prompts": []},
    }  # fmt: skip


def compared(name: str, size: int, seeds: int, data: Path, folder: Path) -> dict[str, Any]:
    """The held-out losses of each seed, by whether there is dropout of tokens."""
    text = write_text(data / SOURCES[name], size, folder / f"{name}-{size}.txt")
    losses: dict[str, list[float]] = {way: [] for way in RATES}
    for seed in range(seeds):
        for way, rates in RATES.items():
            run = shoestring.train(recipe_of(text, size, rates, seed, folder), show=False)
            losses[way].append(run.evaluation.loss)
            plan = Plan.read(RunFolder(run.folder.path).plan)
            print(name, size, seed, way, round(run.evaluation.loss, 4), flush=True)
    assert plan.epochs and plan.samples, "the text has an end"
    unique = plan.samples * LENGTH / plan.epochs
    return {
        "text": name, "bytes": size, "steps": SIZES[size][0], "epochs": plan.epochs,
        "ratio": PIECES * WIDTH / unique, "losses": losses,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--text", type=Path, default=DATA, help="folder of the texts")
    parser.add_argument("--keep", type=Path, help="where the runs are kept; those that are finished there are taken")
    parser.add_argument("--out", type=Path, help="folder of the record; default: results")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (asked.keep or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        found = [compared(name, size, asked.seeds, asked.text, folder) for size in SIZES for name in SOURCES]
    record.write("vocabulary_dropout", {"texts": found}, asked.out)


if __name__ == "__main__":
    main()
