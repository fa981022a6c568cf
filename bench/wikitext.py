"""WikiText-2 by words within a deadline: perplexities of the standard validation and test texts.

    python bench/wikitext.py [--text FOLDER] [--time 15m] [--folder FOLDER] [--set FIELD=VALUE …] [--context TOKENS]
                             [--variant NAME:FIELD=VALUE,FIELD=VALUE … …] [--out FOLDER]

The texts have one `<eos>` per line: 2,088,628, 217,646 and 245,569 tokens, and a vocabulary of 33,278. All fields that
`shoestring best` chooses are chosen; --set changes some, and is recorded. During training, rows are cut from the whole
text, and the first words of a row are predicted from little. The best weights are then scored once more, with a window
that slides: every word of a text after at least --context others, by default all of a row but its last 64. Both
perplexities are recorded, and the seconds of the second apart from the run's. A run that was stopped is taken up where
it stopped if --folder is given again; the seconds of all its sessions count.

With --variant, which may be given several times, a run for each: all at once, on the one device, each with the whole
--time and a share of a GPU's memory. --set then holds for all of them. They share the texts and their store, which are
made before, and each has a folder of its own, with its log. One line of JSON is printed for each as it ends, and all
are kept in a record of their own, wikitext_variants. One that fails says why there, and the others continue.

Wanted: at most 80, then the 65.8 on the test text that AWD-LSTM reached in days (Merity et al. 2017).
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import IO, Any

import record
from variants import as_variant, share_memory

from shoestring.core import recipe_file
from shoestring.core.errors import ShoestringError
from shoestring.core.records import Plan
from shoestring.core.run_folder import RunFolder
from shoestring.core.units import Seconds
from shoestring.probe.machine import pick_device
from shoestring.runs.best import Corpus, recipe_of, values_for
from shoestring.runs.prepare import prepare_recipe
from shoestring.runs.reporter import Reporter
from shoestring.track import read_lines
from shoestring.track.curve import Curve

WIKITEXT = record.ROOT.parent / "shared" / "data" / "wikitext-2"
TOKENS = {"train": 2_088_628, "valid": 217_646, "test": 245_569}
WORDS = 33_278
LENGTH, STRIDE = 512, 64
SHOWN = 2000
"""Characters of a log that the record of a variant that failed has."""
SCORES = {"losses": "loss", "errors": "loss_error", "predictions": "tokens"}


def write_texts(source: Path, folder: Path) -> dict[str, Path]:
    """Each text as one document, and the tokenizer of its words; documents end with `<eos>` by themselves."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    texts, vocabulary = {}, {"<eos>": 0, "<unk>": 1}
    for name, tokens in TOKENS.items():
        lines = gzip.decompress((source / f"{name}.txt.gz").read_bytes()).decode().splitlines()
        words = [word for line in lines for word in (*line.split(), "<eos>")]
        assert len(words) == tokens, f"{name}: {len(words):,} tokens"
        for word in words:
            vocabulary.setdefault(word, len(vocabulary))
        texts[name] = folder / f"{name}.txt"
        texts[name].write_text(" ".join(words[:-1]) + "\n")
        assert len(vocabulary) == WORDS, f"{len(vocabulary):,} words after {name}"
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))  # noqa: S106 (no password)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<eos>"])
    texts["tokenizer"] = folder / "tokenizer.json"
    tokenizer.save(str(texts["tokenizer"]))
    return texts


