"""Workers that are forks of a run: processes like any other, and the same run comes of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from conftest import TINY

from shoestring.core.clock import Clock
from shoestring.core.recipe_file import load
from shoestring.core.results import Outcome
from shoestring.core.run_folder import RunFolder
from shoestring.runs import session
from shoestring.runs.forks import can_fork
from shoestring.runs.reporter import Reporter
from shoestring.runs.runner import run
from shoestring.runs.task import task_of
from shoestring.track import read_lines

PROCESSES = """
import os, signal, subprocess, sys, time
from shoestring.core.errors import Fault
from shoestring.runs.forks import Fork
from shoestring.runs.launch import _watch

signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("once", end=" ")  # still in the buffer

def says() -> int:
    print("to stderr")
    return 3

ended = Fork(says)
assert (ended.wait(30), ended.poll(), ended.returncode) == (3, 3, 3)
try:
    _watch([ended])
except Fault as error:
    print(error)
waits = Fork(lambda: time.sleep(600) or 0)
assert waits.poll() is None
try:
    waits.wait(0.01)
except subprocess.TimeoutExpired:
    print("waits")
_watch([waits])
waits.kill()
assert waits.wait() == -signal.SIGKILL
ended = Fork(lambda: time.sleep(600) or 0)
time.sleep(0.2)
os.kill(ended.pid, signal.SIGTERM)
assert ended.wait(30) == -signal.SIGTERM, "it does not ignore what the run ignores"
sys.stdout.flush()
Fork(lambda: time.sleep(600) or 0)
os.kill(os.getpid(), signal.SIGKILL)
"""

RUN = """
import os, signal, sys
from pathlib import Path
from shoestring.core.clock import Clock
from shoestring.core.recipe_file import load
from shoestring.report import page
from shoestring.runs import async_start, forks, launch
from shoestring.runs.reporter import Reporter
from shoestring.runs.runner import run

sys.executable = "/bin/false"  # a new process would fail
made = []

class Fork(forks.Fork):
    def __init__(self, work):
        super().__init__(work)
        made.append(self)

async_start.Fork = launch.Fork = Fork
page.draw = lambda _: {}

class Kills(Reporter):
    def training(self, progress):
        if "kill" in sys.argv and progress.done >= 8 and made[1].poll() is None:
            os.kill(made[1].pid, signal.SIGKILL)
            made[1].wait()

run(load("tiny.toml", [each for each in sys.argv[1:] if each != "kill"]), Kills(), Clock())
assert all(each.poll() is not None for each in made)
print(len(made))
"""

THREAD = """
import sys, threading
from shoestring.core.recipe_file import load
from shoestring.runs.forks import can_fork
from shoestring.runs.task import task_of
threading.Thread(target=threading.Event().wait, daemon=True).start()
print(can_fork(task_of(load("tiny.toml"))), "torch" in sys.modules)
"""


def python(code: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    threads = {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=folder, env=os.environ | threads, capture_output=True, text=True, timeout=200)


def test_a_fork_is_a_process_of_its_own(tmp_path: Path) -> None:
    """The last one ends with the run, which is killed: it would keep the output open for longer than is waited."""
    done = python(PROCESSES, folder=tmp_path)
    ended = "worker 1 ended before all were connected, exit code 3; see its output"
    assert (done.returncode, done.stderr) == (-9, "to stderr\n")
    assert done.stdout == f"once {ended}\nwaits\n"


def test_a_process_that_has_torch_or_threads_is_not_forked(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    assert "torch" in sys.modules
    assert not can_fork(task_of(load(tmp_path / "tiny.toml")))
    assert python(THREAD, folder=tmp_path).stdout == "False False\n", "nor is anything loaded in vain"


@pytest.mark.slow
def test_forked_workers_take_the_steps_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights do not move, so that the loss of a row says whether it was read; one async worker is killed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(TINY)
    still = ("budget.steps=16", "train.lr=1e-12", "train.weight_decay=0")
    with patch.object(session, "draw", return_value={}):
        run(load("tiny.toml", still), Reporter(), Clock())
    alone = RunFolder(tmp_path / "runs" / "tiny")
    for strategy, forked, left in (("sync", 1, ()), ("async kill", 2, (1,))):
        shares = (f"parallel.strategy={strategy.split()[0]}", "parallel.workers=2", "run.name=two")
        done = python(RUN, *still, *shares, *strategy.split()[1:], folder=tmp_path)
        assert done.stdout == f"{forked}\n", done.stderr
        two = RunFolder(tmp_path / "runs" / "two")
        one_losses, losses = (
            [line["loss"] for line in read_lines(folder.metrics) if "loss" in line] for folder in (alone, two)
        )
        assert len(losses) == 16
        assert sum(losses) == pytest.approx(sum(one_losses), rel=1e-6), "no row is lost or read twice"
        one, outcome = Outcome.read(alone.done), Outcome.read(two.done)
        assert (outcome.steps, outcome.predictions) == (16, one.predictions)
        assert outcome.loss == pytest.approx(one.loss, rel=1e-6)
        assert outcome.sharing is not None
        assert (outcome.sharing.workers, outcome.sharing.left) == (2, left)
        shutil.rmtree(two.path)
