"""Sweeps on a real Slurm with two nodes: `.ci/slurm-local start`, as `.ci/run` does. Without one they are skipped.

Slurm counts limits in minutes, and lets a requeued job wait for two. So the signal that comes before a limit is sent by
`scancel`, and a job that waits for its turn is told to begin.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from conftest import Command, last_json

from shoestring.core.records import Plan
from shoestring.core.sweep_folder import SweepFolder
from shoestring.track import read_lines

PATIENCE = 240.0
WAITING: dict[str, float] = {}
"""Since when requeued tasks wait."""
CLUSTER = Path(__file__).parents[2] / ".ci" / "slurm-local"
HMM = """
[run]
name = "hmm"
[budget]
epochs = 2
[data]
source = "stories"
documents = 60
tokenizer = "words:300"
length = 20
[hmm]
states = 4
"""
NET = """
[run]
name = "net"
[budget]
steps = 400
[data]
source = "stories"
documents = 100
tokenizer = "bytes"
length = 32
[model]
family = "llama"
width = 16
layers = 1
heads = 2
[train]
batch = 8
lr = 1e-3
[evaluate]
every = 0.25
rows = 16
prompts = []
"""


def _asked(*command: str, check: bool = True) -> str:
    return subprocess.run(command, check=check, capture_output=True, text=True).stdout


def _has_slurm() -> bool:
    return shutil.which("sinfo") is not None and subprocess.run(["sinfo"], capture_output=True).returncode == 0


pytestmark = [
    pytest.mark.slow,
    pytest.mark.slurm,
    pytest.mark.skipif(not _has_slurm(), reason="there is no Slurm here; start one with .ci/slurm-local start"),
]


@pytest.fixture
def sweep(tmp_path: Path, shoestring: Command) -> Iterator[Callable[..., SweepFolder]]:
    """Submit a recipe; what is still queued at the end is cancelled."""
    submitted: list[SweepFolder] = []

    def submit(text: str, *words: str) -> SweepFolder:
        (tmp_path / "recipe.toml").write_text(text)
        environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
        told = shoestring("sweep", "recipe.toml", *words, "--slurm", "--json", **environment)
        assert told.returncode == 0, told.stderr
        submitted.append(SweepFolder(tmp_path / str(last_json(told.stdout)["sweep"])))
        return submitted[-1]

    yield submit
    for folder in submitted:
        _asked("scancel", *_jobs(folder), check=False)


def _jobs(folder: SweepFolder) -> list[str]:
    return [str(line["job"]) for line in read_lines(folder.jobs)]


def _queued(folder: SweepFolder) -> list[list[str]]:
    """(task, state, reason) of the sweep's tasks in the queue."""
    lines = [line.split("|") for line in _asked("squeue", "-h", "-r", "-o", "%F|%i|%T|%r").splitlines()]
    return [line[1:] for line in lines if line[0] in _jobs(folder)]


