"""Trials in a child process that may die: what it told before counts, and its death is a finding."""

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
from shoestring.probe.trials import Around, Trial, Trials
from shoestring.probe.workload import Usage

_MARK = "shoestring-finding "
_NO_MEMORY = ("out of memory", "ALLOC_FAILED", "can't allocate memory", "Cannot allocate memory")
"""How a device says it, besides torch.OutOfMemoryError."""

Request = dict[str, Any]
Answer = dict[str, Any]


def serve(answer: Callable[[Request], Answer]) -> None:
    """Called in the child: answer requests until there are no more. Running out of memory is an answer."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # if the host is short, nobody else is to be killed
    _end_with_parent()
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


def _end_with_parent() -> None:
    """Be killed when the parent ends, however it does; only Linux has a call for it."""
    set_death_signal = 1
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(set_death_signal, int(signal.SIGKILL))


class Died(Fault):
    """A child that ended by itself, and not for want of memory."""


class Child:
    """The parent's side of `serve`."""

    def __init__(self, command: Sequence[str], timeout: float):
        self._timeout = timeout
        self._said = tempfile.TemporaryFile("w+")
        # a group of its own: what the child starts ends with it
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env=alone(os.environ),
            start_new_session=True,
        )

    def ask(self, request: Request) -> Answer:
        """The answer. Memory that does not suffice, and a kill, raise MemoryError; another death raises Died."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has died, as the answer will show
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
                    return _answer(json.loads(text.removeprefix(_MARK)))
        finally:
            watch.cancel()
        if late.is_set():
            raise Fault(f"measuring did not end within {self._timeout:.0f} s")
        return self._mourn()

    def _mourn(self) -> Answer:
        code = self._process.wait()
        self._said.seek(0)
        lines = self._said.read().strip().splitlines()
        said = lines[-1] if lines else "no message"
        if code == -signal.SIGKILL:
            raise MemoryError("the system killed the process")
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise Died(f"{how}: {said}")

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        self._kill()
        self._process.communicate()
        self._said.close()


def alone(environment: Any) -> dict[str, str]:
    """An environment without what makes a process part of a team."""
    team = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "MASTER_PORT"}
    return {
        name: value for name, value in environment.items() if name not in team and not name.startswith("TORCHELASTIC")
    }


def _answer(found: Answer) -> Answer:
    if "memory" in found:
        raise MemoryError(found["memory"])
    if "refused" in found:
        raise UserError(f"measuring failed: {found['refused']}")
    return found


class RemoteTrials:
    """Trials in a child that is started when it is needed, and anew after it ran out of memory."""

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
        """Build the workload and take its first steps, of some passes; what the child tells of itself."""
        return self.ask({"begin": batch, "passes": passes})

    def machine(self) -> Answer:
        """Where the child runs, and the memory that is free there; builds nothing."""
        return self.ask({"machine": True})

    def close(self) -> None:
        """End the child; the next trial starts another."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def trial(self, batch: int, seconds: float = 0.0, least: int = 1, scoring: bool = False) -> Trial:
        found = self.ask({"trial": batch, "seconds": seconds, "least": least, "scoring": scoring})
        return trial_of(found)

    def around(self, batch: int, scored: int, passes: int = 1) -> Around:
        return Around(**self.ask({"around": batch, "scored": scored, "passes": passes}))


def trial_of(found: Answer) -> Trial:
    """A trial that came as JSON."""
    usage = found["usage"]
    values = found | {"times": tuple(found["times"]), "usage": None if usage is None else Usage(*usage)}
    return Trial(**values)


def answer(trials: Trials, request: Request) -> Answer:
    """What trials in this process say to a request of `RemoteTrials`."""
    if "around" in request:
        return dict(trials.around(request["around"], request["scored"], request["passes"])._asdict())
    return dict(trials.trial(request["trial"], request["seconds"], request["least"], request["scoring"])._asdict())
