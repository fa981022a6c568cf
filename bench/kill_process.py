"""What runs in the processes of a command that `bench/kill.py` kills: the command line, with a few hooks.

They are set by environment variables: KILL_AT (the call that changes files at which the process kills itself),
COUNT_CALLS (a file for the number of these calls), MEMORY_ROOM (bytes of address space beyond what it has), MEMORY_ROWS
(passes of more rows do not fit), both with MEMORY_STEP (from that step on), NOTE_ROWS (a file for the rows of
every pass), TAKE_ROWS (such a file, to follow), UNIT_BYTES (of a unit of a corpus, prepared in two processes).
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

CALLS = frozenset({"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "fcntl.flock"})
_made = 0


def command() -> None:
    """The command line, which may be killed at a call, or have little memory."""
    tempfile.tempdir = None
    os.environ["KILL_PID"] = str(os.getpid())
    if size := os.environ.get("UNIT_BYTES"):
        _prepare_in_two(int(size))
    if os.environ.get("NOTE_ROWS") or os.environ.get("MEMORY_STEP"):
        _hook_steps()
    from shoestring.cli.main import main

    if os.environ.get("MEMORY_ROOM") and not os.environ.get("MEMORY_STEP"):
        _limit_memory()
    if os.environ.get("RANK", "0") == "0":
        sys.addaudithook(_note_call)
    try:
        main()
    finally:
        if os.environ.get("RANK", "0") == "0" and (count := os.environ.get("COUNT_CALLS")):
            made = _made
            Path(count).write_text(str(made))


def torchrun() -> None:
    """The same in two processes, by torchrun's agent, whose own temporary files are not ours to sweep."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    own = os.environ["TMPDIR"]
    with tempfile.TemporaryDirectory(dir=os.environ["AGENT_TMPDIR"]) as folder:
        os.environ["TMPDIR"], tempfile.tempdir = folder, None
        config = LaunchConfig(
            min_nodes=1, max_nodes=1, nproc_per_node=2, run_id="torchrun", rdzv_backend="c10d",
            rdzv_endpoint="localhost:0", max_restarts=0, start_method="fork",
        )  # fmt: skip
        elastic_launch(config, _rank)(own)


def _rank(folder: str) -> None:
    """One of the two; where it ends well it returns, since the agent waits for that."""
    leave = os._exit

    def returning(code: int) -> NoReturn:
        if code:
            leave(code)
        os._exit = leave
        raise _Left

    os._exit = returning
    os.environ["TMPDIR"] = folder
    with contextlib.suppress(_Left):
        command()


class _Left(BaseException):
    """The command has ended well."""


def _note_call(event: str, arguments: tuple[Any, ...]) -> None:
    """Count a call that changes files; at the chosen one, kill the command."""
    global _made
    writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if event in CALLS or writes:
        _made += 1
        if os.environ.get("KILL_AT") == str(_made):
            os.kill(int(os.environ["KILL_PID"]), signal.SIGKILL)
            signal.pause()


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + int(os.environ["MEMORY_ROOM"])
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _prepare_in_two(size: int) -> None:
    """Cut a small corpus into several units, and take two processes for them."""
    from shoestring.data.store import prepare, work_units

    work_units.UNIT_BYTES = size
    prepare._worth = lambda _: 2


class _Rows:
    """How many rows every forward pass of a run has, by what it is for; the last session that did it counts."""

    def __init__(self) -> None:
        self.note, self.file = os.environ.get("NOTE_ROWS"), os.environ.get("TAKE_ROWS")
        self.take: dict[str, int] = read_rows(Path(self.file)) if self.file else {}
        self.scoring = ""
        self.scored = self.step = 0
        self.first, self.most = int(os.environ.get("MEMORY_STEP", "-1")), os.environ.get("MEMORY_ROWS")

    def check(self, rows: int) -> None:
        """Raise torch's error where so many rows shall not fit."""
        if self.most is not None and self.step >= self.first and rows > int(self.most):
            raise RuntimeError(f"DefaultCPUAllocator: not enough memory: you tried to allocate {rows} rows.")

    def add(self, purpose: str, rows: int) -> None:
        if self.note:
            with open(self.note, "a") as file:
                file.write(json.dumps([purpose, rows]) + "\n")

    def score(self, purpose: str) -> None:
        """The next passes are for this."""
        self.scoring, self.scored = purpose, 0


def read_rows(path: Path) -> dict[str, int]:
    """The rows of every purpose; a line that a kill cut off is left out."""
    lines = path.read_text().splitlines() if path.is_file() else []
    return dict(json.loads(line) for line in lines if line.endswith("]"))


def _hook_steps() -> None:
    """Note the rows of every step and scoring pass, or take those that were noted; limit memory at a step."""
    from shoestring.hmm.fit import Fit
    from shoestring.runs.hmm_trainee import HmmTrainee
    from shoestring.runs.network_trainee import NetworkTrainee
    from shoestring.training.learner import Learner
    from shoestring.training.loop import Loop
    from shoestring.training.passes import half

    rows, taken = _Rows(), dict[int, int]()
    finish, loss, passes, update = Loop._finish_step, Learner._loss, Learner._passes, Fit.update

    def begin_of(begin: Callable[..., Any]) -> Callable[..., Any]:
        def begun(trainee: Any, step: int, *others: Any) -> Any:
            while trainee.per_device > rows.take.get(f"step {step}", trainee.per_device):
                trainee.halve()
            if step == rows.first and os.environ.get("MEMORY_ROOM"):
                _limit_memory()
            rows.step, taken[step] = step, trainee.per_device
            return begin(trainee, step, *others)

        return begun

    def finish_step(loop: Any, pending: Any, result: Any, state: Any, begun: int) -> Any:
        rows.add(f"step {pending.number}", taken[pending.number])
        rows.score(f"score {pending.number + 1}")
        return finish(loop, pending, result, state, begun)

    def evaluate_of(evaluate: Callable[..., Any]) -> Callable[..., Any]:
        def evaluated(trainee: Any, state: Any) -> Any:
            rows.score(f"evaluation {state.step}")
            return evaluate(trainee, state)

        return evaluated

    def loss_of(learner: Any, part: Any) -> Any:
        rows.check(len(part.ids))
        return loss(learner, part)

    def updated(fit: Any) -> Any:
        rows.check(taken[rows.step])
        return update(fit)

    def scored_passes(learner: Any, batch: Any, per_device: int, score: Any) -> Any:
        def scored(part: Any) -> Any:
            rows.check(len(part.ids))
            return score(part)

        purpose = f"{rows.scoring} {rows.scored}"
        rows.scored += 1
        used, before = min(per_device, len(batch.ids), rows.take.get(purpose, per_device)), learner.unscored
        result = passes(learner, batch, used, scored)
        for _ in range(learner.unscored - before):
            used = half(used)
        rows.add(purpose, used)
        return result

    Loop._finish_step, Learner._loss, Learner._passes, Fit.update = finish_step, loss_of, scored_passes, updated
    for kind in (HmmTrainee, NetworkTrainee):
        kind.begin, kind.evaluate = begin_of(kind.begin), evaluate_of(kind.evaluate)