def _until(true: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + PATIENCE
    while not (found := true()):
        assert time.monotonic() < end, f"waited {PATIENCE:.0f} s for {what}\n{_asked('squeue')}"
        time.sleep(0.1)
    return found


def _ended(folder: SweepFolder) -> bool:
    _hurry(folder)
    return not _queued(folder)


def _hurry(folder: SweepFolder) -> None:
    """Let what was requeued begin after some seconds: in the same one, its node would still refuse it."""
    for task, state, reason in _queued(folder):
        if (state, reason) != ("PENDING", "BeginTime"):
            WAITING.pop(task, None)
        elif time.monotonic() - WAITING.setdefault(task, time.monotonic()) > 2.0:
            _asked("scontrol", "update", f"JobId={task}", "StartTime=now", check=False)


def _steps(run: Path) -> int:
    return max((line.get("step", 0) for line in read_lines(run / "metrics.jsonl")), default=0)


def _told(folder: SweepFolder) -> str:
    return "\n".join(file.read_text() for file in sorted(folder.logs.glob("*")) if file.is_file())


def _interrupt(folder: SweepFolder, run: Path) -> None:
    """Signal the task as before its limit, once it has taken more steps; returns when it is queued again."""
    before = _steps(run)

    def goes_on() -> bool:
        _hurry(folder)
        return _steps(run) > before

    _until(goes_on, "more steps")
    (task,) = [task for task, state, _ in _queued(folder) if state == "RUNNING"]
    _asked("scancel", "--batch", "--signal=USR1", task)
    _until(
        lambda: any(each[1] == "PENDING" and "_" in each[0] for each in _queued(folder)), f"a requeue\n{_told(folder)}"
    )


def _weights(run: Path) -> bytes:
    """The last checkpoint's tensors; its note has times."""
    last = max((run / "checkpoints").glob("*"), key=lambda file: int(re.findall(r"\d+", file.name)[-1]))
    from safetensors import safe_open

    with safe_open(last, "pt") as file:
        return b"".join(file.get_tensor(name).numpy().tobytes() for name in sorted(file.keys()))


def test_six_fits_two_at_a_time(sweep: Callable[..., SweepFolder], tmp_path: Path) -> None:
    folder = sweep(HMM, "--over", "hmm.states=4,5,6", "--seeds", "2", "--at-once", "2")
    array = _jobs(folder)[0]
    _until(folder.report.exists, f"the report\n{_told(folder)}")
    assert len(list(tmp_path.glob("runs/hmm-*/DONE"))) == 6
    shown = _asked("scontrol", "show", "job", array)
    times = [re.findall(rf"{name}Time=(\S+)", shown) for name in ("Start", "End")]
    spans = [tuple(map(datetime.fromisoformat, pair)) for pair in zip(*times)]
    assert len(spans) == 6
    for begin, _ in spans:  # seconds are whole, so one that ends in the second in which another begins does not count
        assert sum(other <= begin < end for other, end in spans) <= 2


def test_a_run_that_is_requeued_twice_ends_with_the_same_weights(
    sweep: Callable[..., SweepFolder], tmp_path: Path, shoestring: Command
) -> None:
    folder, run = sweep(NET, "--over", "train.lr=1e-3"), tmp_path / "runs/net-lr0.001"
    assert [line["kind"] for line in read_lines(folder.jobs)] == ["prepare", "array", "report"]
    for _ in range(2):
        _interrupt(folder, run)
    _until(lambda: _ended(folder), "the end")
    assert (run / "DONE").is_file(), _told(folder)
    sessions = [line for line in read_lines(run / "timings.jsonl") if line.get("event") == "start"]
    assert len(sessions) == 3
    whole = shoestring("train", folder.recipe("net-lr0.001"), "--set", "run.folder=whole", OMP_NUM_THREADS="1")
    assert whole.returncode == 0, whole.stderr
    assert _weights(run) == _weights(tmp_path / "whole/net-lr0.001")
    assert (run / "metrics.jsonl").read_bytes() == (tmp_path / "whole/net-lr0.001/metrics.jsonl").read_bytes()


LONG = NET.replace("steps = 400", "steps = 1500")


def test_a_cancelled_sweep_is_saved(sweep: Callable[..., SweepFolder], tmp_path: Path, shoestring: Command) -> None:
    folder, run = sweep(LONG, "--over", "train.lr=1e-3"), tmp_path / "runs/net-lr0.001"
    _until(lambda: _steps(run), "steps")
    again = shoestring("sweep", "recipe.toml", "--over", "train.lr=1e-3", "--slurm")
    assert again.returncode == 2 and "1 run queued already" in again.stderr
    status = last_json(shoestring("sweep", "status", folder.path, "--json").stdout)
    assert status["runs"][0]["job"]["state"] == "RUNNING"  # type: ignore[index]
    told = shoestring("sweep", "cancel", folder.path)
    assert "told to save and stop: job" in told.stdout
    _until(lambda: not _queued(folder), "an empty queue")
    assert '"kind": "Stopped"' in (folder.logs / "net-lr0.001.json").read_text()
    status = last_json(shoestring("sweep", "status", folder.path, "--json").stdout)
    assert status["runs"][0]["state"] == "stopped" and status["runs"][0]["job"] is None  # type: ignore[index]


def test_a_sweep_goes_on_where_its_node_has_failed(sweep: Callable[..., SweepFolder], tmp_path: Path) -> None:
    folder, run = sweep(NET, "--over", "train.lr=1e-3"), tmp_path / "runs/net-lr0.001"
    _until(lambda: _steps(run), "steps")
    (task,) = [each[0] for each in _queued(folder) if each[1] == "RUNNING"]
    node = _asked("squeue", "-h", "-r", "-j", task, "-o", "%N").strip()
    with _failed(node, task):
        _until(lambda: _ended(folder), f"the end on another node\n{_told(folder)}")
    assert (run / "DONE").is_file(), _told(folder)


@contextlib.contextmanager
def _failed(node: str, task: str) -> Iterator[None]:
    """The node as if it had lost its power: its slurmd and all processes of the task are gone."""
    record = Path(os.environ["SLURM_CONF"]).parents[1] / "run" / f"slurmd-{node}.rec"
    os.kill(int(record.read_text().split()[0]), signal.SIGKILL)
    for pid in _processes_of(task):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    _asked("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    try:
        yield
    finally:
        subprocess.run(["bash", str(CLUSTER), "start"], check=True, capture_output=True)
        _asked("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)


def _processes_of(task: str) -> list[int]:
    """The processes of a task of an array; first those that watch the others, and would tell Slurm of their end."""
    job, index = task.split("_")
    wanted = {f"SLURM_ARRAY_JOB_ID={job}".encode(), f"SLURM_ARRAY_TASK_ID={index}".encode()}
    own, watching = [], set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted <= set((folder / "environ").read_bytes().split(b"\0")):
                own.append(int(folder.name))
                parent = re.findall(r"PPid:\s*(\d+)", (folder / "status").read_text())[0]
                if Path(f"/proc/{parent}/comm").read_text().strip() == "slurmstepd":  # whose environment has no task
                    watching.add(int(parent))
    assert watching, f"no slurmstepd of {task}"
    return [*watching, *own]


def test_torchrun_on_two_nodes(sweep: Callable[..., SweepFolder], tmp_path: Path) -> None:
    folder, run = sweep(NET, "--over", "train.lr=1e-3", "--nodes", "2"), tmp_path / "runs/net-lr0.001"
    _until(lambda: _ended(folder), "the end")
    assert (run / "DONE").is_file(), _told(folder)
    assert Plan.read(run / "plan.json").devices == 2
    shown = _asked("scontrol", "show", "job", _jobs(folder)[1])
    assert "NumNodes=2" in shown
