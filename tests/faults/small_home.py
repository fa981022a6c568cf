"""A folder as a user has it: runs of a network and of an HMM, their stores, a law, and every command over them."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn
from unittest import mock

from profiles import write_profile

from shoestring.cli.root import root
from shoestring.core.clock import Clock
from shoestring.core.errors import Fault, ShoestringError
from shoestring.core.recipe_file import load
from shoestring.probe.child import RemoteTrials
from shoestring.runs import sample_texts
from shoestring.runs.reporter import Reporter
from shoestring.runs.runner import run

NET = """
[run]
name = "net"
[budget]
steps = 6
[data]
source = "text:words.txt"
tokenizer = "words:12"
length = 8
packing = "best_fit"
documents = 60
heldout = 0.2
[model]
width = 8
layers = 1
heads = 1
[train]
batch = 4
lr = 3e-4
weight_decay = "auto"
save_every = 3
[evaluate]
rows = 4
every = 0.5
"""
GIVEN = NET.replace('"auto"', "0.1")
"""The same with numbers only."""
HMM = """
[run]
name = "hmm"
[budget]
epochs = 2
[data]
source = "text:words.txt"
tokenizer = "words:12"
length = 8
heldout = 0.2
[hmm]
states = 3
update_every = 8
[evaluate]
rows = 8
every = 0.5
"""
TEXT = "\n".join(
    f"The {('dog', 'cat', 'bird')[i % 3]} {('ran', 'sat')[i % 2]} {'very ' * (i % 5 % 3)}far. A cat came home."
    for i in range(60)
)
TABLE = "params,tokens,loss\n" + "".join(
    f"{n:g},{d:g},{1.7 + 400 / n**0.34 + 410 / d**0.28}\n" for n in (1e7, 3e7, 1e8) for d in (1e8, 1e9, 1e10)
)


class Result(NamedTuple):
    """What a command came to: its error, if any, and all that it said."""

    error: str | None
    said: str


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextlib.contextmanager
def _quick() -> Iterator[None]:
    """Without figures, whose library takes seconds, and without measuring, which takes a process; with a text after
    every evaluation, however slow the machine is."""

    def refuse(*_: object) -> NoReturn:
        raise Fault("nothing is measured here")

    before = sys.modules.get("vl_convert", refuse)
    sys.modules["vl_convert"] = None  # type: ignore[assignment]
    try:
        with mock.patch.object(RemoteTrials, "ask", refuse), mock.patch.object(sample_texts, "TEXTS_SECONDS", 1e9):
            yield
    finally:
        del sys.modules["vl_convert"]
        if before is not refuse:
            sys.modules["vl_convert"] = before  # type: ignore[assignment]


def command(home: Path, arguments: Sequence[str]) -> Result:
    """Run `shoestring …` in this process. Any error but those for people is raised: it would be a bug."""
    said = io.StringIO()
    arguments = [str(next(home.glob(each)).relative_to(home)) if "*" in each else each for each in arguments]
    with inside(home), _quick(), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            root.main(arguments, prog_name="shoestring", standalone_mode=False)
        except ShoestringError as error:
            return Result(str(error), said.getvalue())
    return Result(None, said.getvalue())


def make_home(home: Path) -> Path:
    """The folder; it takes some seconds."""
    home.mkdir()
    (home / "words.txt").write_text(TEXT)
    (home / "table.csv").write_text(TABLE)
    for name, recipe in (("net", NET), ("hmm", HMM)):
        (home / f"{name}.toml").write_text(recipe)
        with inside(home), _quick():
            write_profile(Path(f"{name}.toml"))
            assert run(load(f"{name}.toml"), Reporter(), Clock(0.0)) is not None
    (home / "init.toml").write_text(NET.replace('"net"', '"init"').replace("[model]", '[model]\ninit = "runs/net"'))
    with inside(home):
        write_profile(Path("init.toml"))
    for arguments in (LAW, EXPORT):
        assert command(home, arguments).error is None
    return home


def copy_home(home: Path, target: Path, finished: bool = True) -> Path:
    """A copy, in the place of an earlier one; if not `finished`, its runs have their last steps still before them."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(home, target, symlinks=True)
    if not finished:
        for done in target.glob("runs/*/DONE"):
            done.unlink()
            sorted((done.parent / "checkpoints").iterdir())[-1].unlink()
    return target


LAW = ("law", "fit", "table.csv", "--params", "params", "--tokens", "tokens", "--loss", "loss", "--bootstraps", "0")
EXPORT = ("export", "runs/net", "exported")
STORE, SENTENCES = "stores/text-*", "stores/sentences-*"
COMMANDS = (
    ("evaluate", "runs/net"),
    ("evaluate", "runs/net", "--checkpoint", "3"),
    ("generate", "runs/net", "--max-tokens", "2"),
    ("export", "runs/net", "again"),
    ("report", "runs/net"),
    ("train", "net.toml"),
    ("train", "init.toml"),
    ("plan", "net.toml"),
    ("prepare", "net.toml"),
    ("data", "check", STORE),
    ("data", "show", STORE, "--length", "8", "--packing", "best_fit"),
    ("evaluate", "runs/hmm"),
    ("generate", "runs/hmm", "--max-tokens", "2"),
    ("report", "runs/hmm"),
    ("train", "hmm.toml"),
    ("prepare", "hmm.toml"),
    ("data", "check", SENTENCES),
    ("data", "show", SENTENCES),
    ("hmm", "show", "runs/hmm"),
    ("hmm", "score", "runs/hmm"),
    ("hmm", "sample", "runs/hmm", "--rows", "4", "--length", "4", "--heldout", "2", "--out", "sampled"),
    ("law", "fit", "runs/net", "--bootstraps", "0"),
    ("law", "compare", "runs/net", "runs/net"),
    ("law", "optimum", "--law", "law.json", "--flops", "1e18"),
    ("law", "predict", "--law", "law.json", "--params", "1e7", "--tokens", "1e9"),
    LAW,
)
"""Every command that opens a file of the folder."""
