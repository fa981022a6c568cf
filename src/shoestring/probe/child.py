"""Trials in a child process that may die: its answers until then count, and its death is a result."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from shoestring.core.errors import Fault, UserError
from shoestring.probe.trials import Overheads, Trial, Trials, Usage

_MARK = "shoestring-finding "
_SET_DEATH_SIGNAL = 1
_NO_MEMORY = ("out of memory", "ALLOC_FAILED", "can't allocate memory", "Cannot allocate memory")
"""Messages of a device without memory, besides torch.OutOfMemoryError."""

Request = dict[str, Any]
Answer = dict[str, Any]


def serve(answer: Callable[[Request], Answer]) -> None:
    """Answer requests, in the child, until there are no more. Running out of memory is an answer."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # if the host runs out, it kills this process first
    with contextlib.suppress(OSError, AttributeError):  # be killed when the parent ends; only Linux has this call
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, int(signal.SIGKILL))
    for text in sys.stdin:
        try:
            found = answer(json.loads(text))
        except MemoryError as cause:
            found = {"memory": str(cause)}
        except UserError as cause:
            found = {"refused": str(cause)}
        except RuntimeError as cause:
            if not any(sign in str(cause) for sign in _NO_MEMORY):
                raise
            found = {"memory": str(cause).splitlines()[0]}
        print(_MARK + json.dumps(found), flush=True)


class Died(Fault):
    """A child that ended by itself, for another reason than lack of memory."""


class Child:
    """The parent's side of `serve`."""

    def __init__(self, command: Sequence[str], timeout: float):
        self._timeout = timeout
        self._stderr = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(  # noqa: S603 - this Python, with a module of ours
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            env=alone(os.environ),
            start_new_session=True,  # a process group of its own: what the child starts ends with it
        )

    def ask(self, request: Request) -> Answer:
        """The answer. Raises MemoryError where memory ran out or the child was killed, Died where it crashed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has died; the missing answer shows it
            print(json.dumps(request), file=self._process.stdin, flush=True)
        late = threading.Event()

        def end() -> None:
            late.set()
            self._kill()

        watch = threading.Timer(self._timeout, end)
        watch.start()
        try:
            for text in self._process.stdout:
                if text.startswith(_MARK):
                    found: Answer = json.loads(text.removeprefix(_MARK))
                    if "memory" in found:
                        raise MemoryError(found["memory"])
                    if "refused" in found:
                        raise UserError(f"measuring failed: {found['refused']}")
                    return found
        finally:
            watch.cancel()
        if late.is_set():
            raise Fault(f"measuring did not end within {self._timeout:.0f} s")
        code = self._process.wait()
        if code == -signal.SIGKILL:
            raise MemoryError("the system killed the process")
        self._stderr.seek(0)
        lines = self._stderr.read().strip().splitlines() or ["no message"]
        raise Died(f"{f'signal {-code}' if code < 0 else f'exit code {code}'}: {lines[-1]}")

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
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
    """Trials in a child that is started when needed, and again after it ran out of memory."""

    def __init__(self, command: Sequence[str], timeout: float):
        self._command, self._timeout = command, timeout
        self._child: Child | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, request: Request) -> Answer:
        if self._child is None:
            self._child = Child(self._command, self._timeout)
        try:
            return self._child.ask(request)
        except BaseException:
            self.close()
            raise

    def begin(self, batch: int, passes: int = 1) -> Answer:
        """Build the workload and take its first steps, of `passes` passes; the facts that the child reports."""
        return self.ask({"begin": batch, "passes": passes})

    def machine(self) -> Answer:
        """The machine of the child and its free memory, without building the workload."""
        return self.ask({"machine": True})

    def close(self) -> None:
        """End the child; the next trial starts another."""
        if self._child is not None:
            self._child.close()
            self._child = None

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
