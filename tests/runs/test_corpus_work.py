"""The corpus is sampled and prepared in a fork to the same bytes as here; its errors, words and end are those of the
work itself."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoestring.core.errors import DataError, Fault
from shoestring.core.files import folder_bytes
from shoestring.core.recipe_file import build
from shoestring.core.records import Plan
from shoestring.data.store import shards
from shoestring.data.store.prepare import store_folder
from shoestring.data.store.store import Store
from shoestring.runs import corpus_work
from shoestring.runs.corpus_work import CorpusWork, can_fork
from shoestring.runs.reporter import Reporter
from shoestring.runs.task import Task, task_of

PLAN = Plan(binding="steps", entries=60, steps=1)


def task_in(folder: Path, **data: Any) -> Task:
    corpus = {"source": "stories", "tokenizer": "words:50", "length": 16, "folder": str(folder), "documents": 60} | data
    return task_of(build({"budget": {"steps": 1}, "data": corpus, "train": {"batch": 1, "lr": 1e-3}}, "test"))


class Heard(Reporter):
    """Keeps what was said."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.documents: list[int] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def preparing(self, documents: int, total: int | None) -> None:
        assert total == 60
        self.documents.append(documents)


def tokens_of(task: Task) -> bytes:
    store = Store(store_folder(task.recipe.data, task.recipe.run.seed, 60), task.recipe.data.tokenizer)
    return b"".join(path.read_bytes() for path in sorted(store.paths.folder.rglob("*.tok")))


@pytest.mark.parametrize("fork", [True, False])
def test_the_corpus_is_sampled_and_prepared(fork: bool, tmp_path: Path) -> None:
    task, heard = task_in(tmp_path / "data"), Heard()
    with CorpusWork(task, heard, fork) as work:
        work.begin_sampling()
        density = work.density()
        assert (density is not None and density.documents > 0 and density is work.density()) or not fork
        work.begin_preparing(PLAN)
        work.wait()
        work.wait()  # there is nothing more to wait for
    with CorpusWork(other := task_in(tmp_path / "other"), heard, fork=False) as here:
        here.begin_preparing(PLAN)
        here.wait()
    assert tokens_of(task) == tokens_of(other)
    assert heard.documents[-1] == 60


@pytest.mark.parametrize("fork", [True, False])
def test_a_sample_that_nobody_asks_for_is_not_taken_for_the_rows(fork: bool, tmp_path: Path) -> None:
    task = task_in(tmp_path)
    with CorpusWork(task, Reporter(), fork) as work:
        work.begin_sampling()
        work.begin_preparing(PLAN)
        work.wait()
    assert tokens_of(task)


def test_what_the_fork_has_checked_is_not_checked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_in(tmp_path)
    for again in (False, True):
        monkeypatch.setattr(shards, "_whole", set())
        with CorpusWork(task, Reporter(), fork=True) as work:
            work.begin_preparing(PLAN)
            work.wait()
        store = Store(store_folder(task.recipe.data, task.recipe.run.seed, 60))
        files = {str(file.absolute()) for file in store.paths.folder.rglob("*.tok")}
        assert files and (not again or {path for path, *_ in shards.checked_shards()} == files)
        for file in files:
            os.utime(file, (1e9, 1e9))  # made long ago


@pytest.mark.parametrize("fork", [True, False])
def test_an_error_is_raised_where_its_result_is_awaited(fork: bool, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    task = task_in(tmp_path / "data", source=f"text:{tmp_path / 'empty'}")
    with CorpusWork(task, Reporter(), fork) as work:
        work.begin_sampling()
        with pytest.raises(DataError, match="empty"):
            work.density()


def test_a_fork_that_dies_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_work, "recipe_density", lambda _: os.kill(os.getpid(), signal.SIGKILL))
    with CorpusWork(task_in(tmp_path), Reporter(), fork=True) as work:
        work.begin_sampling()
        with pytest.raises(Fault, match="the process that prepares the corpus died"):
            work.density()


def test_what_is_under_way_is_ended_and_removes_what_it_was_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = tmp_path / "begun", tmp_path / "ended"

    def slowly(*_: Any) -> None:
        try:
            begun.touch()
            time.sleep(60)
        finally:
            ended.touch()

    task = task_in(tmp_path / "data")
    monkeypatch.setattr(task, "prepare", slowly)
    with CorpusWork(task, Reporter(), fork=True) as work:
        work.begin_preparing(PLAN)
        while not begun.exists():
            time.sleep(0.01)
    assert ended.exists() and folder_bytes(tmp_path / "data") == 0


def test_a_bug_of_the_work_keeps_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_work, "recipe_density", lambda _: 1 / 0)
    with CorpusWork(task_in(tmp_path), Reporter(), fork=True) as work:
        work.begin_sampling()
        with pytest.raises(ZeroDivisionError) as raised:
            work.density()
    assert "test_corpus_work.py" in raised.value.__notes__[0]


def test_progress_that_nobody_reads_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, heard = task_in(tmp_path), Heard()

    def chatty(_: Plan, reporter: Reporter) -> None:
        for _ in range(50_000):
            reporter.preparing(1, 60)
        (tmp_path / "done").touch()

    monkeypatch.setattr(task, "prepare", chatty)
    with CorpusWork(task, heard, fork=True) as work:
        work.begin_preparing(PLAN)
        while not (tmp_path / "done").exists():  # without reading what it says
            time.sleep(0.01)
        work.wait()
    assert 0 < len(heard.documents) < 50_000


def test_a_process_with_threads_or_torch_or_a_single_core_is_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = {name: module for name, module in sys.modules.items() if name != "torch"}
    monkeypatch.setattr(corpus_work, "sys", SimpleNamespace(platform="linux", modules=alone))
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert can_fork()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert not can_fork()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(threading, "active_count", lambda: 2)
    assert not can_fork()
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    monkeypatch.setattr(corpus_work, "sys", SimpleNamespace(platform="linux", modules={"torch": None}))
    assert not can_fork()


def test_the_fork_ends_with_a_process_that_is_killed(tmp_path: Path) -> None:
    source = (
        "import sys, time; from pathlib import Path; sys.path.insert(0, sys.argv[2])\n"
        "from test_corpus_work import task_in, PLAN; from shoestring.runs.corpus_work import CorpusWork\n"
        "from shoestring.runs.reporter import Reporter\n"
        "task = task_in(Path(sys.argv[1])); task.prepare = lambda *_: time.sleep(60)\n"
        "work = CorpusWork(task, Reporter(), fork=True); work.begin_preparing(PLAN)\n"
        "print(work._process.pid, flush=True); time.sleep(60)\n"
    )
    command = [sys.executable, "-c", source, str(tmp_path), str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        fork = int(parent.stdout.readline())
        time.sleep(0.3)  # for the fork to ask for its end
        parent.kill()
    for _ in range(500):
        with contextlib.suppress(FileNotFoundError):
            if Path(f"/proc/{fork}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                time.sleep(0.01)
                continue
        return
    raise AssertionError("the fork lives on")
