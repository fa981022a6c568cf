"""Trials in another process that may die: its answers until then count, and its death is a result.

The parent starts one *server*, which loads the libraries, once. For requests the server forks a *worker*, which builds
the workload and answers. Where a worker ran out of memory or time, or a trial needs a process that has seen no other,
the next request is answered by a new worker, and nothing is loaded again.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, Self

from shoestring.core.clock import process_age
from shoestring.core.errors import Fault, UserError
from shoestring.core.files import unnamed_file
from shoestring.core.host import is_out_of_memory, tells_no_memory, what_failed
from shoestring.probe.trials import Overheads, Trial, Trials, Usage

_MARK = "shoestring-finding "
_SET_DEATH_SIGNAL = 1
_NOT_INITIALISED = 3
"""CUDA's number of that error."""
_FORKS = sys.platform == "linux"
"""Whether a process that has loaded torch may be forked; elsewhere a server is its only worker."""

_LOOKS_BY_DRIVER = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""A library that looks for a GPU while it is loaded then asks the driver, and the server can still be forked."""

Request = dict[str, Any]
Answer = dict[str, Any]

_loading = 0.0
"""Seconds from the start of the server to the fork of its first worker."""


def loading() -> float:
    """Seconds that the libraries of this worker took to load, from the start of a process."""
    return _loading


def worker_age() -> float:
    """Seconds since the start of a process like this worker that loaded the libraries itself, as a run does."""
    return _loading + process_age()


def serve(answer: Callable[[Request], Answer]) -> None:
    """Answer requests, in the server, until there are no more. Running out of memory is an answer.

    Everything should be loaded before this call, and no GPU looked for: a process that did cannot be forked, and is its
    only worker.
    """
    global _loading
    _end_with_parent()
    for _ in iter(sys.stdin.readline, ""):  # asks for a worker, which reads the lines that follow
        if not _FORKS or looked_for_gpu():
            _work(answer)
            return
        _loading = _loading or process_age()
        worker = os.fork()
        if worker == 0:
            _work_alone(answer)
        _send({"ended": os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])})


def looked_for_gpu() -> bool:
    """Whether CUDA's driver has been initialised in this process."""
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD)  # only if it is loaded
    except OSError:
        return False
    return bool(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != _NOT_INITIALISED)


def _work_alone(answer: Callable[[Request], Answer]) -> NoReturn:
    """In a fork of the server, whose own work it must not continue."""
    code = 1
    try:
        os.setpgid(0, 0)  # what the worker starts ends with it
        _end_with_parent()
        _work(answer)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _work(answer: Callable[[Request], Answer]) -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # if the host runs out, it kills this process first
    _send({"worker": os.getpid()})
    for text in iter(sys.stdin.readline, ""):
        try:
            found = answer(json.loads(text))
        except Exception as cause:
            if is_out_of_memory(cause):
                found = {"memory": first_line(str(cause))}
            elif isinstance(cause, UserError):
                found = {"refused": str(cause)}
            else:
                raise
        _send(found)


def _send(answer: Answer) -> None:
    print(_MARK + json.dumps(answer), flush=True)