def write_recipe(asked: argparse.Namespace, changes: list[str], folder: Path, shared: Path, at_once: int = 1) -> Path:
    """The recipe of a run in `folder`; its texts and their store lie in `shared`."""
    texts = {name: shared / f"{name}.txt" for name in TOKENS} | {"tokenizer": shared / "tokenizer.json"}
    if not all(file.is_file() for file in texts.values()):
        texts = write_texts(asked.text, shared)
    tokenizer, seconds = f"file:{texts['tokenizer']}", float(Seconds.parse(asked.time))
    values = values_for(Corpus("wikitext"), seconds, pick_device().type, "wikitext", tokenizer)
    values["run"]["folder"] = (str(folder / "runs"), "")
    values["budget"]["epochs"] = ("auto", "")
    values["data"] = {
        "source": (f"text:{texts['train']}", ""), "tokenizer": (tokenizer, ""),
        "validation": ({name: f"text:{texts[name]}" for name in ("valid", "test")}, ""), "heldout": (0, ""),
        "length": (LENGTH, ""), "folder": (str(shared / "stores"), ""),
        "random_offset": values["data"]["random_offset"],
    }  # fmt: skip
    share_memory(values, at_once)
    if any(change.startswith("model.width") for change in changes):
        del values["model"]["size"]
    if any(change.startswith("model.family") for change in changes):
        del values["model"]["parts"]
    plain, file = folder / "plain.toml", folder / "wikitext.toml"
    plain.write_text(recipe_file.dump(recipe_of(values)))
    all_rows = TOKENS["test"] // recipe_file.load(plain, changes).data.length + 1
    file.write_text(recipe_file.dump(recipe_file.load(plain, [f"evaluate.rows={all_rows}", *changes])))
    return file


def perplexities(evaluation: dict[str, Any]) -> dict[str, Any]:
    """Perplexities and losses of an evaluation, by text."""
    texts = {text["name"]: text for text in evaluation["texts"]}
    found: dict[str, Any] = {f"{name}_perplexity": math.exp(text["loss"]) for name, text in texts.items()}
    return found | {what: {name: text[key] for name, text in texts.items()} for what, key in SCORES.items()}


def context_of(asked: int | None, length: int) -> int:
    """The words before every word that is scored, at least."""
    context = max(0, length - STRIDE) if asked is None else asked
    if not 0 <= context < length:
        raise ValueError(f"--context {context}: must be less than data.length = {length}")
    return context


def score_sliding(run: RunFolder, context: int, length: int, log: IO[str] | None = None) -> dict[str, Any]:
    """Score the best weights of a run on all words of the texts, each after at least `context` others."""
    rows, begun = TOKENS["test"] // (length - context) + 1, time.perf_counter()
    command = [sys.executable, "-m", "shoestring", "evaluate", str(run.path), "--json"]
    command += ["--set", f"evaluate.context={context}", "--set", f"evaluate.rows={rows}"]
    told = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True, check=True).stdout
    seconds = round(time.perf_counter() - begun, 1)
    return {"context": context, **perplexities(json.loads(told)), "seconds": seconds}


def trained(file: Path, changes: list[str], least_context: int | None, log: IO[str] | None = None) -> dict[str, Any]:
    """Train a recipe, or take it up where it stopped, and score its best weights; its words go to `log`."""
    recipe = recipe_file.load(file)
    run, context = RunFolder.of(recipe), context_of(least_context, recipe.data.length)
    command = [sys.executable, "-m", "shoestring", "train", str(file)]
    if subprocess.run(command, stdout=log, stderr=log and subprocess.STDOUT).returncode not in (0, 1):
        raise ChildProcessError("the run was not finished")
    evaluation, done = (json.loads(path.read_text()) for path in (run.evaluation, run.done))
    chosen = json.loads(run.choices.read_text())["chosen"] if run.choices.is_file() else []
    sliding = score_sliding(run, context, recipe.data.length, log)
    found = perplexities(evaluation) | {"sliding": sliding, "baselines": evaluation["baselines"]}
    found |= {name: done[name] for name in ("steps", "tokens", "seconds", "peak_bytes")}
    return found | {"chosen": {choice["field"]: choice["value"] for choice in chosen}, "changes": changes}


def validation_curve(run: RunFolder) -> list[tuple[float, float]]:
    """(epochs, loss on the validation text) of every evaluation of a run."""
    recipe = run.read_recipe()
    epochs = recipe.batch * recipe.data.length / TOKENS["train"]
    return [(round(line.step * epochs, 2), round(line.loss, 5)) for line in Curve.of(read_lines(run.metrics)).heldout]


