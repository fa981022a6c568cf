"""How often `shoestring law compare` takes equal runs for different: pairs of kinds that differ in their seeds alone.

    python bench/same.py [--pairs 40] [--seeds 3] [--steps 200] [--only I/N] [--runs FOLDER] [--out FOLDER]

The runs are of small networks on one text, so that all are scored on the same rows; a quarter of the pairs each with
AdamW, with Muon, with a cool-down, and of GPT-2. A pair is two times --seeds runs, drawn from 20 of its kind. The text
is the real stories beside the project, or else those built in. With --only I/N, part I of N is trained and nothing
recorded; --runs FOLDER keeps runs, and takes those that are finished there. Wanted: "They differ" in at most 5 % of the
pairs. Single runs are compared by the noise of their evaluations alone; how often they lie beyond that is recorded too.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import math
import random
import statistics
import tempfile
from pathlib import Path
from typing import Any

import record

import shoestring
from shoestring.core.sections import Data
from shoestring.data.read.corpora import open_source
from shoestring.data.read.documents import Skipped
from shoestring.data.store.work_units import divide
from shoestring.studies.effect import difference
from shoestring.studies.run_results import compare, read_trained

STORIES = record.ROOT.parent / "shared" / "data" / "tinystories" / "stories.txt.gz"
TEXT_BYTES = 4_000_000
OF_A_KIND = 20
"""Runs."""
KINDS: dict[str, dict[str, dict[str, Any]]] = {
    "adamw": {"train": {"lr": 3e-3}},
    "muon": {"train": {"optimizer": "muon", "lr": 1e-2}},
    "cooldown": {"train": {"lr": 3e-3, "schedule": "cooldown"}},
    "gpt2": {"model": {"family": "gpt2"}, "train": {"lr": 2e-3}},
}


def write_text(path: Path) -> None:
    """One document per line."""
    if STORIES.is_file():
        with gzip.open(STORIES, "rt") as file:
            path.write_text(file.read(TEXT_BYTES))
        return
    units = divide(open_source(Data(tokenizer="bytes"), 0), 6000)
    texts = (document.text for unit in units for document in unit.documents(Skipped()))
    path.write_text("\n".join(" ".join(text.split()) for text in texts))


def recipe(kind: str, seed: int, steps: int, folder: Path) -> dict[str, Any]:
    base: dict[str, dict[str, Any]] = {
        "run": {"name": f"{kind}-{seed:03d}", "seed": seed, "folder": str(folder / "runs")},
        "budget": {"steps": steps},
        "data": {"source": f"text:{folder / 'text.txt'}", "tokenizer": "bytes", "length": 64, "heldout": 0.05,
                 "folder": str(folder / "stores")},
        "model": {"family": "llama", "width": 64, "layers": 2, "heads": 2},
        "train": {"batch": 16},
        "evaluate": {"every": 0.05, "rows": 128},
    }  # fmt: skip
    return {section: fields | KINDS[kind].get(section, {}) for section, fields in base.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--only", default="0/1", metavar="I/N")
    parser.add_argument("--runs", type=Path, help="keep the runs in this folder")
    parser.add_argument("--out", type=Path, help="folder of the record; default: results")
    asked = parser.parse_args()
    part, parts = map(int, asked.only.split("/"))
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.runs or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "text.txt").is_file():
            write_text(folder / "text.txt")
        each = math.ceil(asked.pairs / len(KINDS))
        wanted = list(itertools.product(KINDS, range(OF_A_KIND)))[part::parts]
        runs: dict[str, list[Path]] = {}
        for kind, seed in wanted:
            runs.setdefault(kind, []).append(shoestring.train(recipe(kind, seed, asked.steps, folder), show=False).path)
            print(kind, seed, flush=True)
        if parts > 1:
            return
        found = {kind: summary(paths, each, asked.seeds) for kind, paths in runs.items()}
    pairs = sum(told["pairs"] for told in found.values())
    different = sum(told["different"] for told in found.values())
    for kind, told in found.items():
        print(
            f"{kind}: {told['different']} of {told['pairs']} pairs differ, losses {told['mean']:.3f} ± "
            f"{told['deviation']:.4f}; of single runs {told['beyond']:.0%} lie beyond their noise"
        )
    print(f"{different} of {pairs} pairs of equal runs are taken for different, {asked.seeds} seeds each")
    told = {"pairs": pairs, "different": different, "seeds": asked.seeds, "steps": asked.steps, "kinds": found}
    record.write("same", told, asked.out)


def summary(paths: list[Path], pairs: int, seeds: int) -> dict[str, Any]:
    trained, draw, different = [read_trained(path, "total") for path in paths], random.Random(0), 0
    for _ in range(pairs):
        drawn = [run.scored for run in draw.sample(trained, 2 * seeds) if run.scored is not None]
        found = difference(drawn[:seeds], drawn[seeds:])
        assert found is not None, "there are several seeds"
        different += found.different
    singles = [compare(*pair) for pair in itertools.combinations(trained, 2)]
    losses = [run.loss for run in trained]
    return {
        "pairs": pairs,
        "different": different,
        "beyond": statistics.mean("beyond the noise" in pair.verdict for pair in singles),
        "mean": statistics.mean(losses),
        "deviation": statistics.stdev(losses),
        "losses": losses,
    }


if __name__ == "__main__":
    main()
