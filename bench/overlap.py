"""Does a model drift faster when it is tuned on Japanese than on English? Two real bases, three seeds.

    python bench/overlap.py [--seeds 3] [--at-once 1] [--base-time 5m] [--only stories] [--data FOLDER]
                            [--folder FOLDER]

The bases: the story model of llama2.c (260 k parameters, 512 pieces, TinyStories), and a Llama that is trained here for
some minutes on English Wikipedia paragraphs with the tokenizer of Qwen2.5. Both are tuned on other English paragraphs,
and on Japanese ones, with the same fingerprints and settings. The text lies in shared/data beside the repository, or in
--data. The second base needs a GPU; on a CPU give --only stories: five minutes are 52 steps there, after which it
predicts worse than a unigram.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import record

DATA = record.ROOT.parent / "shared" / "data"
RECIPE = record.ROOT / "recipes" / "overlap"
BASE_LINES = 4000
"""First paragraphs of English, on which the second base is trained; the others are for tuning."""
SHARED = {"evaluate.rows": "32", "data.heldout": "0.05", "train.precision": "fp32"}
STORIES = {
    "data.length": "64", "model.width": "64", "model.hidden": "172", "model.layers": "5", "model.heads": "8",
    "model.kv_heads": "4", "train.batch": "8", "train.lr": "3e-4", "budget.steps": "100",
}  # fmt: skip
WIKIPEDIA = {
    "data.length": "64", "model.width": "32", "model.layers": "3", "model.heads": "4", "train.batch": "4",
    "train.lr": "1e-3", "budget.steps": "40",
}  # fmt: skip
WIKIPEDIA_GPU = WIKIPEDIA | {
    "model.width": "256", "train.batch": "16", "train.lr": "3e-5", "budget.steps": "100",
}  # fmt: skip
LANGUAGES = {"english": "en", "japanese": "ja"}


def shoestring(*arguments: str, cwd: Path) -> None:
    begun = time.perf_counter()
    command = [sys.executable, "-m", "shoestring", *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    print(f"{' '.join(arguments[:2])}: {time.perf_counter() - begun:.0f} s", flush=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")


def sets(fields: dict[str, str]) -> list[str]:
    return [part for name, value in fields.items() for part in ("--set", f"{name}={value}")]


def write_texts(folder: Path, data: Path) -> None:
    """base.txt, en.txt and ja.txt, a paragraph per line."""
    for name in ("en", "ja"):
        with gzip.open(data / "wikipedia" / f"{name}_paragraphs.txt.gz", "rt", encoding="utf-8") as file:
            lines = file.readlines()
        if name == "en":
            (folder / "base.txt").write_text("".join(lines[:BASE_LINES]))
            lines = lines[BASE_LINES:]
        (folder / f"{name}.txt").write_text("".join(lines))


def make_stories(folder: Path, data: Path) -> tuple[str, dict[str, str]]:
    """The story model as a folder, and the fields of runs that begin with it."""
    place = data / "models" / "stories260K"
    shoestring("convert", str(place / "stories260K.bin"), "stories", "--pieces", str(place / "tok512.bin"), cwd=folder)
    return "stories", STORIES | {"model.init": "stories", "data.tokenizer": "file:stories/tokenizer.json"}


def make_wikipedia(folder: Path, data: Path, took: str) -> tuple[str, dict[str, str]]:
    """The run of the second base, and the fields of runs that begin with it."""
    import torch

    fields = WIKIPEDIA_GPU if torch.cuda.is_available() else WIKIPEDIA
    (folder / "qwen2.5").symlink_to(data / "tokenizers" / "qwen2.5")
    tokenizer = {"data.tokenizer": "file:qwen2.5"}
    own = {"run.name": "wikipedia", "model.init": "", "evaluate.overlap": "", "data.source": "text:base.txt"}
    own |= {"budget.steps": "", "budget.time": took, "train.schedule": "cosine", "train.lr": "3e-3", "train.batch": "8"}
    own |= {"train.lr": "1e-3", "train.batch": "32", "train.warmup": "0.05"} if fields is WIKIPEDIA_GPU else {}
    shoestring("train", str(RECIPE / "english.toml"), *sets(SHARED | fields | tokenizer | own), cwd=folder)
    return "runs/wikipedia", fields | tokenizer | {"model.init": "runs/wikipedia"}


def measured(
    name: str, base: str, fields: dict[str, str], seeds: int, at_once: int, folder: Path
) -> Iterator[dict[str, Any]]:
    """Tune a base on both languages, with every seed; after each, the summary, and the curves of each language."""
    shoestring("fingerprints", base, "--out", f"{name}.json", "--length", "64", cwd=folder)
    runs: dict[str, list[str]] = {language: [] for language in LANGUAGES}

    def tune(language: str, seed: int) -> str:
        own = {"run.name": f"{name}-{language}" + (f"-{seed}" if seed else ""), "run.seed": str(seed)}
        own |= {"data.source": f"text:{LANGUAGES[language]}.txt", "evaluate.overlap": f"{name}.json"}
        shoestring("train", str(RECIPE / f"{language}.toml"), *sets(SHARED | fields | own), cwd=folder)
        return f"runs/{own['run.name']}"

    pairs = [(language, seed) for seed in range(seeds) for language in LANGUAGES]
    with ThreadPoolExecutor(at_once) as pool:
        for (language, seed), run in zip(pairs, pool.map(lambda pair: tune(*pair), pairs), strict=True):
            runs[language].append(run)
            if language == pairs[-1][0]:
                each, out = [run for known in runs.values() for run in known], f"{name}-drift-{seed}"
                shoestring("drift", *each, "--out", out, cwd=folder)
                summary = json.loads((folder / out / "summary.json").read_text())
                prints = json.loads((folder / f"{name}.json").read_text())
                curves = {language: [curve(folder / run) for run in known] for language, known in runs.items()}
                shown = {"k": prints["k"], "vocabulary": prints["vocabulary"], "fields": {**SHARED, **fields}}
                yield {**summary, **shown, "curves": curves}


def curve(run: Path) -> list[dict[str, float]]:
    """Step, overlaps, divergence and held-out loss of a run."""
    names = ("step", "overlap", "overlap_top", "overlap_kl", "heldout_loss")
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [{name: line[name] for name in names if name in line} for line in lines if "overlap" in line]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=1, help="runs that are tuned at the same time")
    parser.add_argument("--base-time", default="5m", help="of the second base's training")
    parser.add_argument("--only", choices=("stories", "wikipedia"))
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the text, the tokenizer and the story model")
    parser.add_argument("--folder", type=Path, help="keep the runs here; default: a temporary folder")
    parser.add_argument("--out", type=Path, help="folder of the record; default: results")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (given.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        data = given.data.resolve()
        write_texts(folder, data)
        results = record.earlier("overlap", given.out) if given.only else {}
        if given.only != "wikipedia":
            for found in measured("stories", *make_stories(folder, data), given.seeds, given.at_once, folder):
                results["stories"] = found
                record.write("overlap", {"results": results}, given.out)
        if given.only != "stories":
            base_fields = make_wikipedia(folder, data, given.base_time)
            base = folder / "runs/wikipedia"
            done, evaluation = (json.loads((base / name).read_text()) for name in ("DONE", "evaluation.json"))
            results["base"] = {"steps": done["steps"], "seconds": done["seconds"], "loss": evaluation["loss"]}
            results["base"]["baselines"] = evaluation["baselines"]
            for found in measured("wikipedia", *base_fields, given.seeds, given.at_once, folder):
                results["wikipedia"] = found
                record.write("overlap", {"results": results}, given.out)


if __name__ == "__main__":
    main()
