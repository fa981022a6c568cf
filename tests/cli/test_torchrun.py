"""The command line under torchrun, two processes on a CPU: one run, one writer, one reporter, and nothing ever hangs.

What needs no process to end is tried in two that are there already, without torchrun and the command line.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest
import torch.distributed.run
from commands import Started
from conftest import TINY
from conftest import start as start_one
from processes import as_torchrun, together
from profiles import write_profile
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from shoestring.cli.main import main
from shoestring.core.clock import Clock
from shoestring.core.errors import ShoestringError
from shoestring.core.recipe_file import load
from shoestring.core.records import Plan, Profile
from shoestring.core.run_folder import RunFolder
from shoestring.models.language_model import LanguageModel
from shoestring.parallel.process_group import ProcessGroup, ReportedElsewhere
from shoestring.runs.reporter import Reporter
from shoestring.runs.runner import run
from shoestring.track import read_lines
from shoestring.training.checkpoint import Checkpoints

PACKED = ("data.packing=best_fit", "data.document_mask=true", "train.per_device=1")
SHARDED = ("parallel.shard=true",)
SECONDS = 120

pytestmark = pytest.mark.slow


def torchrun(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """`shoestring …` in two new processes, by the real torchrun, which need not load torch for itself."""
    options = ("--standalone", "--nproc-per-node", "2", "-m", "shoestring")
    return end(start_one(*options, *arguments, cwd=cwd, begin=torch.distributed.run.main, OMP_NUM_THREADS="1"))


def start(*arguments: str | Path, cwd: Path, script: str = "") -> Started:
    """The same by torchrun's agent and forks; a script may change something in the two before they begin."""
    return start_one(*arguments, cwd=cwd, begin=launch, OMP_NUM_THREADS="1", SCRIPT=script)


def launch() -> None:
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        run_id="torchrun",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        start_method="fork",
    )
    elastic_launch(config, work)()


def work() -> None:
    """In one of the two, which notes how it ends: torchrun's own exit code is always 1."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as a new process has it; a fork has the agent's, which raises
    leave = os._exit

    def noted(code: int) -> NoReturn:
        Path(f"exit code of {os.environ['RANK']}").write_text(str(code))
        leave(code)

    os._exit = noted
    exec(os.environ["SCRIPT"], {})
    main()


def end(process: Started) -> subprocess.CompletedProcess[str]:
    """What came of it; one that hangs is killed, and fails."""
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode is not None
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@dataclass
class Alone:
    """Runs of one process, this one, which are made once, and their plans for other recipes."""

    path: Path

    def run(self, *overrides: str) -> RunFolder:
        name = "-".join(overrides) or "plain"
        made = RunFolder(self.path / name / "tiny")
        if not made.done.is_file():
            folders = (f"run.folder={self.path / name}", self.stores)
            plan = self.plan(*overrides) if overrides else None
            write_profile(self.path / "tiny.toml", *overrides, *folders)
            run(load(self.path / "tiny.toml", (*overrides, *folders)), Reporter(), Clock(), plan)
        return made

    @property
    def stores(self) -> str:
        return f"data.folder={self.path / 'stores'}"

    def plan(self, *overrides: str) -> Path:
        """The plan, as if it had been made for a recipe with these overrides."""
        plan, path = Plan.read(self.run().plan), self.path / f"plan {' '.join(overrides)}.json"
        recipe = load(self.path / "tiny.toml", overrides)
        rows, batch, steps = (
            recipe.train.per_device or plan.per_device or 1,
            recipe.batch,
            int(recipe.budget.steps or 0),
        )
        split = {"per_device": rows, "accumulate": batch // rows, "predictions": None}
        sizes = {"steps": steps, "samples": steps * batch, "tokens": steps * batch * recipe.data.length}
        replace(plan, recipe=recipe.fingerprint, **split, **sizes).write(path)
        return path


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    path = tmp_path_factory.mktemp("alone")
    (path / "tiny.toml").write_text(TINY)
    return Alone(path)


Start = Callable[..., Started]


@pytest.fixture
def begin(tiny: Path, tmp_path: Path, alone: Alone) -> Start:
    """Begin to train in two processes with what was measured and prepared before."""

    def begun(*overrides: str, script: str = "") -> Started:
        given = [part for override in (*overrides, alone.stores) for part in ("--set", override)]
        return start("train", tiny, *given, "--plan", alone.plan(*overrides), cwd=tmp_path, script=script)

    return begun


class Said(Reporter):
    """Remembers what a person would hear."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


class Came(NamedTuple):
    """What came of a run, in one of its processes."""

    said: list[str]
    finished: bool
    error: str | None = None
    code: int = 0
    elsewhere: bool = False
    """Whether another process tells of the error."""


