"""The end of a Slurm allocation, as its environment or `squeue` tells it. A silent `squeue` is no error."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from shoestring.core import clock as slurm
from shoestring.core import environment
from shoestring.core.clock import Clock
from shoestring.core.errors import UserError


class Standing(Clock):
    """A clock that stands at 100 seconds."""

    def elapsed(self) -> float:
        return 100.0


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> int:
    """A time of day that stands too."""
    standing = SimpleNamespace(time=lambda: 1_800_000_000.0, monotonic=time.monotonic)
    for module in (slurm, environment):
        monkeypatch.setattr(module, "time", standing)
    return 1_800_000_000


@pytest.fixture
def squeue(tmp_path: Path) -> dict[str, str]:
    """An environment whose `squeue` runs what the test writes into the file of that name."""
    path = tmp_path / "squeue"
    path.write_text("#!/bin/sh\nexit 1\n")
    path.chmod(0o755)
    return {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}


def answer(squeue: dict[str, str], script: str) -> float | None:
    path = Path(squeue["PATH"].partition(":")[0]) / "squeue"
    path.write_text(f"#!/bin/sh\n{script}\n")
    return slurm.allocation_end(Standing(), squeue)


def test_outside_of_an_allocation_there_is_no_end(squeue: dict[str, str]) -> None:
    del squeue["SLURM_JOB_ID"]
    assert answer(squeue, "echo 2999-01-01T00:00:00") is None
    assert slurm.allocation_end(Clock(), {}) is None


def test_the_end_is_on_the_clock_of_this_process(now: int) -> None:
    end = slurm.allocation_end(Standing(), {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": str(now + 600)})
    assert end == 700


def test_an_older_slurm_is_asked(squeue: dict[str, str], now: int) -> None:
    local = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(now + 600))
    asked = f'test "$*" = "--noheader --jobs 7 --format %e" && test "$SLURM_TIME_FORMAT" = standard && echo {local}'
    assert answer(squeue, asked) == 700


@pytest.mark.parametrize("script", ["echo NONE", "echo N/A", "echo", "echo error >&2; exit 1", "echo Unlimited"])
def test_no_limit_and_no_answer_are_no_end(script: str, squeue: dict[str, str]) -> None:
    assert answer(squeue, script) is None


def test_a_slurm_that_does_not_answer_is_not_waited_for(
    squeue: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "_PATIENCE", 0.2)
    assert answer(squeue, "sleep 60 >/dev/null 2>&1; echo 2999-01-01T00:00:00") is None


def test_a_machine_without_squeue_has_no_end(tmp_path: Path) -> None:
    assert slurm.allocation_end(Clock(), {"SLURM_JOB_ID": "7", "PATH": str(tmp_path)}) is None


@pytest.mark.parametrize("name", ["SLURM_JOB_ID", "SLURM_JOB_END_TIME"])
@pytest.mark.parametrize("value", ["abc", "-1", "1.5", "7\n8", "7,8", "--all", "9" * 400, "٣"])
def test_what_is_no_number_is_refused_by_name(name: str, value: str, now: int) -> None:
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": str(now + 600)}
    with pytest.raises(UserError, match=f"^{name}=.* in the environment: must be a whole number"):
        slurm.allocation_end(Standing(), job | {name: value})


@pytest.mark.parametrize("before", [0, 1, 10**6])
def test_a_job_that_has_ended_is_refused(before: int, now: int) -> None:
    """As in a terminal that was opened in a job: a run would stop at once, each time."""
    with pytest.raises(UserError, match="job 7 has ended; start another job, or unset SLURM_JOB_ID"):
        slurm.allocation_end(Standing(), {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": str(now - before)})


def test_an_empty_variable_is_as_one_that_is_not_set(squeue: dict[str, str], now: int) -> None:
    local = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(now + 600))
    squeue |= {"SLURM_JOB_END_TIME": ""}
    assert answer(squeue, f"echo {local}") == 700
    assert answer(squeue | {"SLURM_JOB_ID": ""}, f"echo {local}") is None


def test_time_counts_from_the_start_of_the_allocation_where_a_script_says_when(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOESTRING_START", str(int(time.time()) - 10**6))
    assert Clock().elapsed() >= 10**6
    monkeypatch.setenv("SHOESTRING_START", str(int(time.time()) + 10**6))  # of a clock that is ahead
    assert Clock().elapsed() < 10**6
    monkeypatch.setenv("SHOESTRING_START", "noon")
    with pytest.raises(UserError, match="SHOESTRING_START='noon' in the environment: must be a whole number"):
        Clock()
