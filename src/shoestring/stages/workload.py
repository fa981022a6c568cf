"""The training of a recipe as a workload to be measured: the real learner on random tokens, no data needed."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from shoestring.core.facts import Cost
from shoestring.core.files import make_folder
from shoestring.core.recipe import Recipe
from shoestring.core.seeds import derive
from shoestring.models import Batch, build, cost
from shoestring.probe.machine import peak_bytes, reset_peak
from shoestring.stages.corpus import vocabulary
from shoestring.train.checkpoint import Checkpoints, State
from shoestring.train.course import Course
from shoestring.train.learner import Learner

MEASURED_DOCUMENT = 128
"""Tokens of a document, where attention stays within them."""


def make_learner(recipe: Recipe, device: torch.device) -> Learner:
    """The learner of a run, with its first weights."""
    model = build(recipe.model, vocabulary(recipe), derive(recipe.run.seed, "weights"))
    return Learner(model, recipe.train, device)


def training_cost(recipe: Recipe) -> Cost:
    """What the network of a recipe costs."""
    return cost(recipe.model, vocabulary(recipe), recipe.data.length)


class TrainingWorkload:
    """Steps of a recipe's learner at any batch size."""

    def __init__(self, recipe: Recipe, device: torch.device):
        self.learner = make_learner(recipe, device)
        self.device = device
        self._folder = Path(recipe.run.folder)
        self._length, self._within = recipe.data.length, recipe.data.within
        self._vocabulary = vocabulary(recipe)
        self._generator = torch.Generator().manual_seed(derive(recipe.run.seed, "random tokens"))

    def _rows(self, batch: int) -> Batch:
        ids = torch.randint(self._vocabulary, (batch, self._length + 1), generator=self._generator)
        if not self._within:
            return Batch(ids)
        documents = torch.arange(self._length + 1) // MEASURED_DOCUMENT + 1
        return Batch(ids, documents.repeat(batch, 1), within=True)

    def accumulate(self, batch: int) -> None:
        try:
            self.learner.accumulate(self._rows(batch), batch)
        except torch.OutOfMemoryError as cause:
            self.learner.optimizer.zero_grad(set_to_none=True)
            raise MemoryError(str(cause)) from cause

    def update(self) -> None:
        self.learner.update(1, 0.0)  # a rate of zero: the arithmetic of an update, and the weights stay
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def validate(self, batch: int) -> None:
        self.learner.score(self._rows(batch), batch)

    def checkpoint(self) -> int:
        make_folder(self._folder)
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:  # on the disk that the run will write to
            checkpoints = Checkpoints(Path(folder), keep=1)
            checkpoints.save(self.learner, State(recipe="", data="", course=Course(total=1)))
            return checkpoints.path(0).stat().st_size

    def reset_peak(self) -> None:
        reset_peak(self.device)

    def peak_bytes(self) -> int | None:
        return peak_bytes(self.device)