def run_together(
    group: ProcessGroup, recipe: Path, overrides: tuple[str, ...], plan: Path | None = None, script: str = ""
) -> Came:
    """A run in processes that have met; a script may change something first: the forward pass, or by `patch`."""
    reporter = Said()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LanguageModel, "forward", LanguageModel.forward)  # as it is, in the end
        as_torchrun(patch, group)
        exec(script, {"patch": patch})
        try:
            return Came(reporter.lines, run(load(recipe, overrides), reporter, Clock(), plan) is not None)
        except ShoestringError as error:
            told = isinstance(error.__cause__, ReportedElsewhere)
            return Came(reporter.lines, False, str(error), error.exit_code, told)


Together = Callable[..., list[Came]]


@pytest.fixture
def two(tiny: Path, tmp_path: Path, alone: Alone) -> Together:
    """A run in two processes that are there already, to its end, with what was prepared before."""

    def came(*overrides: str, plan: Path | None = None, script: str = "") -> list[Came]:
        folders = (f"run.folder={tmp_path / 'runs'}", alone.stores)
        return together(run_together, 2, tiny, (*overrides, *folders), plan, script)

    return came


def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "runs" / "tiny")


def assert_same_losses(one: RunFolder, other: RunFolder) -> None:
    first, second = read_lines(one.metrics), read_lines(other.metrics)
    assert [line["step"] for line in first] == [line["step"] for line in second]
    for a, b in zip(first, second):
        assert a.keys() == b.keys()
        for name in ("loss", "heldout_loss"):
            if name in a:
                assert b[name] == pytest.approx(a[name], abs=1e-6), (a["step"], name)
    told, again = (json.loads(run.evaluation.read_text()) for run in (one, other))
    assert again["loss"] == pytest.approx(told["loss"], abs=1e-6)
    assert (again["rows"], again["tokens"]) == (told["rows"], told["tokens"])


