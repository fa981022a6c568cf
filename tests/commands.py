"""`shoestring …` in a process of its own that need not load torch: it is forked from one that has.

Loading takes seconds, most commands of the tests less than one. What is forked has run nothing yet; it has its own
number and its own start, can be signalled and killed, and writes to files that are read when it has ended.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path

_LOADED = (
    "numba",
    "pydantic",
    "rich.live",
    "rich.table",
    "scipy.linalg",
    "shoestring.cli.running",
    "shoestring.cli.terminal",
    "shoestring.cli.verbs",
    "shoestring.stages.corpus",
    "shoestring.stages.grid",
    "shoestring.stages.hmm",
    "shoestring.stages.session",
    "torch._dynamo",
    "vl_convert",
)
"""What commands load, at once or when they come to it."""


@cache
def _forks() -> ForkServerContext:
    import torch

    context = multiprocessing.get_context("forkserver")
    if not torch.cuda.is_available():  # a process that has looked for a GPU must not be forked
        context.set_forkserver_preload(list(_LOADED))
    return context


class Started:
    """A command that runs: as much of `subprocess.Popen` as the tests need."""

    def __init__(self, arguments: Sequence[str], cwd: Path, environment: Mapping[str, str]):
        self.args = ["shoestring", *arguments]
        self._folder = tempfile.TemporaryDirectory()
        self._said = [Path(self._folder.name, name) for name in ("out", "err")]
        for path in self._said:
            path.touch()
        given = (self.args, cwd, os.environ | dict(environment), self._said)
        self._process = _forks().Process(target=_run, args=given)
        self._process.start()

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
            if self.poll() is None:
                self._process.kill()
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            out, err = (path.read_text() for path in self._said)
            return out, err


def _run(arguments: list[str], cwd: Path, environment: dict[str, str], said: Sequence[Path]) -> None:
    """What `python -m shoestring` does, in the new process."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    for number, path in enumerate(said, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), number)
    sys.argv = arguments
    from shoestring.cli.main import main

    main()
