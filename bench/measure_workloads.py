"""The workloads of bench/measure.py: recipes of ours and GPT-2 of transformers, each behind the same requests."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from shoestring.core import recipe_file
from shoestring.core.files import write_whole
from shoestring.core.schema import encode
from shoestring.probe.child import Answer, RemoteTrials, Request, answer, serve
from shoestring.probe.machine import describe_machine, pick_device
from shoestring.probe.meter import Meter, memory_errors
from shoestring.probe.trials import LocalTrials, Usage, Workload
from shoestring.runs.hmm_task import HmmTask
from shoestring.runs.hmm_workload import HmmWorkload
from shoestring.runs.network_workload import TrainingWorkload

GPT2 = {"family": "gpt2", "width": 768, "layers": 12, "heads": 12}
PERCEIVER = {"family": "perceiver_ar", "width": 512, "layers": 9, "heads": 8, "latents": 512}
RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    "gpt2-124m": {"data": {"tokenizer": "words:50255", "length": 1024}, "model": GPT2, "train": {"batch": 64}},
    "llama-135m": {
        "data": {"tokenizer": "words:198", "length": 100},
        "model": {"width": 1024, "layers": 8, "heads": 8, "hidden": 4096, "tied": False},
        "train": {"batch": 512},
    },
    "perceiver": {
        "data": {"tokenizer": "words:31998", "length": 2048}, "model": PERCEIVER, "train": {"batch": 32},
    },
    "perceiver-recomputing": {
        "data": {"tokenizer": "words:31998", "length": 2048},
        "model": PERCEIVER,
        "train": {"batch": 32, "recompute": "full"},
    },
    "masked-lm": {
        "data": {"tokenizer": "words:30520", "length": 512},
        "model": {"family": "masked_lm", "width": 768, "layers": 12, "heads": 12},
        "train": {"batch": 64},
    },
    "hmm-500": {"data": {"tokenizer": "words:500", "length": 100, "documents": 20_000}, "hmm": {"states": 500}},
}  # fmt: skip
TINY_MODEL = {"width": 32, "layers": 2, "heads": 2}
PEERS_OWN = "transformers-gpt2"
NAMES = [PEERS_OWN, *RECIPES]
TIMEOUT = 540.0
TINY_BYTES = 320_000_000


def recipe_values(name: str, tiny: bool, folder: Path, budget: str | None) -> dict[str, Any]:
    """A recipe's sections; `budget` of time where it is trained."""
    values: dict[str, Any] = {section: dict(fields) for section, fields in RECIPES[name].items()}
    values["run"] = {"name": name, "folder": str(folder / "runs")}
    values["data"] |= {"source": "stories", "folder": str(folder / "stores")}
    values["budget"] = {"time": budget} if budget else {"epochs": 1} if "hmm" in values else {"steps": 10}
    if tiny:
        values["data"] |= {"tokenizer": "words:100", "length": 64}
        values["budget"] |= {"memory": f"{TINY_BYTES // 10**6}MB"}
        if "hmm" in values:
            values["hmm"] = {"states": 16}
            values["data"] |= {"tokenizer": "words:500", "documents": 2000}
        else:
            values["model"] |= TINY_MODEL | ({"latents": 16} if "latents" in values["model"] else {})
            values["model"].pop("hidden", None)
            values["train"]["batch"] = 8
            values["evaluate"] = {"rows": 8}
    return values


def write_recipe(name: str, tiny: bool, folder: Path, budget: str | None = None) -> Path:
    file = folder / f"{name}.toml"
    recipe = recipe_file.build(recipe_values(name, tiny, folder, budget), name)
    write_whole(file, recipe_file.dump(recipe))
    return file


# --- the same steps for every finder


class TransformersWorkload:
    """GPT-2 of transformers, as it comes."""

    compiled = False

    def __init__(self, meter: Meter, tiny: bool):
        from transformers import GPT2Config, GPT2LMHeadModel

        small = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 102} if tiny else {}
        self._config, self._meter = GPT2Config(**small), meter
        self._length = 64 if tiny else 1024
        with meter.device:  # made where it is used: accelerate's finder builds it anew for each of its trials
            self._model = GPT2LMHeadModel(self._config)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), fused=True)

    def _loss(self, batch: int) -> torch.Tensor:
        ids = torch.randint(self._config.vocab_size, (batch, self._length), device=self._meter.device)
        with torch.autocast(ids.device.type, dtype=torch.bfloat16, enabled=ids.device.type == "cuda"):
            loss: torch.Tensor = self._model(input_ids=ids, labels=ids).loss
        return loss

    def _wait(self) -> None:
        if self._meter.device.type == "cuda":
            torch.cuda.synchronize()

    def accumulate(self, batch: int) -> None:
        self._loss(batch).backward()  # type: ignore[no-untyped-call]
        self._wait()

    def rehearse(self, batch: int) -> bool:  # noqa: ARG002
        return False

    def update(self) -> None:
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._wait()

    def steps(self, batch: int, count: int, passes: int = 1) -> None:
        for _ in range(count):
            for _ in range(passes):
                self.accumulate(batch)
            self.update()

    def validate(self, batch: int) -> None:
        with torch.no_grad():
            self._loss(batch)
        self._wait()

    def forget(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)

    def checkpoint(self, beside: Callable[[], object] = lambda: None) -> int:
        with tempfile.TemporaryFile() as file:
            torch.save([self._model.state_dict(), self._optimizer.state_dict()], file)
            beside()
            return file.tell()

    def reset_peak(self) -> None:
        self._meter.reset()

    def usage(self) -> Usage | None:
        return self._meter.usage()


class HmmAtOnce(HmmWorkload):
    """An E-step that takes all its rows at once, on any device: a run's own cuts them to fit."""

    def accumulate(self, batch: int) -> None:
        with memory_errors():
            self._counts = self._count(self._parameters, self._rows(batch), chunk=batch, limit_bytes=1 << 60)
            self._meter.wait()


def build_workload(name: str, tiny: bool, folder: Path) -> Workload:
    """On this process' device."""
    meter = Meter(pick_device())
    if name == PEERS_OWN:
        return TransformersWorkload(meter, tiny)
    recipe = recipe_file.load(folder / f"{name}.toml")
    return TrainingWorkload(recipe, meter) if recipe.hmm is None else HmmAtOnce(HmmTask(recipe, recipe.hmm), meter)


def serve_workload(name: str, tiny: bool, folder: Path) -> None:
    """What `shoestring.runs.probe_server` is for a recipe, of any workload here."""
    built: list[Workload] = []
    meters: list[Meter] = []

    def reply(request: Request) -> Answer:
        if not built:
            meters.append(Meter(pick_device()))
            built.append(build_workload(name, tiny, folder))
        (meter,) = meters
        trials = LocalTrials(built[0])
        if "begin" in request:
            trials.trial(request["begin"])
            return {"machine": encode(describe_machine(meter.device)), "available_bytes": meter.available}
        return answer(trials, request)

    serve(reply)


def open_trials(name: str, tiny: bool, folder: Path) -> RemoteTrials:
    if name == PEERS_OWN or "hmm" in RECIPES[name]:
        command = [sys.executable, __file__, name, str(folder), *(["--tiny"] if tiny else [])]
        return RemoteTrials(command, TIMEOUT)
    command = [sys.executable, "-m", "shoestring.runs.probe_server", "0", "random"]
    return RemoteTrials(command, TIMEOUT, {"recipe": (folder / f"{name}.toml").read_text()})


if __name__ == "__main__":
    serve_workload(sys.argv[1], "--tiny" in sys.argv, Path(sys.argv[2]))
