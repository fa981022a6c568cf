"""WikiText-2 by words within a deadline: perplexities of the standard validation and test texts.

    python bench/wikitext.py [--text FOLDER] [--time 15m] [--folder FOLDER] [--set FIELD=VALUE …] [--context TOKENS]
                             [--out FOLDER]

The texts have one `<eos>` per line: 2,088,628, 217,646 and 245,569 tokens, and a vocabulary of 33,278. All fields that
`shoestring best` chooses are chosen; --set changes some, and is recorded. During training, rows are cut from the whole
text, and the first words of a row are predicted from little. The best weights are then scored once more, with a window
that slides: every word of a text after at least --context others, by default all of a row but its last 64. Both
perplexities are recorded, and the seconds of the second apart from the run's. A run that was stopped is taken up where
it stopped if --folder is given again; the seconds of all its sessions count.
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
from pathlib import Path
from typing import Any

import record

from shoestring.core import recipe_file
from shoestring.core.run_folder import RunFolder
from shoestring.core.units import Seconds
from shoestring.probe.machine import pick_device
from shoestring.runs.best import Corpus, recipe_of, values_for

WIKITEXT = record.ROOT.parent / "shared" / "data" / "wikitext-2"
TOKENS = {"train": 2_088_628, "valid": 217_646, "test": 245_569}
WORDS = 33_278
LENGTH, STRIDE = 256, 64
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


def write_recipe(asked: argparse.Namespace, folder: Path) -> Path:
    texts = write_texts(asked.text, folder)
    values = values_for(Corpus("wikitext"), float(Seconds.parse(asked.time)), pick_device().type, "wikitext")
    values["run"]["folder"] = (str(folder / "runs"), "")
    values["budget"]["epochs"] = ("auto", "")
    values["data"] = {
        "source": (f"text:{texts['train']}", ""), "tokenizer": (f"file:{texts['tokenizer']}", ""),
        "validation": ({name: f"text:{texts[name]}" for name in ("valid", "test")}, ""), "heldout": (0, ""),
        "length": (LENGTH, ""), "folder": (str(folder / "stores"), ""),
    }  # fmt: skip
    values.setdefault("evaluate", {})["rows"] = (TOKENS["test"] // LENGTH + 1, "")
    if any(change.startswith("model.width") for change in asked.changes):
        del values["model"]["size"]
    file = folder / "wikitext.toml"
    file.write_text(recipe_file.dump(recipe_of(values)))
    file.write_text(recipe_file.dump(recipe_file.load(file, asked.changes)))
    return file


def perplexities(evaluation: dict[str, Any]) -> dict[str, Any]:
    """Perplexities and losses of an evaluation, by text."""
    texts = {text["name"]: text for text in evaluation["texts"]}
    found: dict[str, Any] = {f"{name}_perplexity": math.exp(text["loss"]) for name, text in texts.items()}
    return found | {what: {name: text[key] for name, text in texts.items()} for what, key in SCORES.items()}


def score_sliding(run: RunFolder, context: int, length: int) -> dict[str, Any]:
    """Score the best weights of a run on all words of the texts, each after at least `context` others."""
    rows, begun = TOKENS["test"] // (length - context) + 1, time.perf_counter()
    command = [sys.executable, "-m", "shoestring", "evaluate", str(run.path), "--json"]
    command += ["--set", f"evaluate.context={context}", "--set", f"evaluate.rows={rows}"]
    told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    seconds = round(time.perf_counter() - begun, 1)
    return {"context": context, **perplexities(json.loads(told)), "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, default=WIKITEXT, help="folder of train, valid and test.txt.gz")
    parser.add_argument("--time", default="15m")
    parser.add_argument("--folder", type=Path, help="of the run; default: one that is removed")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", dest="changes")
    parser.add_argument("--context", type=int, help=f"of the sliding window; default: data.length − {STRIDE}")
    parser.add_argument("--out", type=Path, help="folder of the record; default: results")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = asked.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "wikitext.toml"
        if not file.is_file():
            write_recipe(asked, folder)
        recipe = recipe_file.load(file)
        run, length = RunFolder.of(recipe), recipe.data.length
        context = max(0, length - STRIDE) if asked.context is None else asked.context
        if not 0 <= context < length:
            parser.error(f"--context {context}: must be less than data.length = {length}")
        command = [sys.executable, "-m", "shoestring", "train", str(file)]
        if subprocess.run(command).returncode not in (0, 1):
            sys.exit("the run was not finished")
        evaluation, done = (json.loads(path.read_text()) for path in (run.evaluation, run.done))
        chosen = json.loads(run.choices.read_text())["chosen"]
        sliding = score_sliding(run, context, length)
    found = perplexities(evaluation) | {"sliding": sliding, "baselines": evaluation["baselines"]}
    found |= {name: done[name] for name in ("steps", "tokens", "seconds", "peak_bytes")}
    found |= {"chosen": {choice["field"]: choice["value"] for choice in chosen}, "changes": asked.changes}
    print(json.dumps(found))
    results = record.earlier("wikitext", asked.out)
    results[asked.time] = {"commit": record.commit(), "date": time.strftime("%Y-%m-%d"), **found}
    record.write("wikitext", {"results": results}, asked.out)


if __name__ == "__main__":
    main()
