"""The child process of `measure`: builds the workload when it is first asked for, and answers. Run with -m."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from shoestring.core import recipe_file
from shoestring.core.clock import process_age
from shoestring.core.errors import UserError
from shoestring.core.recipe import Recipe
from shoestring.core.schema import encode
from shoestring.probe.child import Answer, Request, answer, serve
from shoestring.probe.machine import available_bytes, describe_machine, pick_device
from shoestring.probe.meter import Meter
from shoestring.probe.trials import LocalTrials, Trial
from shoestring.probe.workload import Workload
from shoestring.stages.hmm_workload import HmmWorkload, hmm_cost
from shoestring.stages.workload import TrainingWorkload, own_rows, training_cost


class Server:
    """Answers the requests of one measurement."""

    def __init__(self, recipe: Recipe, device: torch.device, real: bool):
        self._recipe, self._device, self._real = recipe, device, real
        self._workload: Workload | None = None
        self._available: int | None = None
        # who fits an HMM has loaded torch before there is a plan; who trains a network loads it after
        self._ahead = 0.0 if recipe.hmm is None else process_age()

    def __call__(self, request: Request) -> Answer:
        if "machine" in request:
            return self._machine()
        trials = LocalTrials(self._built())
        if "begin" in request:
            return self._begin(trials.begin(request["begin"], request["passes"]))
        return answer(trials, request)

    def _built(self) -> Workload:
        if self._workload is None:
            rows = own_rows(self._recipe, self._device) if self._real else None
            meter = Meter(self._device)
            self._available = meter.available
            if self._recipe.hmm is not None:
                self._workload = HmmWorkload(self._recipe, meter)
            else:
                self._workload = TrainingWorkload(self._recipe, meter, rows)
        return self._workload

    def _begin(self, first: Trial) -> Answer:
        """Facts of machine and model; and how long a process takes to its first full-speed step."""
        ready = process_age()
        counted = training_cost(self._recipe) if self._recipe.hmm is None else hmm_cost(self._recipe)
        compiled = self._built().compiled
        recording = first.warmup_seconds if compiled else 0.0
        return {
            **self._machine(),
            "available_bytes": self._available,
            "cost": encode(counted),
            "setup_seconds": max(0.0, ready - self._ahead - (first.seconds - recording)),
            "compile_seconds": first.compile_seconds if compiled else None,
            "warmup_seconds": first.warmup_seconds,
            "first_seconds": first.compile_seconds + first.warmup_seconds,
            "peak_bytes": None if first.usage is None else first.usage.reserved,
        }

    def _machine(self) -> Answer:
        return {"machine": encode(describe_machine(self._device)), "available_bytes": available_bytes(self._device)}


def main(file: str, local_rank: str, real: str) -> None:
    device = pick_device()
    if device.type == "cuda":
        device = torch.device("cuda", int(local_rank))
        torch.cuda.set_device(device)
    serve(Server(recipe_file.load(Path(file)), device, real == "real"))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except UserError as mistake:
        print(mistake, file=sys.stderr)
        sys.exit(mistake.exit_code)
