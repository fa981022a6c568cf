"""A whole run of local steps in which a worker is killed: the other goes on to the end, and the record names it."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from unittest.mock import patch

import pytest
from commands import forks
from conftest import TINY

from shoestring.core.clock import Clock
from shoestring.core.recipe_file import load
from shoestring.core.records import Plan
from shoestring.core.results import Outcome
from shoestring.core.run_folder import RunFolder
from shoestring.runs import session
from shoestring.runs.reporter import Reporter
from shoestring.runs.runner import run
from shoestring.track import read_lines
from shoestring.training.loop import Requests
from shoestring.training.schedule import Schedule
from shoestring.training.stepper import NetworkStep, Stepper

STEPS, ACCIDENT = 16, 6
LOCAL = ("parallel.strategy=local", "parallel.sync_every=4", f"budget.steps={STEPS}", "train.checkpoint_every=1ms")


def work(rank: int, port: int, folder: Path) -> None:
    os.chdir(folder)
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in ranks.items()}
    begin = Stepper.begin

    def broken(self: Stepper, step: int, schedule: Schedule, requests: Requests) -> NetworkStep:
        if rank == 1 and step == ACCIDENT:
            os.kill(os.getpid(), signal.SIGKILL)
        return begin(self, step, schedule, requests)

    with patch.object(Stepper, "begin", broken), patch.object(session, "draw", return_value={}):
        run(load("tiny.toml", LOCAL), Reporter(), Clock(), folder / f"plan-{rank}.json")


@pytest.mark.slow
def test_a_run_goes_on_without_a_worker_that_was_killed(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    recipe = load(tmp_path / "tiny.toml", LOCAL)
    plan = Plan(
        binding="steps", recipe=recipe.fingerprint, steps=STEPS, effective_batch=recipe.batch, per_device=2, entries=300
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    started = []
    for rank in range(2):
        plan.write(tmp_path / f"plan-{rank}.json")
        started.append(forks().Process(target=work, args=(rank, port, tmp_path)))
        started[-1].start()
    for process in started:
        process.join(100)
    assert [process.exitcode for process in started] == [0, -signal.SIGKILL]
    folder = RunFolder(tmp_path / "runs" / "tiny")
    outcome = Outcome.read(folder.done)
    assert outcome.sharing is not None
    assert (outcome.sharing.workers, outcome.sharing.left) == (2, (1,))
    assert outcome.sharing.synchronisations == STEPS // 4
    assert outcome.tokens == STEPS * 4 * 32
    left = [line for line in read_lines(folder.timings) if line.get("event") == "left"]
    assert [(line["worker"], line["step"]) for line in left] == [(1, 7)]
    assert outcome.sharing.sent_bytes == 4 * 5776, "one average of two workers; one alone sends nothing"
