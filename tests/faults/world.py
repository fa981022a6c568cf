"""A small world to spoil: the home of `small_home`, with corpora in every format, a tokenizer, a table and a curve."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

from profiles import write_profile
from small_home import GIVEN, SENTENCES, STORE, make_home

from shoestring.core.sweep_folder import SweepFolder, SweepIndex, SweepRun

LINES = ["One day Tom saw a big red ball.", "The cat sat by the door.", "She was very happy to see her mom."] * 20


def build(folder: Path) -> None:
    """Fill `folder`; it takes some seconds."""
    make_home(folder)
    new = GIVEN.replace('"net"', '"new"').replace("words.txt", "corpus.txt")
    (folder / "new.toml").write_text(new)
    write_profile(folder / "new.toml")
    _write_files(folder)
    _write_sweep(folder)
    _write_drift(folder)
    for name, made in (("store", STORE), ("sentences", SENTENCES)):
        (place,) = folder.glob(made)
        shutil.copytree(place, folder / name)
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
    (folder / "story.bin").write_bytes(struct.pack("<7i", 4, 4, 1, 1, 1, 5, 4) + bytes(4 * 160))
    curve = "".join(f"{step},{5 - step / 10}\n" for step in range(1, 20))
    (folder / "curve.csv").write_text("step,loss\n" + curve)


def _write_sweep(folder: Path) -> None:
    """A sweep of one run, the one that there is."""
    sweep = SweepFolder(folder / "sweeps/net")
    run = SweepRun(name="net", folder="../../runs/net", values={})
    SweepIndex(name="net", fields=(), runs=(run,)).write(sweep.index)
    sweep.recipes.mkdir()
    shutil.copy(folder / "runs/net/recipe.toml", sweep.recipe("net"))


def _write_drift(folder: Path) -> None:
    """A run with overlaps."""
    run = folder / "runs/drifted"
    run.mkdir()
    shutil.copy(folder / "runs/net/recipe.toml", run)
    shutil.copy(folder / "runs/net/choices.json", run)
    line = {name + end: 0.5 for name in ("overlap", "overlap_top", "overlap_kl") for end in ("", "_min", "_max")}
    lines = [{"step": step, "heldout_loss": 3.0} | line for step in (1, 2)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))


def _write_tokenizer(path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=90, special_tokens=["<unk>", "</s>"]))
    tokenizer.save(str(path))
