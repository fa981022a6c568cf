"""Fitting an HMM as a workload to measure: the real E-step and M-step on random tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch

from shoestring.baselines.hmm_score import Scorer
from shoestring.baselines.ngram import count
from shoestring.core.files import temporary_folder
from shoestring.core.seeds import derive
from shoestring.hmm.engine import engine_of_updates
from shoestring.hmm.expect import Counts
from shoestring.hmm.fit import learn
from shoestring.hmm.parameters import random_parameters
from shoestring.hmm.progress import Progress, Trial, save_progress
from shoestring.probe.meter import Meter, memory_errors
from shoestring.runs.hmm_task import HmmTask
from shoestring.runs.hmm_trainee import fit_settings
from shoestring.storage.tensor_file import write_tensors

_MODEL_BYTES = 8
"""Per probability in a model file."""
_EPOCHS, _TOKENS = 100, 1e6
"""Of the measured fit; neither changes the duration of an update."""


class HmmWorkload:
    """E-steps of a recipe's model at any number of rows."""

    compiled = False

    def __init__(self, task: HmmTask, meter: Meter):
        recipe, hmm = task.recipe, task.hmm
        self._meter, self.reset_peak, self.usage = meter, meter.reset, meter.usage
        self._folder, self._symbols, self._length = Path(recipe.run.folder), task.symbols, recipe.data.length
        seed = derive(recipe.run.seed, "random start")
        self._parameters = random_parameters(hmm.states, self._symbols, seed).to(meter.device, torch.float32)
        self._count = engine_of_updates(meter.device)
        self._settings = fit_settings(task, _EPOCHS)
        self._rate = 0.5 if hmm.update == "online" else None
        """The share of the running statistics that an update replaces."""
        self._counts: Counts | None = None
        self._statistics: Counts | None = None
        self._scorer: Scorer | None = None
        self._made = torch.empty((0, self._length), dtype=torch.int32)
        self._order = torch.arange(0)

    def _rows(self, batch: int) -> torch.Tensor:
        """On the host, made once, and picked in random order unless an update reads all rows: as in a run."""
        if batch > len(self._made):
            self._made = torch.randint(self._symbols, (batch, self._length), dtype=torch.int32)
            self._order = torch.randperm(batch)
        return self._made[:batch] if self._settings.update == "all" else self._made[self._order[:batch]]

    def accumulate(self, batch: int) -> None:
        self._counts = None
        with memory_errors():
            self._counts = self._count(self._parameters, self._rows(batch))
            self._meter.wait()

    def rehearse(self, batch: int) -> bool:  # noqa: ARG002
        return False

    def update(self) -> None:
        """As in a fit, except that the parameters stay."""
        counts, self._counts = self._counts, None
        assert counts is not None
        learned = learn(counts, self._parameters, self._statistics, self._settings, self._rate, _TOKENS)
        self._statistics = learned.statistics
        self._meter.wait()

    def steps(self, batch: int, count: int, passes: int = 1) -> None:
        for _ in range(count):
            for _ in range(passes):
                self.accumulate(batch)
            self.update()

    def validate(self, batch: int) -> None:
        """As in a fit: beside all baselines, which are made once."""
        with memory_errors():
            rows = self._rows(batch).long()
            if self._scorer is None:
                self._scorer = Scorer(self._parameters, count([rows.numpy()], self._symbols))
            self._scorer(self._parameters, rows)
            self._meter.wait()

    def forget(self) -> None:
        """Drop also what the engine has recorded."""
        self._counts = self._statistics = self._scorer = None
        self._count = engine_of_updates(self._meter.device)

    def checkpoint(self, beside: Callable[[], object] = lambda: None) -> int:
        """`beside` runs after the writing, as in a fit; the bytes include the model file at the end."""
        with temporary_folder(self._folder) as folder:
            file = folder / "fit.safetensors"
            trial = Trial(restart=0, parameters=self._parameters, statistics=self._statistics)
            tensors, values = save_progress(Progress(trial=trial))
            write_tensors(file, {name: table.cpu().numpy() for name, table in tensors.items()}, json.dumps(values))
            beside()
            return file.stat().st_size + _MODEL_BYTES * sum(t.numel() for t in self._parameters if t is not None)
