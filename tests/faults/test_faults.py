"""No bad input is a bug: exit code 2, file and field named, nothing written, no traceback, within ten seconds."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import random_inputs
from cases import CALLS, Case, commands, every_case, kind_of
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spoiled import nothing
from world import build

from shoestring.board import server
from shoestring.cli.main import main
from shoestring.cli.root import root
from shoestring.data.store import fixed_rows
from shoestring.parallel import process_group
from shoestring.probe.child import RemoteTrials
from shoestring.runs import generate, session
from shoestring.runs.hmm_task import HmmTask
from shoestring.runs.network_task import NetworkTask
from shoestring.studies import law_options

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


class Accepted(BaseException):
    """A command has found nothing wrong, and begins to work."""


class Worlds:
    """Copies of a world, one after the other: one that was not changed is used again."""

    def __init__(self, folder: Path):
        self._good, self._copy, self.spoiled = folder / "good", folder / "copy", True
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
        inside = f"{place}/"[len(f"{folder}/") :]
        found |= {inside + name: (0, 0) for name in folders if not name.startswith(".lock")}
        for name in names:
            if not name.startswith(".lock"):
                status = os.lstat(f"{place}/{name}")
                found[inside + name] = (status.st_size, status.st_mtime_ns)
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
    for command in set(commands()) - {"doctor"}:  # which refuses nothing, but says what it finds
        assert any(case.arguments[: len(command.split())] == tuple(command.split()) for case in CASES), command


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.encode("unicode_escape").decode())
def test_a_bad_input_is_refused(case: Case, worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome(case, worlds, monkeypatch) == 2


def may_stay(case: Case, name: str) -> bool:
    """Whether a refused command may leave this: a store tells whether its rows suffice only when it is whole."""
    return case.arguments[0] == "prepare" and name.startswith("stores/")


def outcome(case: Case, worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> int:
    """0 where a command accepts its input; 2 where it refuses it, as it should: by name, briefly, and nothing more."""
    here = worlds.next()
    monkeypatch.chdir(here)
    case.act(here)
    before = files_in(here)
    try:
        code, said = run(case, monkeypatch)
    except Accepted:
        return 0
    except TooLong:
        pytest.fail(f"no answer within {LIMIT} s: {case.arguments}")
    shown = said if len(said) < 3000 else f"{said[:1500]} … {said[-1500:]}"
    assert "this is a bug" not in said, shown
    assert "Traceback" not in said, shown
    assert code in (0, 2), (code, shown)
    worlds.spoiled = case.act is not nothing
    if code == 2:
        for names in case.names:
            assert any(name in said for name in names.split("|")), (names, shown)
        assert len(said) < 5000, shown
        after = files_in(here)
        assert {name: after[name] for name in after if name in before or not may_stay(case, name)} == before
    else:
        worlds.spoiled |= files_in(here) != before
    return int(code)


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes long with a large value, and comes after all checks, does not begin."""

    def begin(*_: object, **__: object) -> NoReturn:
        raise Accepted

    checked = law_options.ask

    def ask(approach: str, penalty: str, bootstraps: int, *others: Any) -> object:
        asked = checked(approach, penalty, bootstraps, *others)
        return asked if bootstraps < 100 else begin()

    for place, name in (
        (RemoteTrials, "ask"), (session, "train"), (generate, "generate"), (fixed_rows, "_write"),
        (process_group, "rendezvous"), (server, "serve"),
        (NetworkTask, "prepare"), (HmmTask, "prepare"),
    ):  # fmt: skip
        monkeypatch.setattr(place, name, begin)
    monkeypatch.setattr(law_options, "ask", ask)


