"""`pytest -n 3`: tests in processes that are forked from one that has loaded and collected them all.

pytest-xdist starts each process anew, which loads torch and collects all tests again: 15 s each. As with its
`--dist loadfile`, one process runs all tests of a file. If a process dies, the test that it ran fails, and another
process runs those after it.
"""

from __future__ import annotations

import gc
import itertools
import os
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import Pipe, util
from multiprocessing.connection import Connection, wait
from typing import NoReturn

import pytest

Place = tuple[int, int]
"""The number of a file, and of a test in it."""
NUMBER = struct.Struct("i")


@dataclass
class Process:
    """One that runs tests: which it began last, and what went wrong outside of tests."""

    pid: int
    says: Connection
    last: Place | None = None
    error: str = ""


class SideBySide:
    """In place of pytest's own loop over all tests. `prepare` is called before any fork, `begin` in each."""

    def __init__(self, processes: int, prepare: Callable[[], object], begin: Callable[[], object]):
        self.processes, self.prepare, self.begin, self.made = processes, prepare, begin, itertools.count()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        self.files = [[*items] for _, items in itertools.groupby(session.items, lambda item: item.path)]
        if session.config.option.collectonly or session.testsfailed or len(self.files) < 2:
            return None  # pytest's own loop
        session.config.pluginmanager.getplugin("terminalreporter").showfspath = False
        self.session, self.queue = session, _queue(len(self.files))
        self.prepare()
        gc.collect()
        gc.freeze()  # no process need look at, and copy, what is loaded
        running = [self._fork() for _ in range(min(self.processes, len(self.files)))]
        try:
            while running:
                for ready in wait([process.says for process in running]):
                    process = next(each for each in running if each.says is ready)
                    if not self._hear(process):
                        running.remove(process)
                        running += self._end(process)
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)
                if session.shouldstop:
                    raise session.Interrupted(session.shouldstop)
        finally:
            for process in running:
                os.kill(process.pid, signal.SIGKILL)
                os.waitpid(process.pid, 0)
            os.close(self.queue)
        return True

    def _hear(self, process: Process) -> bool:
        """Take what a process says. False: it says nothing more."""
        try:
            kind, said = process.says.recv()
        except EOFError:
            return False
        hook = self.session.config.hook
        if kind == "begin":
            process.last = said
        elif kind == "error":
            process.error = said
        else:
            report = hook.pytest_report_from_serializable(config=self.session.config, data=said)
            hook.pytest_runtest_logreport(report=report)
            if report.when == "teardown":
                hook.pytest_runtest_logfinish(nodeid=report.nodeid, location=report.location)
        return True

    def _end(self, process: Process) -> list[Process]:
        """Of a process that died, fail the test that it ran; another takes its place."""
        process.says.close()
        code = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])
        if code == 0:
            return []
        if process.last is None:
            raise RuntimeError(f"a process of tests ended before it ran any, exit code {code}. {process.error}")
        file, test = process.last
        item, rest = self.files[file][test], self.files[file][test + 1 :]
        why = f"the process that ran this test ended, exit code {code}\n{process.error}"
        failed = pytest.TestReport(item.nodeid, item.location, {}, "failed", why, "call")
        self.session.config.hook.pytest_runtest_logreport(report=failed)
        return [self._fork((file, test + 1) if rest else None)]

    def _fork(self, first: Place | None = None) -> Process:
        says, tell = Pipe(duplex=False)
        number = next(self.made)
        base = self.session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            says.close()
            _have_own(self.session.config, base / f"gw{number}")
            self._run(tell, first)
        tell.close()
        return Process(pid, says)

    def _run(self, tell: Connection, first: Place | None) -> NoReturn:
        """In the new process: run tests until there are no more."""
        code, config = 1, self.session.config
        try:
            self.begin()
            config.pluginmanager.unregister(name="terminalreporter")
            config.pluginmanager.register(_Telling(config, tell))
            for file, test in self._places(first):
                tell.send(("begin", (file, test)))
                item, *after = self.files[file][test : test + 2]
                config.hook.pytest_runtest_protocol(item=item, nextitem=after[0] if after else None)
                if self.session.shouldfail or self.session.shouldstop:
                    break  # as many tests failed as were to
            config._ensure_unconfigure()
            util._exit_function()  # type: ignore[attr-defined]  # as every process of multiprocessing
            code = 0
        except BaseException:
            tell.send(("error", traceback.format_exc()))
        finally:
            tell.close()
            os._exit(code)

    def _places(self, first: Place | None) -> Iterator[Place]:
        if first:
            yield from ((first[0], test) for test in range(first[1], len(self.files[first[0]])))
        while taken := os.read(self.queue, NUMBER.size):
            (file,) = NUMBER.unpack(taken)
            yield from ((file, test) for test in range(len(self.files[file])))


class _Telling:
    """In a process that runs tests: reports go to the first one."""

    def __init__(self, config: pytest.Config, tell: Connection):
        self.config, self.tell = config, tell

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        self.tell.send(("report", data))


def _queue(count: int) -> int:
    """A pipe with the numbers of all files; each process takes the next one."""
    taking, giving = os.pipe()
    os.write(giving, b"".join(map(NUMBER.pack, range(count))))
    os.close(giving)
    return taking


def _have_own(config: pytest.Config, folder: os.PathLike[str]) -> None:
    """Give a new process a temporary folder, and files for the output of tests, which it would share otherwise."""
    factory = config._tmp_path_factory  # type: ignore[attr-defined]
    factory._given_basetemp, factory._basetemp = folder, None
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
