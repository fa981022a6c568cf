"""The training of a recipe as a workload to be measured: the real learner on random tokens, or on a store's rows."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from shoestring.core.errors import UserError
from shoestring.core.facts import Cost, Plan
from shoestring.core.files import make_folder
from shoestring.core.recipe import Recipe
from shoestring.core.run_folder import RunFolder
from shoestring.core.seeds import derive
from shoestring.data.prepare import store_folder
from shoestring.data.store import Store, StorePaths
from shoestring.models import Batch, build, cost
from shoestring.models.cross_entropy import IGNORED
from shoestring.parallel.team import Team
from shoestring.probe.meter import Meter
from shoestring.probe.workload import Usage, nothing
from shoestring.stages.corpus import open_corpus, vocabulary
from shoestring.stages.initial import start_from
from shoestring.stages.masked_rows import is_encoder
from shoestring.stages.prepare import given_store, planned_documents
from shoestring.train.checkpoint import Checkpoints, State
from shoestring.train.course import Course
from shoestring.train.learner import Learner, Tally
from shoestring.train.loop import TokenSource

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
    return cost(recipe.model, vocabulary(recipe), recipe.data.length, predicted=recipe.data.masked)


def own_rows(recipe: Recipe, device: torch.device) -> TokenSource:
    """The rows that the recipe trains on, which must be there."""
    if recipe.hmm is not None:
        raise UserError("--real: an HMM is measured on random rows; they cost what real ones do")
    file = RunFolder.of(recipe).plan
    plan = Plan.read(file) if file.is_file() else None
    store = None
    if recipe.data.stream is None and recipe.data.label is None and given_store(recipe) is None:
        folder = store_folder(recipe.data, recipe.run.seed, planned_documents(recipe, plan))
        if not StorePaths(folder).manifest.is_file():
            raise UserError(f"--real: there is no store {folder} yet; make it first with: shoestring prepare RECIPE")
        store = Store(folder, recipe.data.tokenizer)
    return open_corpus(recipe, plan or Plan(binding=""), store).training(device)


class TrainingWorkload:
    """Steps of a recipe's learner at any batch size; `source` gives its rows, or they are random."""

    def __init__(self, recipe: Recipe, meter: Meter, source: TokenSource | None = None):
        self.learner = make_learner(recipe, meter.device)
        self.compiled, self.device, self._meter = self.learner.compiled, meter.device, meter
        self._folder, self._seed = Path(recipe.run.folder), recipe.run.seed
        self._length, self._data, self._model = recipe.data.length, recipe.data, recipe.model
        self._vocabulary, self._encoder = vocabulary(recipe), is_encoder(recipe.model)
        self._tally: Tally | None = None
        self._source, self._step = source, 0
        self._random = np.random.default_rng(derive(recipe.run.seed, "random ids"))
        self._generator = torch.Generator().manual_seed(derive(recipe.run.seed, "random tokens"))

    def _rows(self, batch: int) -> Batch:
        """Rows of the kind that is trained on."""
        if self._source is not None:
            self._step += 1
            return Batch.of(self._source.rows(self._source.order(self._seed, self._step, batch)))
        ids = self._random_ids(batch)
        if self._encoder:
            return self._encoder_rows(ids[:, :-1])
        if not self._data.within:
            return Batch(ids, last=self._model.latents)
        documents = torch.arange(self._length + 1) // MEASURED_DOCUMENT + 1
        return Batch(ids, documents.repeat(batch, 1), within=True)

    def _random_ids(self, batch: int) -> Tensor:
        """Where those of a run lie: a store's rows are NumPy's memory, and not among the tensors of a CPU's heap."""
        drawn = self._random.integers(self._vocabulary, size=(batch, self._length + 1))
        return torch.from_numpy(drawn) if self._data.stream is None else torch.tensor(drawn)

    def _encoder_rows(self, ids: Tensor) -> Batch:
        """With hidden tokens, or a class a row; documents where rows may be padded, as attention has to know of it."""
        padded = self._data.label is not None or self._data.packing != "concat"
        segments = torch.ones_like(ids) if padded else None
        if self._model.classes is not None:
            return Batch(ids, segments, wanted=ids[:, :1] % self._model.classes)
        hidden = torch.rand(ids.shape, generator=self._generator) < self._data.masked
        hidden[0, 0] = True  # a batch of any size has one
        return Batch(ids, segments, wanted=ids.masked_fill(~hidden, IGNORED), share=self._data.masked)

    def accumulate(self, batch: int) -> None:
        self._tally = self.learner.accumulate(self._rows(batch), batch)
        self._wait()
        if not self._tally.fitted:
            raise MemoryError(f"{batch} rows do not fit")

    def rehearse(self, batch: int) -> bool:
        try:
            return self.learner.rehearse(self._rows(batch))
        except torch.OutOfMemoryError as cause:
            raise MemoryError(str(cause)) from cause

    def update(self) -> None:
        assert self._tally is not None, "there is a gradient to apply"
        self.learner.update(self._tally, 0.0)  # a rate of zero: the arithmetic of an update, and the weights stay
        self._wait()

    def steps(self, batch: int, count: int, passes: int = 1) -> None:
        for _ in range(count):
            tally = self.learner.accumulate(self._rows(passes * batch), batch)
            if not tally.fitted:
                raise MemoryError(f"{batch} rows do not fit")
            self.learner.update(tally, 0.0)
        self._wait()

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def validate(self, batch: int) -> None:
        failed = self._failures()
        self.learner.score(self._rows(batch), batch)
        if self._failures() > failed:  # the learner has taken them in smaller parts
            raise MemoryError(f"{batch} rows to be scored do not fit")

    def _failures(self) -> int:
        """How often the device has had no memory for a tensor."""
        return int(torch.cuda.memory_stats(self.device)["num_ooms"]) if self.device.type == "cuda" else 0

    def forget(self) -> None:
        self.learner.forget()

    def checkpoint(self, beside: Callable[[], object] = nothing) -> int:
        make_folder(self._folder)
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:  # on the disk that the run will write to
            checkpoints = Checkpoints(Path(folder), keep=1)
            checkpoints.save(self.learner, State(recipe="", data="", course=Course(total=1)), wait=False)
            beside()
            checkpoints.wait()
            return checkpoints.path(0).stat().st_size

    def reset_peak(self) -> None:
        self._meter.reset()

    def usage(self) -> Usage | None:
        return self._meter.usage()