def variant_recipe(asked: argparse.Namespace, name: str, changes: list[str], folder: Path) -> Path:
    """The recipe of a variant in a folder of its own, with its rows prepared; one that has begun keeps its own."""
    own, told = folder / "variants" / name, asked.changes + changes
    own.mkdir(parents=True, exist_ok=True)
    file, kept = own / "wikitext.toml", own / "changes.json"
    if not file.is_file():
        write_recipe(asked, told, own, folder, len(asked.variants))
        kept.write_text(json.dumps([asked.time, told]))
    elif json.loads(kept.read_text()) != [asked.time, told]:
        raise ValueError(f"{own} holds a run with other fields or another time; choose another name")
    prepare_recipe(recipe_file.load(file), Plan(binding="", share=1.0), Reporter())
    return file


def run_variant(file: Path, changes: list[str], context: int | None) -> dict[str, Any]:
    """What became of a variant; why it failed in place of it, with the end of its log."""
    path = file.with_name("log.txt")
    try:
        with path.open("a") as log:
            found = trained(file, changes, context, log)
        return found | {"validation_curve": validation_curve(RunFolder.of(recipe_file.load(file)))}
    except (ShoestringError, OSError, ValueError, KeyError, subprocess.SubprocessError) as failed:
        return {"changes": changes, "failed": f"{failed}", "log": path.read_text(errors="replace")[-SHOWN:]}


def run_variants(asked: argparse.Namespace, folder: Path) -> None:
    """Train all variants at once, and add each to the record as it ends."""
    results, files = record.earlier("wikitext_variants", asked.out), dict[str, Path]()
    origin = {"commit": record.commit(), "date": time.strftime("%Y-%m-%d"), "time": asked.time}

    def keep(name: str, found: dict[str, Any]) -> None:
        results[f"{asked.time}, {name}"] = origin | {"at_once": len(files)} | found
        print(json.dumps({"variant": name, **found}), flush=True)
        record.write("wikitext_variants", {"results": results}, asked.out)  # what is there, should the machine go

    refused = {}
    for name, changes in asked.variants.items():
        try:
            files[name] = variant_recipe(asked, name, changes, folder)
        except (ShoestringError, OSError, ValueError) as failed:
            refused[name] = {"changes": asked.changes + changes, "failed": f"{failed}"}
    for name, found in refused.items():
        keep(name, found)
    with ThreadPoolExecutor(max(1, len(files))) as pool:
        runs = {
            pool.submit(run_variant, file, asked.changes + asked.variants[name], asked.context): name
            for name, file in files.items()
        }
        for run in as_completed(runs):
            keep(runs[run], run.result())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, default=WIKITEXT, help="folder of train, valid and test.txt.gz")
    parser.add_argument("--time", default="15m")
    parser.add_argument("--folder", type=Path, help="of the run; default: one that is removed")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", dest="changes")
    parser.add_argument("--variant", action="append", default=[], type=as_variant, metavar="NAME:FIELD=VALUE,…")
    parser.add_argument("--context", type=int, help=f"of the sliding window; default: data.length − {STRIDE}")
    parser.add_argument("--out", type=Path, help="folder of the record; default: results")
    asked = parser.parse_args()
    asked.variants = dict(asked.variant)
    if len(asked.variants) < len(asked.variant):
        parser.error("--variant: two have one name")
    with tempfile.TemporaryDirectory() as scratch:
        folder = (asked.folder or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        if asked.variants:
            run_variants(asked, folder)
            return
        file = folder / "wikitext.toml"
        if not file.is_file():
            write_recipe(asked, asked.changes, folder, folder)
        try:
            found = trained(file, asked.changes, asked.context)
        except (ValueError, ChildProcessError) as failed:
            sys.exit(str(failed))
    print(json.dumps(found))
    results = record.earlier("wikitext", asked.out)
    results[asked.time] = {"commit": record.commit(), "date": time.strftime("%Y-%m-%d"), **found}
    record.write("wikitext", {"results": results}, asked.out)


if __name__ == "__main__":
    main()
