"""Asynchronous runs: one worker is the synchronous run; of several, no row is lost or read twice, whoever is killed."""

from __future__ import annotations

import os
import signal
from multiprocessing import Pipe
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from commands import forks
from conftest import TINY

from shoestring.core.clock import Clock
from shoestring.core.errors import Fault, UserError
from shoestring.core.recipe_file import load
from shoestring.core.records import Plan
from shoestring.core.results import Evaluation, Outcome
from shoestring.core.run_folder import RunFolder
from shoestring.parallel.process_group import ProcessGroup
from shoestring.parallel.shared_weights import NotShared
from shoestring.runs import session
from shoestring.runs.async_trainee import AsyncTrainee
from shoestring.runs.reporter import Reporter
from shoestring.runs.runner import run
from shoestring.track import read_lines
from shoestring.training.loop import PendingStep

STEPS, ACCIDENT = 24, 10
STILL = ("train.lr=1e-12", "train.weight_decay=0")
"""Weights that do not move: the loss of a row says whether it was read."""


def train(folder: Path, name: str, *overrides: str) -> RunFolder:
    os.chdir(folder)
    every = (f"run.name={name}", f"budget.steps={STEPS}", "train.checkpoint_every=1ms", *overrides)
    recipe = load("tiny.toml", every)
    plan = Plan(
        binding="steps", recipe=recipe.fingerprint, steps=STEPS, effective_batch=recipe.batch, per_device=2, entries=300
    )
    plan.write(folder / f"{name}.json")
    with patch.object(session, "draw", return_value={}):
        run(recipe, Reporter(), Clock(), folder / f"{name}.json")
    return RunFolder(folder / "runs" / name)


def accident(pid: Any) -> Any:
    """Kill a process before the step, once."""
    begin = AsyncTrainee.begin

    def broken(self: AsyncTrainee, step: int, *rest: Any) -> PendingStep:
        if step == ACCIDENT:
            os.kill(pid(self), signal.SIGKILL)
        return begin(self, step, *rest)

    return patch.object(AsyncTrainee, "begin", broken)


def killed(folder: Path) -> None:
    with accident(lambda _: os.getpid()):
        train(folder, "all-killed", "parallel.strategy=async", "parallel.workers=2", *STILL)


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "tiny.toml").write_text(TINY)
    return tmp_path


def losses(folder: RunFolder) -> list[float]:
    return [line["loss"] for line in read_lines(folder.metrics) if "loss" in line]


@pytest.mark.slow
def test_one_worker_takes_the_synchronous_steps(there: Path) -> None:
    one, sync = train(there, "one", "parallel.strategy=async"), train(there, "sync")
    assert one.metrics.read_bytes() == sync.metrics.read_bytes()
    assert Evaluation.read(one.evaluation) == Evaluation.read(sync.evaluation)
    sharing = Outcome.read(one.done).sharing
    assert sharing is not None
    assert sharing.staleness == (STEPS,)


@pytest.mark.slow
def test_no_share_is_lost_or_applied_twice_whoever_is_killed(there: Path) -> None:
    sync = train(there, "sync", *STILL)
    with accident(lambda trainee: trainee._processes[1].pid):
        one = train(there, "one-killed", "parallel.strategy=async", "parallel.workers=2", *STILL)
    dead = forks().Process(target=killed, args=(there,))
    dead.start()
    dead.join(100)
    assert dead.exitcode == -signal.SIGKILL
    both = train(there, "all-killed", "parallel.strategy=async", "parallel.workers=2", *STILL)
    for folder, left, sessions in ((one, (1,), 1), (both, (), 2)):
        outcome = Outcome.read(folder.done)
        assert outcome.sharing is not None
        assert outcome.sharing.left == left
        assert sum(outcome.sharing.staleness) == 2 * STEPS
        assert outcome.segments == sessions
        assert outcome.predictions == Outcome.read(sync.done).predictions
        assert sum(losses(folder)) == pytest.approx(sum(losses(sync)), rel=1e-6)
        assert len(losses(folder)) == STEPS
        assert outcome.loss == pytest.approx(Outcome.read(sync.done).loss, rel=1e-6)
    assert [line["worker"] for line in read_lines(one.timings) if line.get("event") == "left"] == [1]


@pytest.mark.parametrize("ended", [(1,), (0, 1)])
def test_workers_that_end_before_the_first_step(ended: tuple[int, ...], there: Path) -> None:
    """They are noticed like any other; without any worker the run stops with a reason."""
    begin, overrides = AsyncTrainee.begin, ("parallel.strategy=async", "parallel.workers=2")

    def broken(self: AsyncTrainee, step: int, *rest: Any) -> PendingStep:
        for worker in ended if step == 0 else ():
            self._processes[worker].kill()
            self._processes[worker].wait()
        return begin(self, step, *rest)

    with patch.object(AsyncTrainee, "begin", broken):
        if len(ended) == 2:
            with pytest.raises(Fault, match="all workers have ended; the last checkpoint is good"):
                train(there, "ended", *overrides)
            return
        sharing = Outcome.read(train(there, "ended", *overrides).done).sharing
    assert sharing is not None
    assert (sharing.left, sum(sharing.staleness)) == (ended, 2 * STEPS)


def test_torchrun_is_refused(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="which is the one for several machines"):
        train(there, "several", "parallel.strategy=async")


def test_workers_that_cannot_map_a_gpu_share_the_memory_of_the_host() -> None:
    """Known to the first process when it shares the memory, or later, by the answer of a worker."""
    trainee, said, devices = AsyncTrainee.__new__(AsyncTrainee), [], []
    ends = [Pipe() for _ in range(2)]
    trainee.group, trainee._say = ProcessGroup(0, 1, torch.device("cpu")), said.append
    trainee._processes, trainee._lines = [], {number: own for number, (own, _) in enumerate(ends)}
    ends[0][1].send(None)
    ends[1][1].send(NotShared("no IPC"))
    with pytest.raises(NotShared, match="no IPC"):
        trainee._check_mapped()

    def share(device: torch.device) -> None:
        devices.append(device.type)
        if len(devices) == 1:
            raise NotShared("no IPC")

    with patch.object(trainee, "_share_weights", share), patch.object(trainee, "_begin_workers"):
        trainee.warm_up()
    assert devices == ["cpu", "cpu"]
    assert said == ["no IPC; the workers share that of the host, which is slower"]
    trainee._lines = {0: Pipe()[0]}
    trainee._lines[0].close()
    trainee._check_mapped()  # one that has ended is noticed later
    own, theirs = Pipe()
    trainee._lines = {3: own}
    theirs.send("its copy of the model does not fit")
    with pytest.raises(Fault, match="worker 3: its copy"):
        trainee._check_mapped()
