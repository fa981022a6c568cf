"""The driver of a sweep: what fails, dies, is told to stop or loses its driver, in real processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sweep_runs import drive, make_sweep, started

from shoestring.core.errors import Fault, InUse
from shoestring.core.files import holder_of
from shoestring.core.run_folder import RunFolder
from shoestring.core.sweep_folder import SweepFolder
from shoestring.studies.sweep.driver import Job, cancel, command_of
from shoestring.studies.sweep.states import failures
from shoestring.track import read_lines


def wait_until(holds: Callable[[], object], seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.01)


def test_a_run_that_fails_or_dies_stops_no_other(tmp_path: Path) -> None:
    order = drive(tmp_path, 2, "fail-a", "die-b", "end-c", "end-d")
    events = {name: result.event for name, result in order.results.items()}
    assert events == {"fail-a": "failed", "die-b": "failed", "end-c": "ended", "end-d": "ended"}
    assert order.most == 2, "no more at a time than there are places"
    found = failures(SweepFolder(tmp_path / "sweep"))
    assert found["fail-a"] == "the loss is not finite"
    assert "SIGKILL" in found["die-b"]
    assert {line.split()[1] for line in (tmp_path / "starts").read_text().splitlines()} == {"1"}, "its own threads"
    (tmp_path / "starts").unlink()
    assert set(drive(tmp_path, 2, "fail-a", "die-b", "end-c", "end-d").results) == {"fail-a", "die-b"}, "tried again"


def test_a_killed_driver_loses_nothing(tmp_path: Path) -> None:
    names = ("wait-a", "wait-b", "end-c")
    driver = multiprocessing.get_context("fork").Process(target=drive, args=(tmp_path, 2, *names))
    driver.start()
    own = [RunFolder(tmp_path / "runs" / name) for name in names]
    wait_until(lambda: all((run.path / "begun").exists() for run in own[:2]))
    assert driver.pid is not None
    os.kill(driver.pid, signal.SIGKILL)
    driver.join()
    assert all(holder_of(run.lock_file) is not None for run in own[:2]), "its runs go on"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "sleep", lambda _, go=tmp_path / "go", sleep=time.sleep: (go.touch(), sleep(0.02)))
        order = drive(tmp_path, 2, *names)
    assert {name: result.event for name, result in order.results.items()} == dict.fromkeys(names, "ended")
    assert sorted(started(tmp_path)) == sorted(names), "none was started twice"


def test_a_sweep_has_one_driver(tmp_path: Path) -> None:
    sweep, _ = make_sweep(tmp_path, "end-a")
    with sweep.lock(), pytest.raises(InUse, match="the sweep"):
        drive(tmp_path, 1, "end-a")


def _stopped(folder: Path, names: tuple[str, ...]) -> None:
    """In a process of its own: exits with 7 where the driver said that it was stopped."""
    with pytest.raises(Fault, match="the same command continues"):
        drive(folder, 2, *names)
    os._exit(7)


def test_cancel_stops_the_driver_and_its_runs_save(tmp_path: Path) -> None:
    names = ("wait-a", "wait-b", "wait-c")
    driver = multiprocessing.get_context("fork").Process(target=_stopped, args=(tmp_path, names))
    driver.start()
    wait_until(lambda: all((tmp_path / "runs" / name / "begun").exists() for name in names[:2]))
    found = cancel(SweepFolder(tmp_path / "sweep"))
    driver.join(30)
    assert driver.exitcode == 7
    assert found.driver
    assert set(found.runs) == {"wait-a", "wait-b"}
    events = [(line["event"], line.get("run")) for line in read_lines(tmp_path / "sweep" / "events.jsonl")]
    assert ("stopped", "wait-a") in events and ("stopped", "wait-b") in events
    assert ("started", "wait-c") not in events
    assert not failures(SweepFolder(tmp_path / "sweep"))
    nothing = cancel(SweepFolder(tmp_path / "sweep"))
    assert (nothing.driver, nothing.runs) == (False, ())


def test_cancel_names_runs_that_the_driver_stops_at_once(tmp_path: Path) -> None:
    """As if it were faster than the look for its runs."""
    driver = multiprocessing.get_context("fork").Process(target=_stopped, args=(tmp_path, ("wait-a",)))
    driver.start()
    wait_until(lambda: (tmp_path / "runs/wait-a/begun").exists())

    def kill(pid: int, number: int, kill: Any = os.kill) -> None:
        kill(pid, number)
        driver.join(30)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "kill", kill)
        found = cancel(SweepFolder(tmp_path / "sweep"))
    assert (driver.exitcode, found.driver, found.runs) == (7, True, ("wait-a",))


def test_cancel_stops_runs_whose_driver_is_dead(tmp_path: Path) -> None:
    driver = multiprocessing.get_context("fork").Process(target=drive, args=(tmp_path, 1, "wait-a"))
    driver.start()
    own = RunFolder(tmp_path / "runs" / "wait-a")
    wait_until(lambda: (own.path / "begun").exists())
    assert driver.pid is not None
    os.kill(driver.pid, signal.SIGKILL)
    driver.join()
    assert cancel(SweepFolder(tmp_path / "sweep")).runs == ("wait-a",)
    wait_until(lambda: holder_of(own.lock_file) is None)
    assert not own.done.exists()


def test_a_run_is_told_how_much_time_is_left(tmp_path: Path) -> None:
    sweep, index = make_sweep(tmp_path, "end-a")
    job = Job(run=index.runs[0])
    assert "--time" not in command_of(sweep, job, None)
    words = command_of(sweep, job, 90.4)
    assert words[words.index("--time") + 1] == "90s"
    assert words[words.index("train") + 1] == str(sweep.recipe("end-a"))


def test_a_driver_in_a_thread_hears_no_signals_and_works(tmp_path: Path) -> None:
    thread = threading.Thread(target=drive, args=(tmp_path, 1, "end-a"))
    thread.start()
    thread.join(30)
    assert (tmp_path / "runs/end-a/DONE").exists()
