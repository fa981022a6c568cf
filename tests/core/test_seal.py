"""The seal of a run: an edit is found, a kill between a record and its seal is none, and older runs have no seal."""

from __future__ import annotations

import json
import multiprocessing
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from shoestring.core import seal
from shoestring.core.errors import RunError
from shoestring.core.records import Machine
from shoestring.core.run_folder import RunFolder
from shoestring.track import LineFile

MACHINE = Machine(device="cpu", device_name="x", threads=2, memory_bytes=None, system="x", python="3", versions={})


class Killed(Exception):
    """In place of a process that dies."""


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run with two records and a few lines."""
    made = RunFolder(tmp_path / "run")
    made.path.mkdir()
    made.write(made.recipe, "a = 1\n")
    assert not made.seal.exists(), "it begins with the plan"
    made.write(made.machine, MACHINE)
    lines = LineFile(made.metrics)
    for step in range(4):
        lines.add(step=step, loss=3.0 - step)
    made.seal_lines()
    return made


def test_what_was_written_is_whole(folder: RunFolder) -> None:
    assert folder.changes() == []
    folder.check_records()
    folder.write(folder.machine, MACHINE)
    assert folder.changes() == []


@pytest.mark.parametrize("edit", [lambda raw: raw.replace(b"2", b"3", 1), lambda raw: raw + b" ", lambda raw: raw[:0]])
def test_any_change_of_a_record_is_found(folder: RunFolder, edit: Callable[[bytes], bytes]) -> None:
    folder.machine.write_bytes(edit(folder.machine.read_bytes()))
    assert len(folder.changes()) == 1
    with pytest.raises(RunError, match=rf"{re.escape(str(folder.machine))} .*\n.*remove .*seal\.json first"):
        folder.check_records()
    folder.check_records(folder.recipe)


def test_an_edit_is_told_from_damage(folder: RunFolder) -> None:
    folder.machine.write_text(folder.machine.read_text().replace("cpu", "cuda"))
    assert folder.changes() == [f"{folder.machine} was changed after the run had written it"]
    folder.machine.write_bytes(folder.machine.read_bytes()[:-9])
    assert folder.changes() == [f"{folder.machine} is damaged"]
    folder.recipe.write_text("a = 2\n")
    assert len(folder.changes()) == 2


def test_lines_may_be_added_but_not_changed_or_cut(folder: RunFolder) -> None:
    LineFile(folder.metrics).add(step=9)
    assert folder.changes() == []
    content = folder.metrics.read_bytes()
    folder.metrics.write_bytes(content[:-5])
    assert folder.changes() == [], "an incomplete last line is of a kill"
    folder.metrics.write_bytes(content.replace(b"3.0", b"2.0"))
    assert len(folder.changes()) == 1
    folder.metrics.write_bytes(content[: len(content) // 2])
    assert len(folder.changes()) == 1


def test_lines_that_are_rewound_are_sealed_again(folder: RunFolder) -> None:
    LineFile.rewound(folder.metrics, 2, 0, folder.write).add(step=3, loss=9.0)
    assert folder.changes() == []
    folder.seal_lines()
    folder.metrics.write_bytes(folder.metrics.read_bytes().replace(b"9.0", b"8.0"))
    assert len(folder.changes()) == 1


@pytest.mark.parametrize("written", ["machine", "done", "metrics"])
@pytest.mark.parametrize("when", range(3))
def test_a_kill_at_any_write_leaves_a_whole_run(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, written: str, when: int
) -> None:
    """Before the seal, between seal and record, and after both."""
    path, write, left = getattr(folder, written), seal.write_whole, [when]

    def dying(where: Path, content: str | bytes, parents: bool) -> None:
        if not left[0]:
            raise Killed
        left[0] -= 1
        write(where, content, parents)

    monkeypatch.setattr("shoestring.core.seal.write_whole", dying)
    content = b'{"step": 0, "loss": 3.0}\n' if written == "metrics" else b'{"other": 1}\n'
    try:
        folder.write(path, content)
    except Killed:
        assert when < 2
    assert folder.changes() == []
    monkeypatch.undo()
    folder.write(folder.recipe, "a = 3\n")
    assert folder.changes() == []


def test_a_run_of_an_older_version_has_no_seal_and_gets_one(folder: RunFolder) -> None:
    folder.seal.unlink()
    folder.machine.write_text(folder.machine.read_text().replace("cpu", "cuda"))
    assert folder.changes() == []
    folder.write(folder.done, MACHINE)
    assert folder.changes() == []
    folder.machine.write_text(folder.machine.read_text().replace("cuda", "cpu"))
    assert len(folder.changes()) == 1


def test_a_damaged_seal_is_named(folder: RunFolder) -> None:
    raw = folder.seal.read_bytes()
    for at in range(len(raw)):
        folder.seal.write_bytes(raw[:at] + bytes([raw[at] ^ 2]) + raw[at + 1 :])
        same = json.loads(raw) == _parsed(folder.seal)
        assert same or folder.changes(), at


def _parsed(path: Path) -> object:
    try:
        return json.loads(path.read_bytes())
    except ValueError:
        return None


def _write_often(path: Path, name: str) -> None:
    folder = RunFolder(path)
    for number in range(20):
        folder.write(path / name, f'{{"number": {number}}}')


def test_two_processes_write_records_at_once(folder: RunFolder) -> None:
    context = multiprocessing.get_context("fork")
    names = [folder.evaluation.name, folder.machine.name]
    processes = [context.Process(target=_write_often, args=(folder.path, name)) for name in names]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert folder.changes() == []
