"""A small world to spoil: recipes, corpora, tokenizers, a store, runs of a network and an HMM, and a law."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from conftest import start
from profiles import write_profile

TINY = """
[run]
name = "tiny"
[budget]
steps = 4
[data]
source = "stories"
tokenizer = "words:50"
length = 16
documents = 60
heldout = 0.1
[model]
width = 8
layers = 1
heads = 2
[train]
batch = 4
lr = 3e-3
[evaluate]
rows = 4
every = 0.5
"""

HMM = """
[run]
name = "hmm"
[budget]
epochs = 2
[data]
source = "stories"
tokenizer = "words:300"
length = 10
documents = 100
heldout = 0.2
[hmm]
states = 3
[evaluate]
rows = 10
"""

LINES = ["One day Tom saw a big red ball.", "The cat sat by the door.", "She was very happy to see her mom."] * 20


def build(folder: Path) -> None:
    """Fill `folder`: two short runs in processes of their own, and files."""
    for name, text in (("tiny", TINY), ("hmm", HMM)):
        recipe = folder / f"{name}.toml"
        recipe.write_text(text)
        write_profile(recipe)
    (folder / "new.toml").write_text(TINY.replace('"tiny"', '"new"').replace('"stories"', '"text:corpus.txt"'))
    write_profile(folder / "new.toml")
    running = [start(*command, cwd=folder) for command in (("train", "tiny.toml"), ("hmm", "fit", "hmm.toml"))]
    _write_files(folder)
    for process in running:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, (out, err)
    (store,) = folder.glob("stores/stories-*")
    shutil.copytree(store, folder / "store")
    (rows,) = folder.glob("stores/sentences-*")
    shutil.copytree(rows, folder / "sentences")
    fitted = start("law", "fit", "table.csv", *TABLE, "--bootstraps", "8", cwd=folder)
    out, err = fitted.communicate(timeout=120)
    assert fitted.returncode == 0, (out, err)
    for page in folder.rglob("*.html"):
        page.unlink()


TABLE = ("--params", "params", "--tokens", "tokens", "--loss", "loss")
"""The columns of table.csv."""


def _write_files(folder: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    (folder / "corpus.txt").write_text("\n".join(LINES) + "\n")
    (folder / "corpus.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in LINES))
    (folder / "corpus.csv").write_text("text\n" + "".join(f'"{line}"\n' for line in LINES))
    parquet.write_table(pyarrow.table({"text": LINES}), folder / "corpus.parquet")
    _write_tokenizer(folder / "subwords.json")
    rows = [
        (params, tokens, 1 + 30 / params**0.3 + 50 / tokens**0.35)
        for params in (1e6, 3e6, 1e7, 3e7)
        for tokens in (1e8, 3e8, 1e9)
    ]
    text = "".join(f"{params:g},{tokens:g},{loss}\n" for params, tokens, loss in rows)
    (folder / "table.csv").write_text("params,tokens,loss\n" + text)
    curve = "".join(f"{step},{5 - step / 10}\n" for step in range(1, 20))
    (folder / "curve.csv").write_text("step,loss\n" + curve)


def _write_tokenizer(path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=90, special_tokens=["<unk>", "</s>"]))
    tokenizer.save(str(path))
