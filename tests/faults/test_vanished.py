"""A run folder, or a part of it, that is gone: said in one line, and nothing is made up for it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from profiles import write_profile

from shoestring.core import recipe_file
from shoestring.core.clock import Clock
from shoestring.core.errors import RunError, StorageError
from shoestring.core.run_folder import RunFolder
from shoestring.core.seal import SEAL
from shoestring.runs.reporter import Reporter, TrainingProgress
from shoestring.runs.runner import run
from shoestring.storage.tensor_file import Arrays
from shoestring.training import checkpoint


class Interfering(Reporter):
    """Does something after some step."""

    def __init__(self, act: Callable[[], object], step: int = 20):
        self._act, self._step = act, step

    def training(self, progress: TrainingProgress) -> None:
        if progress.done == self._step:
            self._act()


def begin(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """The folder of the run in the current folder, which has a profile."""
    monkeypatch.chdir(tiny.parent)
    write_profile(tiny)
    return RunFolder.of(recipe_file.load(tiny))


def train(tiny: Path, reporter: Reporter) -> object:
    return run(recipe_file.load(tiny), reporter, Clock())


def stop() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("then", ["nothing", "another"])
def test_a_run_whose_folder_vanished_ends_with_one_error_and_makes_no_other(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    folder = begin(tiny, monkeypatch)

    def remove() -> None:
        shutil.rmtree(folder.path.rename("aside"))  # at once: a thread may write a checkpoint into it
        if then == "another":
            folder.path.mkdir()

    with pytest.raises(StorageError, match=r"runs/tiny was removed or replaced by another folder while") as caught:
        train(tiny, Interfering(remove))
    assert caught.value.exit_code == 2
    assert folder.path.exists() == (then == "another")
    assert not folder.path.exists() or list(folder.path.iterdir()) == []


@pytest.mark.parametrize("then", ["nothing", "another"])
def test_a_checkpoint_that_is_written_meanwhile_does_not_make_the_folder_again(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    folder, written = begin(tiny, monkeypatch), checkpoint.write_tensors

    def removed_first(path: Path, arrays: Arrays, note: str, parents: bool) -> None:
        if folder.path.exists() and any(folder.checkpoints.iterdir()):  # not the first one, nor those of measuring
            shutil.rmtree(folder.path)
            if then == "another":
                folder.path.mkdir()
        written(path, arrays, note, parents)

    monkeypatch.setattr(checkpoint, "write_tensors", removed_first)
    with pytest.raises(StorageError, match=r"runs/tiny was removed or replaced by another folder while"):
        train(tiny, Reporter())
    assert list(tiny.parent.glob("runs/*/*")) == []
    assert folder.path.exists() == (then == "another")


@pytest.mark.parametrize("lines", [0, 1])
def test_metrics_that_do_not_reach_the_checkpoint_are_refused(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, lines: int
) -> None:
    folder = begin(tiny, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        train(tiny, Interfering(stop))
    whole = folder.metrics.read_bytes()
    assert any(folder.checkpoints.iterdir())
    folder.metrics.write_bytes(b"".join(whole.splitlines(keepends=True)[-lines or len(whole) :]))
    (folder.path / SEAL).unlink()  # which would tell first
    with pytest.raises(
        RunError, match=rf"metrics.jsonl has {lines} lines? up to step \d+, and the run had written \d+"
    ):
        train(tiny, Reporter())
    folder.metrics.write_bytes(whole)
    (folder.path / SEAL).unlink(missing_ok=True)
    assert train(tiny, Reporter()) is not None
    assert folder.done.is_file()
