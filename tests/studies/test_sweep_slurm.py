"""The scripts of a sweep on Slurm, by a shell with a false Slurm; tests/slurm/ has a real one."""

from __future__ import annotations

import os
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import Command, last_json
from hypothesis import given
from hypothesis import strategies as st

from shoestring.core.errors import PlanError, UserError
from shoestring.core.sweep_folder import SweepFolder
from shoestring.planning.sbatch_array import (
    Array,
    Sweeping,
    array_script,
    parse_options,
    prepare_script,
    report_script,
    submit_script,
)
from shoestring.studies.sweep.slurm import MOST_TASKS, Need, arrays_of
from shoestring.studies.sweep.slurm_jobs import cancel_jobs, queue

RUN = """#!/bin/bash
echo "$*" >> "$HERE/asked"
trap 'echo "{\\"kind\\": \\"Stopped\\"}"; exit 1' USR1 TERM
case $MODE in
  done) echo '{}' ;;
  fail) echo '{"kind": "Fault"}'; exit 1 ;;
  early) trap - USR1; touch "$HERE/waits"; while :; do sleep 0.02; done ;;
  wait) touch "$HERE/waits"; while :; do sleep 0.02; done ;;
esac
"""
ARRAY = Array(runs=("first", "second one"), at_once=2, seconds=3600.0, peak_bytes=2**30)


def sweep_in(here: Path, **more: Any) -> Sweeping:
    values = {"name": "x", "folder": str(here), "working_folder": str(here), "python": str(here / "run")}
    return Sweeping(**({"on_gpu": False, "threads": 3} | values | more))


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """A folder with the script of an array, a false python, and a false scontrol that writes what it is asked."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "array.sh").write_text(array_script(sweep_in(tmp_path), ARRAY))
    for name, text in {"run": RUN, "scontrol": '#!/bin/bash\necho "$*" >> "$HERE/requeued"\n'}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod((tmp_path / name).stat().st_mode | stat.S_IEXEC)
    return tmp_path


def start(task: Path, mode: str) -> subprocess.Popen[bytes]:
    own = {"HERE": str(task), "MODE": mode, "PATH": f"{task}:{os.environ['PATH']}", "SLURM_ARRAY_JOB_ID": "7"}
    own |= {"SLURM_ARRAY_TASK_ID": "1", "SLURM_CPUS_PER_TASK": "3"}
    return subprocess.Popen(["bash", str(task / "array.sh")], env=os.environ | own)


def test_a_task_runs_the_run_of_its_number(task: Path) -> None:
    assert start(task, "done").wait(20) == 0
    assert (task / "asked").read_text() == f"-m shoestring train {task}/recipes/second one.toml --json\n"
    assert not (task / "requeued").exists()


def test_a_task_that_fails_is_not_requeued(task: Path) -> None:
    assert start(task, "fail").wait(20) == 1
    assert not (task / "requeued").exists()


@pytest.mark.parametrize(
    ("mode", "signal", "requeued"), [("wait", "USR1", True), ("wait", "TERM", False), ("early", "USR1", True)]
)
def test_the_limit_requeues_and_cancelling_does_not(task: Path, mode: str, signal: str, requeued: bool) -> None:
    process = start(task, mode)
    while not (task / "waits").exists():
        time.sleep(0.01)
    subprocess.run(["kill", f"-{signal}", str(process.pid)], check=True)
    process.wait(20)
    assert (task / "requeued").exists() == requeued
    if requeued:
        assert (task / "requeued").read_text() == "requeue 7_1\n"


def test_an_array_asks_for_what_the_largest_run_needs(tmp_path: Path) -> None:
    text = array_script(sweep_in(tmp_path), ARRAY)
    for line in ("--array=0-1%2", "--time=0-01:02:00", "--cpus-per-task=3", "--mem=2304M", "--signal=B:USR1@30"):
        assert f"#SBATCH {line}\n" in text
    on_gpu = array_script(sweep_in(tmp_path, on_gpu=True, processes=2), Array(**(vars(ARRAY) | {"at_once": None})))
    for line in ("--gpus-per-node=2", "--array=0-1", "--cpus-per-task=6"):
        assert f"#SBATCH {line}\n" in on_gpu
    assert "--mem" not in on_gpu and "torch.distributed.run --nproc-per-node=2 --standalone" in on_gpu
    given = sweep_in(tmp_path, options=parse_options(["time=4:00:00", "--partition=long", "exclusive"]))
    own = array_script(given, ARRAY)
    for line in ("--time=4:00:00", "--partition=long", "--exclusive"):
        assert f"#SBATCH {line}\n" in own
    assert own.count("--time") == 1 and "--partition=long" in report_script(given)
    assert "--exclusive" not in report_script(given)
    with pytest.raises(PlanError, match="an option of Slurm is one line"):
        array_script(sweep_in(tmp_path, name="a\nrm"), ARRAY)


@pytest.mark.parametrize(
    ("text", "message"), [("array=3", "sets array itself"), ("", "NAME=VALUE"), ("a b", "NAME=VALUE")]
)
def test_wrong_options_are_named(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_options([text])


def test_all_scripts_are_shell(tmp_path: Path) -> None:
    odd = sweep_in(tmp_path, folder="/a b/it's", python="/c d/python")
    scripts = [array_script(odd, ARRAY), array_script(sweep_in(tmp_path, nodes=2, processes=4), ARRAY)]
    scripts += [report_script(odd), prepare_script(odd, {"a b.toml": "plan.json"}, 600)]
    scripts.append(submit_script({"a b": ("r", "s'"), "c": ("t",)}, [0, 0], "d", "e", "f"))
    for number, script in enumerate(scripts):
        file = tmp_path / f"{number}.sh"
        file.write_text(script)
        assert subprocess.run(["bash", "-n", str(file)], check=False).returncode == 0


def test_submitting_keeps_the_order_and_the_numbers(tmp_path: Path) -> None:
    sbatch = """#!/bin/bash
