"""The training of a recipe as a workload to be measured: the real learner on random tokens, no data needed."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import Tensor

from shoestring.core.facts import Cost
from shoestring.core.files import make_folder
from shoestring.core.recipe import Recipe
from shoestring.core.seeds import derive
from shoestring.models import Batch, build, cost
from shoestring.models.cross_entropy import IGNORED
from shoestring.models.masked_lm import masked_lm_cost
from shoestring.parallel.team import Team
from shoestring.probe.machine import peak_bytes, reset_peak
from shoestring.stages.corpus import vocabulary
from shoestring.stages.initial import start_from
from shoestring.stages.masked_rows import is_encoder
from shoestring.train.checkpoint import Checkpoints, State
from shoestring.train.course import Course
from shoestring.train.learner import Learner, Tally

MEASURED_DOCUMENT = 128
"""Tokens of a document, where attention stays within them."""


def make_learner(recipe: Recipe, device: torch.device, team: Team | None = None, init: bool = True) -> Learner:
    """The learner of a run, with its first weights; those of `model.init` are not read if others replace them."""
    model = build(recipe.model, vocabulary(recipe), recipe.data.length, derive(recipe.run.seed, "weights"))
    if init and recipe.model.init is not None:
        start_from(model, recipe.model, recipe.model.init)
    return Learner(model, recipe.train, device, team, shard=recipe.parallel is not None and recipe.parallel.shard)


def training_cost(recipe: Recipe) -> Cost:
    """What the network of a recipe costs."""
    if recipe.model.family == "masked_lm" and recipe.model.classes is None:
        return masked_lm_cost(recipe.model, vocabulary(recipe), recipe.data.length, recipe.data.masked)
    return cost(recipe.model, vocabulary(recipe), recipe.data.length)


class TrainingWorkload:
    """Steps of a recipe's learner at any batch size."""

    def __init__(self, recipe: Recipe, device: torch.device):
        self.learner = make_learner(recipe, device)
        self.device = device
        self._folder = Path(recipe.run.folder)
        self._length, self._data, self._model = recipe.data.length, recipe.data, recipe.model
        self._vocabulary, self._encoder = vocabulary(recipe), is_encoder(recipe.model)
        self._tally: Tally | None = None
        self._warm = 0
        self._generator = torch.Generator().manual_seed(derive(recipe.run.seed, "random tokens"))

    def _rows(self, batch: int) -> Batch:
        """Random rows of the kind that is trained on."""
        ids = torch.randint(self._vocabulary, (batch, self._length + 1), generator=self._generator)
        if self._encoder:
            return self._encoder_rows(ids[:, :-1])
        if not self._data.within:
            return Batch(ids, last=self._model.latents)
        documents = torch.arange(self._length + 1) // MEASURED_DOCUMENT + 1
        return Batch(ids, documents.repeat(batch, 1), within=True)

    def _encoder_rows(self, ids: Tensor) -> Batch:
        """With hidden tokens, or a class a row; documents where rows may be padded, as attention has to know of it."""
        padded = self._data.label is not None or self._data.packing != "concat"
        segments = torch.ones_like(ids) if padded else None
        if self._model.classes is not None:
            return Batch(ids, segments, wanted=ids[:, :1] % self._model.classes)
        hidden = torch.rand(ids.shape, generator=self._generator) < self._data.masked
        hidden[:, 0] = True  # a row of any length has one
        return Batch(ids, segments, wanted=ids.masked_fill(~hidden, IGNORED))

    def accumulate(self, batch: int) -> None:
        if self.learner.compiled and batch != self._warm:
            self._warm = batch
            for updates in (True, False, True):  # compile, record a pass that writes, and one that adds
                self.accumulate(batch)
                if updates:
                    self.update()
        self._tally = self.learner.accumulate(self._rows(batch), batch)
        self._wait()
        if not self._tally.fitted:
            raise MemoryError(f"{batch} rows do not fit")

    def update(self) -> None:
        assert self._tally is not None, "there is a gradient to apply"
        self.learner.update(self._tally, 0.0)  # a rate of zero: the arithmetic of an update, and the weights stay
        self._wait()

    def _wait(self) -> None:
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
