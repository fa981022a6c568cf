"""A store that another process is making is awaited; one that this process holds is not."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import start

from shoestring.core.errors import InUse
from shoestring.core.files import locked
from shoestring.core.recipe_file import load
from shoestring.data.store.prepare import store_folder
from shoestring.data.store.store import StorePaths
from shoestring.runs.prepare import prepare_recipe
from shoestring.runs.reporter import Reporter

HOLD = """
import sys, time
from pathlib import Path
from shoestring.core.files import locked
with locked(Path(sys.argv[1]), "the store"):
    print("held", flush=True)
    time.sleep(1.0)
"""


class Said(Reporter):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


def lock_of(tiny: Path) -> tuple[Path, Path]:
    """The folder of the store of a recipe, and its lock."""
    data = load(tiny).data
    paths = StorePaths(store_folder(data, load(tiny).run.seed, data.documents))
    return paths.folder, paths.lock((0, 1))


def test_a_store_that_another_process_makes_is_awaited(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tiny.parent)
    folder, lock = lock_of(tiny)
    reporter = Said()
    with subprocess.Popen([sys.executable, "-c", HOLD, str(lock)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        store = prepare_recipe(load(tiny), None, reporter)
    assert store.paths.folder == folder and other.returncode == 0
    (line,) = reporter.lines
    assert line.startswith(f"the store {folder} is being made by process {other.pid} on ")
    assert line.endswith(": waiting for it")


def test_a_process_does_not_wait_for_itself(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tiny.parent)
    _, lock = lock_of(tiny)
    with locked(lock, "the store"), pytest.raises(InUse, match="is in use by process"):
        prepare_recipe(load(tiny), None, Said())


def test_the_error_crosses_a_pipe() -> None:
    error = pickle.loads(pickle.dumps(InUse("the store", "process 5 on here", True)))
    assert (error.what, error.holder, error.own) == ("the store", "process 5 on here", True)
    assert str(error) == "the store is in use by process 5 on here; wait for it, or stop it first"


def test_two_runs_on_one_corpus_may_start_at_once(tiny: Path, tmp_path: Path) -> None:
    runs = [start("train", tiny, "--set", f"run.name=run{i}", cwd=tmp_path) for i in range(2)]
    for i, one in enumerate(runs):
        _, err = one.communicate(timeout=120)
        assert one.returncode == 0, err
        assert (tmp_path / "runs" / f"run{i}" / "DONE").is_file()
