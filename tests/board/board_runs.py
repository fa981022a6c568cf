"""Run folders as a run leaves them, without training, and a board that serves them."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPCookieProcessor, build_opener

import uvicorn

from shoestring.board.server import listen, make_app
from shoestring.core.records import Cost, Machine, Plan, Point, Profile
from shoestring.core.results import Forecast, Outcome, Verdict
from shoestring.core.run_folder import RunFolder
from shoestring.core.sweep_folder import SweepFolder, SweepIndex, SweepRun

TOKEN = "right"  # noqa: S105
FLOPS = 1000.0
MACHINE = Machine(device="cpu", device_name="x", threads=2, memory_bytes=None, system="x", python="3.11", versions={})
RECIPE = """
[run]
name = "{name}"

[budget]
steps = 100

[data]
source = "stories"
length = 32

[model]
family = "llama"
width = {width}

[train]
batch = 4
lr = {lr}
clip = 1.0
"""


def add(path: Path, *lines: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def steps(folder: RunFolder, first: int, last: int) -> None:
    """Lines of some steps: the loss of step s is 5 − s / 50."""
    for step in range(first, last + 1):
        add(folder.metrics, {"step": step, "tokens": step * 128, "loss": 5 - step / 50, "lr": 1e-3, "grad_norm": 1.0})
        add(folder.timings, {"step": step, "elapsed": 2.0 + step, "tokens_per_second": 128.0})
        if step % 20 == 0:
            add(folder.metrics, {"step": step, "heldout_loss": 5.1 - step / 50, "heldout_error": 0.02})


def make_run(
    root: Path, name: str, *, until: int = 0, done: bool = False, width: int = 16, lr: float = 1e-3, loss: float = 3.1
) -> RunFolder:
    """A run of 100 steps, planned for 110 seconds, that has got so far."""
    folder = RunFolder(root / name)
    folder.path.mkdir(parents=True)
    folder.recipe.write_text(RECIPE.format(name=folder.path.name, width=width, lr=lr))
    Plan(binding="steps", steps=100, seconds=110.0, parts={"train": 108.0, "finish": 2.0}).write(folder.plan)
    MACHINE.write(folder.machine)
    Profile(
        machine=MACHINE,
        workload="",
        length=32,
        points=(Point(batch=1, seconds=0.1, slowest_seconds=0.1, peak_bytes=None),),
        setup_seconds=1.0,
        update_seconds=0.1,
        validate_seconds_per_row=0.1,
        checkpoint_seconds=0.1,
        checkpoint_bytes=10,
        available_bytes=10**9,
        stopped="x",
        cost=Cost(parameters={"all": 10}, forward_flops_per_token=FLOPS / 3),
    ).write(folder.profile)
    if until:
        add(folder.timings, {"step": 0, "elapsed": 2.0, "event": "start", "parts": {}})
        steps(folder, 1, until)
        texts = [{"prompt": "once", "text": f"once {'<b>upon</b> ' * (step // 20)}"} for step in (20, until)]
        add(folder.samples, *({"step": step, "samples": [text]} for step, text in zip((20, until), texts)))
    if done:
        Outcome(
            steps=100,
            tokens=12_800,
            seconds=104.0,
            segments=1,
            tokens_per_second=128.0,
            disk_bytes=10,
            peak_bytes=None,
            loss=loss,
            shortened=None,
            timeline={"train": 104.0},
            verdicts=(Verdict(kind="still_falling", text="Still falling: go on."), Verdict(kind="noise", text="± 1")),
            forecast=Forecast(step=20, loss=3.2, low=3.0, high=3.4),
        ).write(folder.done)
    return folder


def make_sweep(root: Path, name: str, runs: dict[str, dict[str, Any]]) -> Path:
    """The folder of a sweep of runs in root/runs/NAME, by name with their values."""
    folder = SweepFolder(root / "sweeps" / name)
    folder.path.mkdir(parents=True)
    fields = dict.fromkeys(field for values in runs.values() for field in values if field != "run.seed")
    found = tuple(SweepRun(name=run, folder=f"../../runs/{name}/{run}", values=values) for run, values in runs.items())
    SweepIndex(name=name, fields=tuple(fields), runs=found).write(folder.index)
    return folder.path


class Served:
    """A board that answers on a port of its own."""

    def __init__(self, root: Path, every: float):
        self._socket: socket.socket = listen("127.0.0.1", 0)
        self.address = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.server = uvicorn.Server(
            uvicorn.Config(make_app(root, TOKEN, every), log_level="critical", timeout_graceful_shutdown=1)
        )
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self._socket]}, daemon=True)
        self._opener = build_opener(HTTPCookieProcessor(CookieJar()))

    def get(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and content; the cookie is kept."""
        try:
            answer = self._opener.open(self.address + path, timeout=20)
        except HTTPError as refused:
            with refused:
                return refused.code, dict(refused.headers), refused.read()
        with answer:
            return answer.status, dict(answer.headers), answer.read()

    def json(self, path: str) -> Any:
        status, _, content = self.get(path)
        assert status == 200, (path, status)
        return json.loads(content)


@contextlib.contextmanager
def served(root: Path, every: float = 0.1) -> Iterator[Served]:
    board = Served(root, every)
    board.thread.start()
    while not board.server.started:
        time.sleep(0.01)
    try:
        yield board
    finally:
        board.server.should_exit = True
        board.thread.join(20)
