"""A run that is killed resumes as if nothing had happened."""

from __future__ import annotations

import random
import shutil
import signal
import time
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from commands import Started
from conftest import TINY, Command, start
from profiles import write_profile

from shoestring.cli.root import root
from shoestring.core.errors import RunError, UserError
from shoestring.core.results import Evaluation
from shoestring.core.run_folder import RunFolder
from shoestring.studies.run_results import read_trained
from shoestring.training.checkpoint import Checkpoints

STEPS = 60
OPTIONS = ("--set", f"budget.steps={STEPS}", "--set", "train.checkpoint_every=50ms")


def _weights(folder: RunFolder, steps: int) -> dict[str, object]:
    checkpoints = Checkpoints(folder.checkpoints, 1)
    opened = checkpoints.open(checkpoints.steps()[0])
    assert opened.state.step == steps
    return opened.read({})


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
    assert "resuming after step" in finished.stdout
    print(f"killed after steps {steps}")
    _assert_same_run(one, other)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe and its finished run, to be copied."""
    path = tmp_path_factory.mktemp("trained")
    (path / "tiny.toml").write_text(TINY)
    write_profile(path / "tiny.toml")
    _, err = start("train", "tiny.toml", cwd=path).communicate(timeout=120)
    assert RunFolder(path / "runs" / "tiny").done.is_file(), err
    return path


@pytest.fixture
def finished(trained: Path, tmp_path: Path) -> RunFolder:
    """That run, where commands are started."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    return RunFolder(tmp_path / "runs" / "tiny")


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
def test_a_signal_ends_the_run_saved_and_it_resumes_to_the_same_end(
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
    assert "resuming after step" in again.stdout
    _assert_same_run(whole, folder, LONG)


@pytest.mark.slow
def test_a_time_limit_ends_the_session_saved_and_the_next_resumes(
    tiny: Path, tmp_path: Path, shoestring: Command, whole: RunFolder
) -> None:
    folder, command = RunFolder(tmp_path / "runs" / "tiny"), ("train", tiny, *STOPPED, "--plan", whole.plan)
    for session in range(2):
        stopped = shoestring(*command, "--time", "1s")  # less than it takes to end: two steps are taken all the same
        _assert_stopped(stopped.returncode, stopped.stderr, "the time limit", folder)
        assert ("resuming after step" in stopped.stdout) == (session > 0)
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
    assert f"after step {saved}, saved; the same command continues from there" in err
    assert not folder.done.exists()


def test_a_half_written_checkpoint_is_passed_over(finished: RunFolder, shoestring: Command) -> None:
    before = finished.metrics.read_bytes()
    last = sorted(finished.checkpoints.glob("step-*"))[-1]
    last.write_bytes(last.read_bytes()[:-100])
    finished.done.unlink()
    with finished.metrics.open("ab") as file:
        file.write(b'{"step": 41, "tok')  # torn by a kill
    again = shoestring("train", "tiny.toml")
    assert again.returncode == 0, again.stderr
    assert "left out" in again.stdout
    assert finished.metrics.read_bytes() == before


def test_an_older_checkpoint_never_replaces_the_scores_of_a_later_one(
    finished: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = finished.evaluation.read_bytes()
    last = sorted(finished.checkpoints.glob("step-*"))[-1]
    content = last.read_bytes()
    last.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    invoke = partial(CliRunner().invoke, root)
    refused = invoke(["evaluate", "runs/tiny"])
    assert isinstance(refused.exception, RunError)
    assert "evaluation.json is of step 40, and the best intact checkpoint of step 30: it is kept" in str(
        refused.exception
    )
    used = "step-000000040.safetensors: damaged, its content does not match its checksum; step 30 is used instead"
    assert used in refused.output
    scored = invoke(["evaluate", "runs/tiny", "--checkpoint", "30"])
    assert (scored.exit_code, finished.evaluation.read_bytes()) == (0, before)
    finished.evaluation.write_text("{")  # a damaged record is made again
    again = invoke(["evaluate", "runs/tiny"])
    assert again.exit_code == 0, again.exception
    assert used in again.output
    assert Evaluation.read(finished.evaluation).step == 30
    finished.evaluation.write_bytes(before)
    assert invoke(["evaluate", "runs/tiny", "--force"]).exit_code == 0
    assert Evaluation.read(finished.evaluation).step == 30
    with pytest.raises(UserError, match="is of step 30, and the run delivers step 40; score that with"):
        read_trained(finished.path, "total")


def test_two_processes_never_write_one_run(tiny: Path, tmp_path: Path, shoestring: Command) -> None:
    with RunFolder(tmp_path / "runs" / "tiny").lock():
        second = shoestring("train", tiny)
    assert second.returncode == 2
    assert "is in use by process" in second.stderr


def test_a_finished_run_is_not_run_again(finished: RunFolder, shoestring: Command) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.path.rglob("*") if path.name != ".lock"}
    again = shoestring("train", "tiny.toml")
    assert again.returncode == 0
    assert "is finished" in again.stdout
    assert before == {path: path.stat().st_mtime_ns for path in finished.path.rglob("*") if path.name != ".lock"}


def test_another_recipe_does_not_resume_in_the_same_folder(finished: RunFolder, shoestring: Command) -> None:
    other = shoestring("train", "tiny.toml", "--set", "train.lr=1e-4")
    assert other.returncode == 2
    assert "train.lr was 0.003, is now 0.0001" in other.stderr


def test_a_run_that_has_begun_keeps_its_plan(finished: RunFolder, shoestring: Command) -> None:
    result = shoestring("plan", "tiny.toml")
    assert result.returncode == 2
    assert "keeps its plan" in result.stderr
