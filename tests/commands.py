"""`shoestring …` in a process of its own that need not load torch: it is forked from one that has.

Loading takes seconds, most commands of the tests less than one. What is forked has run nothing yet; it has its own
number and its own start, can be signalled and killed, and writes to files that are read when it has ended.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, NoReturn

NO_FIGURES = "NO_FIGURES"
"""Environment variable: pages have no figures, whose library takes seconds to begin in every process."""

BEGUN: dict[str, str] = {}
"""The environment before any test: it is that of the process from which others are forked."""


@cache
def forks() -> ForkServerContext:
    """Processes that are forked from one that has loaded what tests need."""
    import torch

    context = multiprocessing.get_context("forkserver")
    if not torch.cuda.is_available():  # a process that has looked for a GPU must not be forked
        context.set_forkserver_preload(["warm"])
    kept, own = dict(os.environ), BEGUN or dict(os.environ)
    os.environ.clear()
    os.environ |= own | {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parent), own.get("PYTHONPATH")]))
    }
    try:
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ |= kept
    return context


def share_forks() -> None:
    """Use the process that `forks` has started before this one was forked, though it is no child of this one."""
    forkserver._forkserver.ensure_running = resource_tracker.ensure_running  # type: ignore[attr-defined]


class Started:
    """A command that runs: as much of `subprocess.Popen` as the tests need."""

    def __init__(
        self,
        arguments: Sequence[str],
        cwd: Path,
        environment: Mapping[str, str],
        begin: Callable[[], object] | None = None,
    ):
        """`begin`, a function of a module, takes the place of the command line."""
        self.args = ["shoestring", *arguments]
        self._folder = tempfile.TemporaryDirectory()
        self._said = [Path(self._folder.name, name) for name in ("out", "err")]
        for path in self._said:
            path.touch()
        given = (self.args, cwd, os.environ | dict(environment), self._said, begin)
        self._process = forks().Process(target=_run, args=given)
        self._process.start()

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Minus the number of the signal that ended it; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        if self._process.pid is not None and self.poll() is None:
            os.kill(self._process.pid, number)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """All that it said, once, when it has ended. One that takes longer is killed, and that is an error."""
        with self._folder:
            self._process.join(timeout)
            late = self.poll() is None
            if self._process.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)  # with what it has started, if that is still there
            if late:
                self._process.kill()
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            out, err = (path.read_text() for path in self._said)
            return out, err


def _run(
    arguments: list[str],
    cwd: Path,
    environment: dict[str, str],
    said: Sequence[Path],
    begin: Callable[[], object] | None,
) -> None:
    """What `python -m shoestring` does, in the new process."""
    os.setpgrp()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    for number, path in enumerate(said, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), number)
    sys.argv = arguments
    if environment.get(NO_FIGURES):
        sys.modules["vl_convert"] = None  # type: ignore[assignment]
    if "warm" in sys.modules:  # what measures has children too, and a sweep
        from shoestring.probe import child
        from shoestring.studies.sweep import driver, survey

        survey.crowd = survey.fly = lambda *_: None  # they would take seconds
        child.subprocess = SimpleNamespace(Popen=_Child, PIPE=subprocess.PIPE)  # type: ignore[attr-defined]
        driver.subprocess = SimpleNamespace(Popen=_SweepRun, DEVNULL=subprocess.DEVNULL)  # type: ignore[attr-defined]
    if begin is None:
        from shoestring.cli.main import main as begin
    begin()


def alone_in_its_group(pid: int | None) -> int:
    """The number of a process as soon as it has a group of its own: a signal to its group is for no other."""
    assert pid is not None
    with contextlib.suppress(ProcessLookupError):  # it has ended
        while os.getpgid(pid) != pid:
            time.sleep(0.001)
    return pid


def _be_module(arguments: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """In a new process: `python -m MODULE …`."""
    code: object = 1
    try:
        os.setsid()
        os.environ.clear()
        os.environ.update(environment)
        sys.argv, sys.stdin, sys.stdout, sys.stderr = [*arguments], open(0), open(1, "w"), open(2, "w")
        runpy.run_module(arguments[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


class _Child:
    """`python -m MODULE …` by a fork of this process: as much of `subprocess.Popen` as `probe.child` needs."""

    def __init__(self, command: Sequence[str], *, stderr: IO[str], env: Mapping[str, str], **_pipes: object):
        asked, ask = os.pipe()
        answer, answered = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            for number, end in enumerate((asked, answered, stderr.fileno())):
                os.dup2(end, number)
            os.closerange(3, max(asked, ask, answer, answered) + 1)
            _be_module(command[2:], env)
        os.close(asked)
        os.close(answered)
        self.stdin, self.stdout = open(ask, "w"), open(answer)

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def communicate(self) -> None:
        for end in (self.stdin, self.stdout):
            with contextlib.suppress(BrokenPipeError):
                end.close()
        with contextlib.suppress(ChildProcessError):  # it was waited for
            self.wait()


class _SweepRun:
    """A run of a sweep by a fork of its driver: as much of `subprocess.Popen` as `studies.sweep.driver` needs."""

    def __init__(
        self, command: Sequence[str], *, stdout: IO[bytes], stderr: IO[bytes], env: Mapping[str, str], **_how: object
    ):
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            for number, end in enumerate((os.open(os.devnull, os.O_RDONLY), stdout.fileno(), stderr.fileno())):
                os.dup2(end, number)
            os.closerange(3, 256)  # the lock of the sweep is the driver's
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
                signal.signal(number, signal.SIG_DFL)
            _be_module(command[2:], env)

    def poll(self) -> int | None:
        if self.returncode is None and (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.returncode = os.waitstatus_to_exitcode(ended[1])
        return self.returncode

    def terminate(self) -> None:
        if self.returncode is None:
            os.kill(self.pid, signal.SIGTERM)


class Measuring(_Child):
    """As `_Child`, forked from the process that has loaded what tests need: this one has threads, and trained."""

    def __init__(self, command: Sequence[str], *, stderr: IO[str], env: Mapping[str, str], **_pipes: object):
        asked, ask = forks().Pipe(duplex=False)
        answer, answered = forks().Pipe(duplex=False)
        said = Connection(os.dup(stderr.fileno()), readable=False)
        given = (asked, answered, said, os.getcwd(), command[2:], dict(env))
        self._process = forks().Process(target=_serve, args=given)
        self._process.start()
        self.pid = alone_in_its_group(self._process.pid)
        self.stdin, self.stdout = open(os.dup(ask.fileno()), "w"), open(os.dup(answer.fileno()))
        for end in (asked, ask, answer, answered, said):
            end.close()

    def wait(self) -> int:
        self._process.join()
        assert self._process.exitcode is not None
        return self._process.exitcode


def _serve(
    asked: Connection, answered: Connection, said: Connection, cwd: str, arguments: Sequence[str], env: dict[str, str]
) -> NoReturn:
    """In the child of `Measuring`."""
    os.chdir(cwd)
    for number, end in enumerate((asked, answered, said)):
        os.dup2(end.fileno(), number)
        end.close()
    _be_module(arguments, env)


def measure_in_forks() -> None:
    """Let `probe.child` start the server of measurements, and nothing else, as `Measuring`."""
    from shoestring.probe import child

    def start(command: Sequence[str], **how: Any) -> Any:
        is_server = "shoestring.runs.probe_server" in command
        is_forked = multiprocessing.parent_process() is not None  # and may have no children of this kind
        return Measuring(command, **how) if is_server and not is_forked else subprocess.Popen(command, **how)

    child.subprocess = SimpleNamespace(Popen=start, PIPE=subprocess.PIPE)  # type: ignore[attr-defined]


PYTHON = sys.executable
WORKERS = ("shoestring.runs.launch", "shoestring.runs.async_worker", "shoestring.runs.measure_sums")
"""Modules whose processes a run starts beside itself; each would load torch."""


class Forked:
    """As `Measuring`, of a worker of a run: as much of `subprocess.Popen` as these need."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        env: Mapping[str, str],
        pass_fds: Sequence[int] = (),
        **_how: object,
    ):
        self.args, self.stdin, self.stdout = command, None, None
        streams = []
        for number, given in enumerate((stdin, stdout, stderr)):
            if given == subprocess.PIPE:
                reading, writing = forks().Pipe(duplex=False)
                own, theirs = (reading, writing) if number else (writing, reading)
                setattr(self, ("stdin", "stdout")[number], open(os.dup(own.fileno()), "r" if number else "w"))
                own.close()
            else:
                nothing = given == subprocess.DEVNULL
                theirs = Connection(os.open(os.devnull, os.O_RDWR) if nothing else os.dup(number))
            streams.append(theirs)
        passed = [Connection(os.dup(each)) for each in pass_fds]
        given = (streams, dict(zip(map(str, pass_fds), passed)), os.getcwd(), command[2:], dict(env))
        self._process = forks().Process(target=_be_worker, args=given)
        self._process.start()
        self.pid = alone_in_its_group(self._process.pid)
        for end in (*streams, *passed):
            end.close()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            self._process.kill()

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """What it said, once, when it has ended: less than a pipe holds."""
        self.wait(timeout)
        if self.stdout is None or self.stdout.closed:
            return "", None
        with self.stdout as said:
            return said.read(), None


def _be_worker(
    streams: Sequence[Connection],
    passed: Mapping[str, Connection],
    cwd: str,
    arguments: Sequence[str],
    env: dict[str, str],
) -> NoReturn:
    """In the child of `Forked`, where files that it was given have other numbers."""
    os.chdir(cwd)
    for number, end in enumerate(streams):
        os.dup2(end.fileno(), number)
        end.close()
    sys.modules.pop(arguments[0], None)  # as in a new process
    numbers = {old: str(end.fileno()) for old, end in passed.items()}
    _be_module([numbers.get(each, each) for each in arguments], env)


class _Popen(subprocess.Popen[Any]):
    """Of everything but workers of a run; those are `Forked`."""

    def __new__(cls, args: Any, *_rest: Any, **how: Any) -> Any:
        is_forked = multiprocessing.parent_process() is not None  # and may have no children of this kind
        if not is_forked and isinstance(args, list) and args[:2] == [PYTHON, "-m"] and args[2] in WORKERS:
            return Forked(args, **how)
        return super().__new__(cls)


def start_workers_in_forks() -> None:
    """Let a run of this process start its workers as `Forked`."""
    BEGUN.update(os.environ)
    subprocess.Popen = _Popen  # type: ignore[misc]