n=$(($(cat "$HERE/n" 2> /dev/null || echo 0) + 1)); echo $n > "$HERE/n"; echo "$*" >> "$HERE/asked"; echo "$n;cluster"
"""
    (tmp_path / "sbatch").write_text(sbatch)
    (tmp_path / "sbatch").chmod(0o755)
    folder = SweepFolder(tmp_path / "sweep")
    folder.slurm.mkdir(parents=True)
    arrays = {"a.sh": ("r", "it's"), "b.sh": ("t",), "c.sh": ("u",)}
    script = submit_script(arrays, [0, 0, 1], "report.sh", str(folder.jobs), "prepare.sh")
    environment = os.environ | {"HERE": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], env=environment, check=True, capture_output=True, text=True)
    assert done.stdout == "submitted: prepare 1, arrays 2, 3, 4, report 5\n"
    assert (tmp_path / "asked").read_text().splitlines() == [
        "--parsable prepare.sh",
        "--parsable --dependency=afterany:1 a.sh",
        "--parsable --dependency=afterany:2 b.sh",
        "--parsable --dependency=afterany:1 c.sh",
        "--parsable --dependency=afterany:2:3:4 report.sh",
    ]
    lines = ("2|1|PENDING|BeginTime", "4|0|RUNNING|None", "5|N/A|PENDING|Dependency", "9|0|RUNNING|None")
    squeue = "\n".join(["#!/bin/bash", "cat << END", *lines, "END", ""])
    (tmp_path / "squeue").write_text(squeue)
    (tmp_path / "squeue").chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", environment["PATH"])
        found = queue(folder)
    assert {name: str(each) for name, each in found.runs.items()} == {
        "it's": "job 2_1: pending (BeginTime)",
        "u": "job 4_0: running",
    }
    assert found.jobs == ("2", "4", "5") and found.others == ("report: job 5: pending (Dependency)",)


@given(
    st.lists(st.tuples(st.floats(1, 1e5), st.integers(1, 2**36) | st.none()), min_size=1, max_size=40),
    st.none() | st.integers(1, 12),
)
def test_arrays_have_every_run_once_and_enough_of_everything(
    drawn: list[tuple[float, int | None]], at_once: int | None
) -> None:
    needs = [Need(run=f"r{number}", seconds=seconds, bytes=size) for number, (seconds, size) in enumerate(drawn)]
    arrays, chains = arrays_of(needs, at_once)
    assert sorted(run for array in arrays for run in array.runs) == sorted(need.run for need in needs)
    of = {run: array for array in arrays for run in array.runs}
    for need in needs:
        assert of[need.run].seconds >= need.seconds
        assert need.bytes is None or (of[need.run].peak_bytes or 0) >= need.bytes
    if at_once is None:
        for array in arrays:
            shortest = min(need.seconds for need in needs if need.run in array.runs)
            assert array.seconds <= max(2 * shortest, 60)
    else:
        limits = {chain: array.at_once or 0 for array, chain in zip(arrays, chains)}
        assert 1 <= sum(limits.values()) <= at_once


def test_an_array_that_is_too_large_is_split_into_a_chain() -> None:
    needs = [Need(run=str(number), seconds=60.0, bytes=None) for number in range(2 * MOST_TASKS + 1)]
    arrays, chains = arrays_of(needs, 4)
    assert [len(array.runs) for array in arrays] == [MOST_TASKS, MOST_TASKS, 1]
    assert chains == [0, 0, 0] and {array.at_once for array in arrays} == {4}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--sbatch", "--halving", "asha"), "an array takes every run to its end"),
        (("--sbatch", "--time", "1h"), "--slurm-option time="),
        (("--nodes", "2"), "are for --slurm and --sbatch"),
        (("--sbatch", "--slurm-option", "array=1"), "sets array itself"),
        (("--sbatch", "--gpu", "abacus"), "unknown; known ones are"),
        (("--slurm",), "there is no sbatch here"),
    ],
)
def test_mistakes_are_named(words: tuple[str, ...], message: str, tiny: Path, shoestring: Command) -> None:
    told = shoestring("sweep", tiny, "--over", "train.lr=1e-3,1e-2", *words, PATH="/nowhere")
    assert told.returncode == 2 and message in told.stderr and "Traceback" not in told.stderr


def test_plans_for_a_gpu_that_is_not_here(tiny: Path, tmp_path: Path, shoestring: Command) -> None:
    wide = ("--over", "model.width=16,2048", "--over", "train.lr=1e-3,1e-2", "--set", "budget.steps=100000")
    told = shoestring("sweep", tiny, *wide, "--gpu", "NVIDIA H200", "--processes", "2", "--sbatch", "--json")
    assert told.returncode == 0, told.stderr
    assert [run["state"] for run in last_json(told.stdout)["runs"]] == ["waiting"] * 4  # type: ignore[attr-defined]
    folder = tmp_path / "sweeps/tiny/slurm"
    arrays = [file.read_text() for file in sorted(folder.glob("array-*.sh"))]
    assert len(arrays) == 2, "they differ in time"
    assert all("#SBATCH --gpus-per-node=2" in text for text in arrays)
    assert len(list(folder.glob("plan-*.json"))) == 1, "one text"


def test_without_jobs_nothing_is_cancelled(tmp_path: Path) -> None:
    assert cancel_jobs(SweepFolder(tmp_path)) == []