def _end_with_parent() -> None:
    """Be killed when the parent ends; only Linux has this call."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, int(signal.SIGKILL))


def first_line(text: str) -> str:
    return text.partition("\n")[0]


class Died(Fault):
    """A worker that ended by itself, for another reason than lack of memory."""


class OutOfTime(Fault):
    """A request that was ended, or not sent, because its time was up."""


class Child:
    """The parent's side of `serve`."""

    def __init__(self, command: Sequence[str], first: Request | None = None):
        """`first` is sent at once, and has no answer."""
        self._stderr = unnamed_file()
        self._worker: int | None = None
        """Its process group."""
        self._gone = False
        """Whether the server has ended."""
        self._process = subprocess.Popen(  # noqa: S603 - this Python, with a module of ours
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            env=alone(os.environ) | _LOOKS_BY_DRIVER,
            start_new_session=True,  # a process group of its own: what the child starts ends with it
        )
        if first is not None:
            self._tell(first)

    def ask(self, request: Request, seconds: float = math.inf) -> Answer:
        """The answer. Raises MemoryError where memory ran out or the worker was killed, Died where it crashed, and
        OutOfTime where it takes longer than `seconds`."""
        late = threading.Event()

        def end() -> None:
            late.set()
            self._kill()

        watch = threading.Timer(min(seconds, threading.TIMEOUT_MAX), end)
        watch.daemon = True
        watch.start()
        try:
            found = self._exchange(request)
        finally:
            watch.cancel()
        if found is not None and "ended" not in found:
            if "memory" in found:
                raise MemoryError(found["memory"])
            if "refused" in found:
                raise UserError(f"measuring failed: {found['refused']}")
            return found
        self._worker, self._gone = None, found is None
        code = self._process.wait() if found is None else found["ended"]
        if late.is_set():
            raise OutOfTime(f"measuring did not end within {seconds:.0f} s")
        if code == -signal.SIGKILL:
            raise MemoryError("the system killed the process")
        self._stderr.seek(0)
        written = self._stderr.read()
        if why := next(
            (line for line in written.splitlines() if tells_no_memory(line)), None
        ):  # of a library that ends the process
            raise MemoryError(why.strip())
        raise Died(f"{f'signal {-code}' if code < 0 else f'exit code {code}'}: {what_failed(written) or 'no message'}")

    def _exchange(self, request: Request) -> Answer | None:
        """The next finding of a worker; None where the server has ended."""
        if self._worker is None:
            self._stderr.seek(0)
            self._stderr.truncate()
            self._tell({})
            found = self._read()
            if found is None or "worker" not in found:
                return found
            self._worker = found["worker"]
        self._tell(request)
        return self._read()

    def _tell(self, request: Request) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has died; the missing answer shows it
            print(json.dumps(request), file=self._process.stdin, flush=True)

    def _read(self) -> Answer | None:
        assert self._process.stdout is not None
        for text in iter(self._process.stdout.readline, ""):
            if text.startswith(_MARK):
                found: Answer = json.loads(text.removeprefix(_MARK))
                return found
        return None

    def _kill(self) -> None:
        """End the worker, or the server where it has none."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._worker or self._process.pid, signal.SIGKILL)

    def end_worker(self) -> bool:
        """Whether the server is ready for another worker."""
        if self._worker is not None:
            self._kill()
            found: Answer | None = {}
            while found is not None and "ended" not in found:
                found = self._read()
            self._worker, self._gone = None, found is None
        return not self._gone

    def close(self) -> None:
        self._kill()
        self._worker = None
        self._kill()
        self._process.communicate()
        self._stderr.close()


def alone(environment: Any) -> dict[str, str]:
    """An environment without the variables that make a process part of a group."""
    group = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "MASTER_PORT"}
    return {
        name: value for name, value in environment.items() if name not in group and not name.startswith("TORCHELASTIC")
    }


class RemoteTrials:
    """The seconds and bytes of configurations, asked of a server that is started with the first question."""

    def __init__(self, command: Sequence[str], timeout: float, first: Request | None = None):
        """Every server is sent `first` before its first request."""
        self._command, self._timeout, self._first = command, timeout, first
        self._child: Child | None = None
        self.until = math.inf
        """When the answers must be there, by `time.monotonic`; questions later than that raise OutOfTime."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, request: Request) -> Answer:
        seconds = min(self._timeout, self.until - time.monotonic())
        if seconds <= 0:
            raise OutOfTime("the time for measuring is over")
        if self._child is None:
            self._child = Child(self._command, self._first)
        try:
            return self._child.ask(request, seconds)
        except BaseException:
            self.renew()
            raise

    def renew(self) -> None:
        """Have the next question answered by a process that has seen no other."""
        if self._child is not None and not self._child.end_worker():
            self.close()

    def close(self) -> None:
        """End all processes; the next question starts others."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def machine(self) -> Answer:
        """The machine of the child and its free memory, without building the workload."""
        return self.ask({"machine": True})

    def begin(self, batch: int, passes: int = 1) -> Answer:
        """Build the workload and take its first steps, of `passes` passes; the facts that the worker reports."""
        return self.ask({"begin": batch, "passes": passes})

    def trial(self, batch: int, seconds: float = 0.0, least: int = 1, scoring: bool = False) -> Trial:
        found = self.ask({"trial": batch, "seconds": seconds, "least": least, "scoring": scoring})
        usage = found["usage"] and Usage(*found["usage"])
        return Trial(**found | {"times": tuple(found["times"]), "usage": usage})

    def around(self, batch: int, scored: int, passes: int = 1) -> Overheads:
        return Overheads(**self.ask({"around": batch, "scored": scored, "passes": passes}))


def answer(trials: Trials, request: Request) -> Answer:
    """The answer of trials in this process to a request of `RemoteTrials`."""
    if "around" in request:
        return dict(trials.around(request["around"], request["scored"], request["passes"])._asdict())
    return dict(trials.trial(request["trial"], request["seconds"], request["least"], request["scoring"])._asdict())
