"""No bad input is a bug: exit code 2, file and field named, nothing written, no traceback, within ten seconds."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cases import CALLS, Case, commands, every_case, kind_of
from spoiled import nothing
from world import build

from shoestring.cli.main import main

EVERY = every_case()
CASES = EVERY if os.environ.get("FAULTS") == "all" else EVERY[::3]
"""A third of them, evenly; all with FAULTS=all, in some two minutes."""
MODULES = (
    "shoestring.cli.running",
    "shoestring.runs.evaluate",
    "shoestring.runs.export",
    "shoestring.runs.sample",
    "shoestring.studies.law",
)
"""What commands import when they come to it; the first of them would pay for all."""
LIMIT = 10
"""Seconds that a refusal may take."""


class TooLong(BaseException):
    """A command that does not answer."""


class Worlds:
    """Copies of a world, one after the other: one that was not changed is used again."""

    def __init__(self, folder: Path):
        self._good, self._copy, self.spoiled = folder / "good", folder / "copy", True
        self._good.mkdir()
        build(self._good)

    def next(self) -> Path:
        if self.spoiled:
            shutil.rmtree(self._copy, ignore_errors=True)
            shutil.copytree(self._good, self._copy, symlinks=True)
        self.spoiled = True
        return self._copy


@pytest.fixture(scope="session")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    for module in MODULES:
        importlib.import_module(module)
    return Worlds(tmp_path_factory.mktemp("faults"))


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """End what takes ten seconds of work, or a minute of waiting: the machine may be busy."""

    def stop(*_: object) -> None:
        raise TooLong

    timers = {signal.SIGPROF: (signal.ITIMER_PROF, LIMIT), signal.SIGALRM: (signal.ITIMER_REAL, 6 * LIMIT)}
    before = {number: signal.signal(number, stop) for number in timers}
    for timer, seconds in timers.values():
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for number, (timer, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


def files_in(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file, and every folder; locks, which stay where they were taken, do not count."""
    found = {}
    for place, folders, names in os.walk(folder):
        for name in (*folders, *names):
            if not name.startswith(".lock"):
                status = os.lstat(os.path.join(place, name))
                is_folder = name in folders
                key = os.path.relpath(os.path.join(place, name), folder)
                found[key] = (0, 0) if is_folder else (status.st_size, status.st_mtime_ns)
    return found


def run(case: Case, monkeypatch: pytest.MonkeyPatch) -> tuple[object, str]:
    """The exit code of a command and what it said, in this process."""
    said = io.StringIO()
    monkeypatch.setattr(sys, "argv", ["shoestring", *case.arguments])
    for name, value in case.environment.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()), limited():
        try:
            main()
        except SystemExit as end:
            return end.code, said.getvalue()
    return None, said.getvalue()


def test_every_argument_of_every_command_is_in_the_table() -> None:
    known = commands()
    assert set(CALLS) == set(known), "a working call of each command"
    unknown = [
        f"{command}: {parameter.name}"
        for command, found in known.items()
        for parameter in found.params
        if kind_of(command, parameter) is None
    ]
    assert not unknown


def test_there_are_enough_of_them() -> None:
    assert len(CASES) >= 600
    assert len({case.name for case in CASES}) == len(CASES)
    for command in commands():
        assert any(case.arguments[: len(command.split())] == tuple(command.split()) for case in CASES), command


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.encode("unicode_escape").decode())
def test_a_bad_input_is_refused(case: Case, worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    here = worlds.next()
    monkeypatch.chdir(here)
    case.act(here)
    before = files_in(here)
    try:
        code, said = run(case, monkeypatch)
    except TooLong:
        pytest.fail(f"no answer within {LIMIT} s: {case.arguments}")
    shown = said if len(said) < 3000 else f"{said[:1500]} … {said[-1500:]}"
    assert "this is a bug" not in said, shown
    assert "Traceback" not in said, shown
    assert code == 2, shown
    for names in case.names:
        assert any(name in said for name in names.split("|")), (names, shown)
    assert len(said) < 5000, shown
    assert files_in(here) == before
    worlds.spoiled = case.act is not nothing
