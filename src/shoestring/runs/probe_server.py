"""The server of `measure`: loads what the workload needs; a worker of it builds and answers. Run with -m."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Callable
from functools import cached_property, partial

import torch

from shoestring.core import recipe_file
from shoestring.core.errors import UserError
from shoestring.core.registry import load_added
from shoestring.core.schema import encode
from shoestring.probe.child import Answer, Request, answer, loading, serve, worker_age
from shoestring.probe.load import load, used_by_others
from shoestring.probe.machine import available_bytes, describe_machine, pick_device
from shoestring.probe.meter import Meter
from shoestring.probe.trials import LocalTrials, Trial, Workload
from shoestring.runs.task import Task, task_of


class Server:
    """Answers the requests of one measurement; the device is looked for by the worker, not before it is forked."""

    def __init__(self, task: Task, find_device: Callable[[], torch.device], real: bool):
        self._task, self._find_device, self._real = task, find_device, real
        self._workload: Workload | None = None
        self._available: int | None = None

    @cached_property
    def _device(self) -> torch.device:
        return self._find_device()

    def __call__(self, request: Request) -> Answer:
        if "machine" in request:
            return self._machine()
        trials = LocalTrials(self._built())
        if "begin" in request:
            return self._begin(trials.begin(request["begin"], request["passes"]))
        before = load()
        found = answer(trials, request)
        return found | {"others": used_by_others(before, load())} if "trial" in request else found

    def _built(self) -> Workload:
        if self._workload is None:
            build = self._task.open_workload(self._device, self._real)
            meter = Meter(self._device)
            self._available = meter.available
            self._workload = build(meter)
        return self._workload

    def _begin(self, first: Trial) -> Answer:
        """Facts of machine and model, and the time from the start of the process to its first full-speed step."""
        ready = worker_age()
        compiled = self._built().compiled
        recording = first.warmup_seconds if compiled else 0.0
        return {
            **self._machine(),
            "available_bytes": self._available,
            "cost": encode(self._task.cost()),
            "setup_seconds": max(0.0, ready - (first.seconds - recording)),
            "loading_seconds": loading(),
            "compile_seconds": first.compile_seconds if compiled else None,
            "warmup_seconds": first.warmup_seconds,
            "first_seconds": first.compile_seconds + first.warmup_seconds,
            "peak_bytes": None if first.usage is None else first.usage.reserved,
            "step_seconds": min(first.times),
        }

    def _machine(self) -> Answer:
        return {"machine": encode(describe_machine(self._device)), "available_bytes": available_bytes(self._device)}


def main(local_rank: str, real: str, added: str | None = None) -> None:
    """Serve the recipe in the first line of standard input."""
    if added is not None:
        load_added(added)
    recipe = recipe_file.build(tomllib.loads(json.loads(sys.stdin.readline())["recipe"]), "the recipe")
    task = task_of(recipe)
    task.load()
    serve(Server(task, partial(_find_device, int(local_rank)), real == "real"))


def _find_device(local_rank: int) -> torch.device:
    device = pick_device()
    if device.type == "cuda":
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    return device


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except UserError as mistake:
        print(mistake, file=sys.stderr)
        sys.exit(mistake.exit_code)