def test_two_processes_train_what_one_does(tiny: Path, tmp_path: Path, alone: Alone, two: Together) -> None:
    write_profile(tiny)
    result = torchrun("train", tiny, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("Plan against actual") == 1, "one reporter"
    assert result.stdout.count("page: ") == 1
    assert " × 2 " in result.stdout, "two devices are in the plan"
    made = folder(tmp_path)
    assert len(read_lines(made.metrics)) == 40 + 4, "one writer"
    assert made.done.is_file()
    assert made.report.is_file()
    assert_same_losses(alone.run(), made)
    first, second = two()
    assert [line.count("is finished") for line in first.said] == [1]
    assert first.finished
    assert second == Came([], False), "and only one says so"


MEASURED = """
from shoestring.core.records import Profile
from shoestring.core.schema import encode
from shoestring.runs import measure
own = Profile.from_dict({own!r}, "test")
patch.setattr(measure, "_measure", lambda *_: own)
patch.setattr(measure.RemoteTrials, "machine", lambda _: {{"machine": encode(own.machine), "available_bytes": None}})
"""


def test_two_processes_measure_before_they_train(tiny: Path, tmp_path: Path, alone: Alone, two: Together) -> None:
    """What each of them finds is made up."""
    own = write_profile(tiny, "run.name=other")
    first, second = two(script=MEASURED.format(own=own.to_dict()))
    assert (first.error, second.error) == (None, None)
    assert Profile.read(folder(tmp_path).profile).devices == 2
    assert Plan.read(folder(tmp_path).plan).devices == 2
    assert_same_losses(alone.run(), folder(tmp_path))


def test_two_processes_train_a_sharded_model_on_packed_rows(tmp_path: Path, alone: Alone, two: Together) -> None:
    """With the plan of one process, which is for any number of them."""
    overrides = (*PACKED, *SHARDED)
    first, second = two(*overrides, plan=alone.plan(*overrides))
    assert (first.error, second.error) == (None, None)
    assert {path.suffix for path in folder(tmp_path).checkpoints.iterdir()} == {".parts"}
    assert_same_losses(alone.run(*PACKED), folder(tmp_path))


def test_a_batch_that_does_not_divide_is_one_error_and_nothing_is_written(tmp_path: Path, two: Together) -> None:
    first, second = two("train.batch=5")
    assert first.error is not None
    assert "an effective batch of 5 rows does not divide over 2 processes" in first.error
    assert first.code == 2
    assert second.error == first.error
    assert (first.elsewhere, second.elsewhere) == (False, True), "one tells"
    assert not folder(tmp_path).path.exists()


BROKEN = """
import os
from shoestring.core.errors import DataError
from shoestring.training.stepper import Stepper
begin = Stepper.begin

def broken(self, step, schedule, requests):
    if step == 5 and os.environ["RANK"] == "{rank}":
        raise {error}("row 7 is damaged")
    return begin(self, step, schedule, requests)

Stepper.begin = broken
"""


@pytest.mark.parametrize(("rank", "error", "options"), [(0, "ValueError", ()), (1, "DataError", SHARDED)])
def test_an_error_in_one_process_ends_all(
    rank: int, error: str, options: tuple[str, ...], tmp_path: Path, begin: Start
) -> None:
    result = end(begin(*options, script=BROKEN.format(rank=rank, error=error)))
    assert result.returncode != 0
    assert result.stderr.count("row 7 is damaged") == 1
    assert result.stderr.count("this is a bug") == (error == "ValueError"), "the other one knows that it is not its own"
    assert (tmp_path / f"exit code of {rank}").read_text() == ("2" if error == "DataError" else "1")


FULL = """
import os
import torch
from shoestring.models.language_model import LanguageModel
forward = LanguageModel.forward
steps = 0

def limited(self, batch):
    global steps
    steps += self.training
    if os.environ["RANK"] == "1" and steps > {after} and len(batch.ids) > {rows}:
        raise torch.OutOfMemoryError("CUDA out of memory")
    return forward(self, batch)

LanguageModel.forward = limited
"""


def test_memory_that_runs_out_in_one_process_halves_the_rows_of_all(
    tmp_path: Path, alone: Alone, two: Together
) -> None:
    plan, script = alone.plan("train.per_device=2"), FULL.format(after=7, rows=1)
    first, second = two("train.per_device=2", plan=plan, script=script)
    assert first.finished
    assert first.said.count("step 7 did not fit the memory; it is repeated with per_device = 1") == 1
    assert second == Came([], False)
    halved = [line for line in read_lines(folder(tmp_path).timings) if line.get("event") == "halved"]
    assert [(line["step"], line["per_device"]) for line in halved] == [(7, 1)]
    assert_same_losses(alone.run(), folder(tmp_path))


def test_a_sharded_model_that_runs_out_of_memory_resumes_with_half_when_it_is_started_again(
    tmp_path: Path, alone: Alone, begin: Start, two: Together
) -> None:
    overrides, script = ("train.per_device=2", "train.checkpoint_every=1ms", *SHARDED), FULL.format(after=9, rows=1)
    result = end(begin(*overrides, script=script))
    assert result.returncode != 0
    assert result.stderr.count("a micro-batch of 2 does not fit the memory; the same command continues with 1") == 1
    assert "this is a bug" not in result.stderr
    first, second = two(*overrides, plan=alone.plan(*overrides), script=script)
    assert (first.error, second.error) == (None, None)
    assert any("resuming after step" in line for line in first.said)
    assert_same_losses(alone.run(), folder(tmp_path))


LONG = ("budget.steps=3000", "train.checkpoint_every=1h", "evaluate.every=1.0")


def begin_to_train(process: Started, run: RunFolder) -> None:
    """Return when some steps are taken."""
    until = time.monotonic() + SECONDS
    while process.poll() is None and time.monotonic() < until and len(read_lines(run.metrics)) < 5:
        time.sleep(0.05)


def assert_stopped(number: signal.Signals, err: str, stopped: RunFolder) -> None:
    """One reporter tells it, and what it names is there."""
    assert err.count(f"stopped by {number.name} after step") == 1, err
    steps = Checkpoints(stopped.checkpoints, 1).steps()
    assert len(steps) == 1
    assert f"after step {steps[0]}, saved" in err
    assert Checkpoints(stopped.checkpoints, 1).latest() == (steps[0], [])
    assert not list(stopped.checkpoints.glob(".*"))


def test_a_signal_to_torchrun_stops_all_saved(tmp_path: Path, begin: Start) -> None:
    process = begin(*LONG)
    begin_to_train(process, folder(tmp_path))
    process.send_signal(signal.SIGTERM)
    result = end(process)
    assert result.returncode != 0
    assert_stopped(signal.SIGTERM, result.stderr, folder(tmp_path))


@pytest.mark.parametrize(
    ("number", "whom", "options"),
    [(signal.SIGUSR1, 0, ()), (signal.SIGINT, 1, SHARDED)],
    ids=["first", "second-shard"],
)
def test_a_signal_to_one_process_stops_all_saved(
    number: signal.Signals, whom: int, options: tuple[str, ...], tiny: Path, tmp_path: Path, alone: Alone
) -> None:
    """In processes with the environment that torchrun gives: none ends the others, so each must end by itself."""
    overrides = (*LONG, *options)
    given = [part for override in (*overrides, alone.stores) for part in ("--set", override)]
    command = ("train", tiny, *given, "--plan", alone.plan(*overrides))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    both = [start_one(*command, cwd=tmp_path, RANK=str(rank), LOCAL_RANK=str(rank), **meeting) for rank in range(2)]
    begin_to_train(both[0], folder(tmp_path))
    both[whom].send_signal(number)
    said = [process.communicate(SECONDS) for process in both]
    assert [process.returncode for process in both] == [1, 1], said
    assert_stopped(number, "".join(err for _, err in said), folder(tmp_path))
