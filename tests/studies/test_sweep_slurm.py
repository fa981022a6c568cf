"""The scripts of a sweep on Slurm: by a shell with a false Slurm, and where there is a real one, by that."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import Command, last_json

from shoestring.core.errors import PlanError
from shoestring.core.sweep_folder import SweepFolder
from shoestring.planning.sbatch import Array, array_script, report_script, submit_script
from shoestring.studies.sweep.slurm import cancel_jobs

RUN = """#!/bin/bash
echo "$*" >> "$HERE/asked"
trap 'echo "{\\"kind\\": \\"Stopped\\"}"; exit 1' USR1 TERM
case $MODE in
  done) echo '{}' ;;
  fail) echo '{"kind": "Fault"}'; exit 1 ;;
  wait) touch "$HERE/waits"; while :; do sleep 0.02; done ;;
esac
"""


def array_in(folder: Path, **more: object) -> Array:
    values = {
        "name": "x", "folder": str(folder), "working_folder": str(folder), "python": str(folder / "run"), "runs": 2,
        "at_once": 2, "seconds": 3600.0, "peak_bytes": 2**30, "on_gpu": False, "threads": 3,
        "names": str(folder / "runs.txt"),
    }  # fmt: skip
    return Array(**(values | more))  # type: ignore[arg-type]


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """A folder with the script of an array, a false python, and a false scontrol that writes what it is asked."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "runs.txt").write_text("first\nsecond one\n")
    (tmp_path / "array.sh").write_text(array_script(array_in(tmp_path)))
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


@pytest.mark.parametrize(("signal", "requeued"), [("USR1", True), ("TERM", False)])
def test_the_limit_requeues_and_cancelling_does_not(task: Path, signal: str, requeued: bool) -> None:
    process = start(task, "wait")
    while not (task / "waits").exists():
        time.sleep(0.01)
    subprocess.run(["kill", f"-{signal}", str(process.pid)], check=True)
    process.wait(20)
    assert (task / "requeued").exists() == requeued
    if requeued:
        assert (task / "requeued").read_text() == "requeue 7_1\n"


def test_an_array_asks_for_what_the_largest_run_needs(tmp_path: Path) -> None:
    text = array_script(array_in(tmp_path))
    for line in ("--array=0-1%2", "--time=0-01:02:00", "--cpus-per-task=3", "--mem=2304M", "--signal=B:USR1@30"):
        assert f"#SBATCH {line}\n" in text
    on_gpu = array_script(array_in(tmp_path, on_gpu=True, at_once=None))
    assert "#SBATCH --gpus-per-node=1\n" in on_gpu and "--mem" not in on_gpu
    assert "#SBATCH --array=0-1\n" in on_gpu
    with pytest.raises(PlanError, match="an option of Slurm is one line"):
        array_script(array_in(tmp_path, name="a\nrm"))
    for number, script in enumerate((text, report_script(array_in(tmp_path)), submit_script("a b", "c", "d"))):
        file = tmp_path / f"{number}.sh"
        file.write_text(script)
        assert subprocess.run(["bash", "-n", str(file)], check=False).returncode == 0


def test_without_jobs_nothing_is_cancelled(tmp_path: Path) -> None:
    assert cancel_jobs(SweepFolder(tmp_path)) == []


def has_slurm() -> bool:
    return shutil.which("sinfo") is not None and subprocess.run(["sinfo"], capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.slurm
@pytest.mark.skipif(not has_slurm(), reason="there is no Slurm here")
def test_an_array_fits_hmms_and_reports_them(tmp_path: Path, shoestring: Command) -> None:
    (tmp_path / "hmm.toml").write_text(
        '[run]\nname = "tiny"\n[budget]\nepochs = 2\n[data]\nsource = "stories"\ndocuments = 60\n'
        'tokenizer = "words:300"\nlength = 20\n[hmm]\nstates = 4\n'
    )
    over = ("sweep", "hmm.toml", "--over", "hmm.states=4,6", "--at-once", "2", "--json")
    written = shoestring(*over, "--sbatch")
    assert written.returncode == 0, written.stderr
    path = os.pathsep.join(sys.path)
    submit = str(last_json(written.stdout)["submit"])
    subprocess.run(["bash", submit], cwd=tmp_path, check=True, env=os.environ | {"PYTHONPATH": path})
    report, until = tmp_path / "sweeps/tiny/report.html", time.monotonic() + 120
    while not report.exists():
        assert time.monotonic() < until, "it never ended"
        time.sleep(0.5)
    assert all((tmp_path / f"runs/tiny-states{states}/DONE").is_file() for states in (4, 6))