RANDOM = settings(
    max_examples=int(os.environ.get("FAULTS_EXAMPLES", "30")),
    derandomize="FAULTS_EXAMPLES" not in os.environ,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
"""The same few in every run; FAULTS_EXAMPLES=3000 takes that many, other ones each time."""
FIELD_COMMANDS = (
    ("plan", "new.toml"),
    ("train", "new.toml"),
    ("law", "flops", "new.toml"),
    ("measure", "new.toml", "--estimate"),
    ("plan", "new.toml", "--gpu", "NVIDIA A100-SXM4-80GB"),
)


def field_case(command: tuple[str, ...], setting: tuple[str, str]) -> Case:
    """What is refused names the field, its section, what its value names, or what is missing now."""
    field, value = setting
    section, _, name = field.partition(".")
    start = ("plan", "hmm.toml") if section == "hmm" and len(command) > 2 else command
    start = tuple(part.replace("new", "hmm") for part in start) if section == "hmm" else start
    named = value.strip('"').partition(":")[2] or value
    return Case(
        f"{' '.join(start)}: {field}",
        (*start, "--set", f"{field}={value}"),
        (f"{field}|{name}|--set|{section}:|{named}|/profile.json",),
    )


CASES_OF = {
    "options": random_inputs.option_cases(),
    "fields": st.builds(field_case, st.sampled_from(FIELD_COMMANDS), random_inputs.fields_set()),
    "names": random_inputs.name_cases(),
    "files": random_inputs.file_cases(),
    "variables": random_inputs.environment_cases(),
}


@pytest.mark.parametrize("what", CASES_OF)
def test_any_value_is_accepted_or_refused(what: str, worlds: Worlds, no_work: None) -> None:
    @RANDOM
    @given(CASES_OF[what])
    def check(case: Case) -> None:
        with pytest.MonkeyPatch.context() as inner:
            outcome(case, worlds, inner)

    check()


@RANDOM
@given(random_inputs.text_cases())
def test_any_text_is_prepared_or_refused(worlds: Worlds, case: Case) -> None:
    with pytest.MonkeyPatch.context() as inner:
        outcome(case, worlds, inner)


TABLES: tuple[tuple[str, ...], ...] = (
    *((*name.split(), *CALLS[name]) for name in (
        "measure", "plan", "prepare", "sweep run", "sweep status", "sweep report", "evaluate", "compare", "data check",
        "data show", "hmm score", "hmm show", "law compare", "law fit", "law flops", "law isoflop", "law optimum",
        "law predict",
    )),
    ("plan", "new.toml", "--what-if", "train.batch=2"),
    ("plan", "new.toml", "--gpu", "NVIDIA A100-SXM4-80GB", "--vocabulary", "50000"),
    ("plan", "new.toml", "--simulate", "workers=4,slow=0.5:2x,step=1s"),
    ("law", "isoflop", "new.toml", "--sizes", "64x2,96x3,128x4", "--flops", "1e12,1e13"),
    ("law", "optimum", "--flops", "1e21"),
    ("evaluate", "runs/hmm", "--on", "text:words.txt"),
    ("evaluate", "runs/net", "--on", "pairs:pairs.jsonl"),
)  # fmt: skip
"""Commands that print tables."""


@pytest.mark.parametrize("arguments", TABLES, ids=" ".join)
def test_a_terminal_of_80_columns_breaks_no_word(
    arguments: tuple[str, ...], worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The words are those of a wide terminal; no line is longer, but where one word is, such as a path."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")  # rich writes as for a terminal
    monkeypatch.setenv("TERM", "xterm")
    narrow, wide = (_printed(arguments, columns, worlds.next(), monkeypatch) for columns in (80, 500))
    assert [line for line in narrow.splitlines() if len(line.rstrip()) > 80 and len(line.split()) > 1] == []
    assert _words(narrow) <= _words(wide)


def _printed(arguments: tuple[str, ...], columns: int, here: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(here)
    Path("pairs.jsonl").write_text('{"good": "the cat sat", "bad": "cat the sat", "oracle": 1, "UID": "order"}\n' * 4)
    monkeypatch.setenv("COLUMNS", str(columns))
    found = CliRunner().invoke(root, list(arguments), catch_exceptions=False)
    assert found.exit_code == 0 and found.output.strip(), found.output
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", found.output)


def _words(text: str) -> set[str]:
    """The words, without rules and numbers: what was measured differs from one time to the next."""
    return {re.sub(r"\d+", "0", word.rstrip(":")) for word in text.split()} - {"─" * n for n in range(1, 81)}
