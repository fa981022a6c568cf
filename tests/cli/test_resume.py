"""A run that is killed goes on as if nothing had happened."""

from __future__ import annotations

import random
import shutil
import signal
import time
from pathlib import Path

import pytest
from commands import Started
from conftest import TINY, Command, start
from profiles import write_profile

from shoestring.core.run_folder import RunFolder
from shoestring.train.checkpoint import Checkpoints, read

STEPS = 150
OPTIONS = ("--set", f"budget.steps={STEPS}", "--set", "train.checkpoint_every=50ms")


def _weights(folder: RunFolder, steps: int) -> dict[str, object]:
    step = Checkpoints(folder.checkpoints, 1).steps()[0]
    tensors, state = read(folder.checkpoints / f"step-{step:09d}.safetensors")
    assert state.step == steps
    return tensors


def _assert_same_run(one: RunFolder, other: RunFolder, steps: int = STEPS) -> None:
    assert one.metrics.read_bytes() == other.metrics.read_bytes()
    assert one.evaluation.read_bytes() == other.evaluation.read_bytes()
    first, second = _weights(one, steps), _weights(other, steps)
    assert first.keys() == second.keys()
    assert all(first[name].equal(second[name]) for name in first)  # type: ignore[attr-defined]


def _kill_after(process: Started, metrics: Path, lines: int) -> None:
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
    write_profile(tiny)
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


LONG = 150
STOPPED = ("--set", f"budget.steps={LONG}", "--set", "train.checkpoint_every=1h", "--set", "evaluate.every=0.5")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run that nothing interrupts."""
    path = tmp_path_factory.mktemp("whole")
    (path / "tiny.toml").write_text(TINY)
    write_profile(path / "tiny.toml")
    _, err = start("train", "tiny.toml", *STOPPED, cwd=path).communicate(timeout=120)
    run = RunFolder(path / "runs" / "tiny")
    assert run.done.is_file(), err
    return run


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_ends_the_run_saved_and_it_goes_on_to_the_same_end(
    number: signal.Signals, tiny: Path, tmp_path: Path, shoestring: Command, whole: RunFolder
) -> None:
    folder, command = RunFolder(tmp_path / "runs" / "tiny"), ("train", tiny, *STOPPED, "--plan", whole.plan)
    process = start(*command, cwd=tmp_path)
    while process.poll() is None and not (folder.metrics.is_file() and folder.metrics.read_bytes().count(b"\n") > 5):
        time.sleep(0.01)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    _assert_stopped(process.returncode, err, number.name, folder)
    again = shoestring(*command)
    assert again.returncode == 0, again.stderr
    assert "going on after step" in again.stdout
    _assert_same_run(whole, folder, LONG)


@pytest.mark.slow
def test_a_time_limit_ends_the_session_saved_and_the_next_goes_on(
    tiny: Path, tmp_path: Path, shoestring: Command, whole: RunFolder
) -> None:
    folder, command = RunFolder(tmp_path / "runs" / "tiny"), ("train", tiny, *STOPPED, "--plan", whole.plan)
    for session in range(2):
        stopped = shoestring(*command, "--time", "1s")  # less than it takes to end: two steps are taken all the same
        _assert_stopped(stopped.returncode, stopped.stderr, "the time limit", folder)
        assert ("going on after step" in stopped.stdout) == (session > 0)
    again = shoestring(*command, "--time", "1h")
    assert again.returncode == 0, again.stderr
    _assert_same_run(whole, folder, LONG)
    wrong = shoestring(*command, "--time", "soon")
    assert wrong.returncode == 2
    assert "soon" in wrong.stderr


def _assert_stopped(code: int, err: str, why: str, folder: RunFolder) -> None:
    """One clear line, and the checkpoint that it names."""
    assert code == 1, err
    assert f"error: stopped by {why} after step" in err
    assert err.count("\n") == 1
    saved = Checkpoints(folder.checkpoints, 2).steps()[0]
    assert f"after step {saved}, saved; the same command goes on from there" in err
    assert not folder.done.exists()


def test_a_half_written_checkpoint_is_passed_over(tiny: Path, tmp_path: Path, shoestring: Command) -> None:
    write_profile(tiny)
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
    write_profile(tiny)
    assert shoestring("train", tiny).returncode == 0
    folder = RunFolder(tmp_path / "runs" / "tiny")
    before = {path: path.stat().st_mtime_ns for path in folder.path.rglob("*") if path.name != ".lock"}
    again = shoestring("train", tiny)
    assert again.returncode == 0
    assert "is finished" in again.stdout
    assert before == {path: path.stat().st_mtime_ns for path in folder.path.rglob("*") if path.name != ".lock"}


def test_another_recipe_does_not_go_on_in_the_same_folder(tiny: Path, shoestring: Command) -> None:
    write_profile(tiny)
    assert shoestring("train", tiny).returncode == 0
    other = shoestring("train", tiny, "--set", "train.lr=1e-4")
    assert other.returncode == 2
    assert "train.lr was 0.003, is now 0.0001" in other.stderr
