"""A run that is killed goes on as if nothing had happened."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from conftest import Command, start

from shoestring.core.run_folder import RunFolder
from shoestring.train.checkpoint import Checkpoints, read

STEPS = 150
OPTIONS = ("--set", f"budget.steps={STEPS}", "--set", "train.checkpoint_every=50ms")


def _weights(folder: RunFolder) -> dict[str, object]:
    step = Checkpoints(folder.checkpoints, 1).steps()[0]
    tensors, state = read(folder.checkpoints / f"step-{step:09d}.safetensors")
    assert state.step == STEPS
    return tensors


def _assert_same_run(one: RunFolder, other: RunFolder) -> None:
    assert one.metrics.read_bytes() == other.metrics.read_bytes()
    assert one.evaluation.read_bytes() == other.evaluation.read_bytes()
    first, second = _weights(one), _weights(other)
    assert first.keys() == second.keys()
    assert all(first[name].equal(second[name]) for name in first)  # type: ignore[attr-defined]


def _kill_after(process: subprocess.Popen[str], metrics: Path, lines: int) -> None:
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        if metrics.is_file() and metrics.read_bytes().count(b"\n") >= lines:
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.002)
    process.communicate()


@pytest.mark.slow
def test_a_run_killed_at_random_steps_equals_an_uninterrupted_one_bit_for_bit(
    tiny: Path, tmp_path: Path, shoestring: Command
) -> None:
    whole = shoestring("train", tiny, *OPTIONS)
    assert whole.returncode == 0, whole.stderr
    one = RunFolder(tmp_path / "runs" / "tiny")
    plan = tmp_path / "plan.json"
    shutil.copy(one.plan, plan)
    again = ("train", tiny, *OPTIONS, "--set", "run.folder=again", "--plan", plan)
    other = RunFolder(tmp_path / "again" / "tiny")
    seed = time.time_ns()
    steps = sorted(random.Random(seed).sample(range(2, STEPS), 2))
    for step in steps:
        process = start(*again, cwd=tmp_path)
        _kill_after(process, other.metrics, step)
        assert process.returncode == -signal.SIGKILL, f"not killed at {step} (seed {seed})"
    assert not other.done.exists()
    finished = shoestring(*again)
    assert finished.returncode == 0, finished.stderr
    assert "going on after step" in finished.stdout
    print(f"killed after steps {steps}")
    _assert_same_run(one, other)


def test_a_signal_ends_the_run_saved_and_it_goes_on(tiny: Path, tmp_path: Path, shoestring: Command) -> None:
    options = ("--set", "budget.steps=2000", "--set", "train.checkpoint_every=1h", "--set", "evaluate.every=1.0")
    folder = RunFolder(tmp_path / "runs" / "tiny")
    process = start("train", tiny, *options, cwd=tmp_path)
    while process.poll() is None and not (folder.metrics.is_file() and folder.metrics.read_bytes().count(b"\n") > 5):
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate()
    assert process.returncode == 1
    assert "stopped by SIGTERM after step" in err
    assert "Traceback" not in err
    saved = Checkpoints(folder.checkpoints, 1).steps()
    assert saved
    assert f"after step {saved[0]}," in err


def test_a_half_written_checkpoint_is_passed_over(tiny: Path, tmp_path: Path, shoestring: Command) -> None:
    assert shoestring("train", tiny).returncode == 0
    folder = RunFolder(tmp_path / "runs" / "tiny")
    before = folder.metrics.read_bytes()
    last = sorted(folder.checkpoints.glob("step-*"))[-1]
    last.write_bytes(last.read_bytes()[:-100])
    folder.done.unlink()
    with folder.metrics.open("ab") as file:
        file.write(b'{"step": 41, "tok')  # torn by a kill
    again = shoestring("train", tiny)
    assert again.returncode == 0, again.stderr
    assert "left out" in again.stdout
    assert folder.metrics.read_bytes() == before


def test_two_processes_never_write_one_run(tiny: Path, tmp_path: Path, shoestring: Command) -> None:
    with RunFolder(tmp_path / "runs" / "tiny").lock():
        second = shoestring("train", tiny)
    assert second.returncode == 2
    assert "is in use by process" in second.stderr


def test_a_finished_run_is_not_run_again(tiny: Path, tmp_path: Path, shoestring: Command) -> None:
    assert shoestring("train", tiny).returncode == 0
    folder = RunFolder(tmp_path / "runs" / "tiny")
    before = {path: path.stat().st_mtime_ns for path in folder.path.rglob("*") if path.name != ".lock"}
    again = shoestring("train", tiny)
    assert again.returncode == 0
    assert "is finished" in again.stdout
    assert before == {path: path.stat().st_mtime_ns for path in folder.path.rglob("*") if path.name != ".lock"}


def test_another_recipe_does_not_go_on_in_the_same_folder(tiny: Path, shoestring: Command) -> None:
    assert shoestring("train", tiny).returncode == 0
    other = shoestring("train", tiny, "--set", "train.lr=1e-4")
    assert other.returncode == 2
    assert "train.lr was 0.003, is now 0.0001" in other.stderr
