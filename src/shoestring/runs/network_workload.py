"""The training of a recipe as a workload to measure: the real learner on random tokens, or on the recipe's rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from shoestring.core.errors import UserError
from shoestring.core.family import family_of, is_compiled
from shoestring.core.files import temporary_folder
from shoestring.core.recipe import Recipe
from shoestring.core.records import Plan
from shoestring.core.run_folder import RunFolder
from shoestring.core.seeds import derive
from shoestring.data.store.prepare import given_store, planned_documents, store_folder
from shoestring.data.store.store import Store, StorePaths
from shoestring.datasets.corpus import training_corpus, vocabulary
from shoestring.datasets.source import TokenSource
from shoestring.models.batch import Batch
from shoestring.models.language_model import build
from shoestring.models.layers.cross_entropy import IGNORED
from shoestring.models.tuning import tune
from shoestring.parallel.process_group import ProcessGroup
from shoestring.probe.meter import Meter, memory_errors
from shoestring.runs.trained_model import start_from
from shoestring.training.checkpoint import Checkpoints, State
from shoestring.training.compiling import start_compiler
from shoestring.training.learner import Learner
from shoestring.training.passes import Tally
from shoestring.training.schedule import Schedule

MEASURED_DOCUMENT = 128
"""Tokens per document, where attention stays within documents."""


def make_learner(
    recipe: Recipe,
    device: torch.device,
    group: ProcessGroup | None = None,
    init: bool = True,
    say: Callable[[str], object] = lambda _: None,
    beside: bool = False,
) -> Learner:
    """The learner of a run with its first weights; without `init`, those of `model.init` are not read.

    With `beside`, it takes steps before its layers are compiled.
    """
    compiled = is_compiled(recipe, device.type)
    if compiled and not beside:
        start_compiler(device)
    model = build(recipe.model, vocabulary(recipe), recipe.data.length, derive(recipe.run.seed, "weights"))
    if init and recipe.model.init is not None:
        start_from(model, recipe.model, recipe.model.init, say)
    if recipe.is_tuned:
        tune(model, recipe, derive(recipe.run.seed, "adapters"))
    shard = recipe.parallel is not None and recipe.parallel.shard
    return Learner(model, recipe.train, device, group, shard, beside, compiled)


def own_rows(recipe: Recipe, device: torch.device) -> TokenSource:
    """The rows that the recipe trains on; raises UserError where they are not prepared."""
    file = RunFolder.of(recipe).plan
    plan = Plan.read(file) if file.is_file() else None
    store = None
    if recipe.data.stream is None and recipe.data.label is None and given_store(recipe.data) is None:
        folder = store_folder(recipe.data, recipe.run.seed, planned_documents(recipe.data, plan))
        if not StorePaths(folder).manifest.is_file():
            raise UserError(f"--real: there is no store {folder} yet; make it first with: shoestring prepare RECIPE")
        store = Store(folder, recipe.data.tokenizer)
    return training_corpus(recipe, plan or Plan(binding=""), store).training(device)


class RandomRows:
    """Rows of the shape and kind that a recipe reads, with random ids."""

    def __init__(self, recipe: Recipe):
        self._length, self._data, self._model = recipe.data.length, recipe.data, recipe.model
        self._vocabulary = vocabulary(recipe)
        self._encoder = family_of(recipe.model).predicts_hidden(recipe.model)
        self._last = family_of(recipe.model).last_predictions(recipe.model)
        self._random = np.random.default_rng(derive(recipe.run.seed, "random ids"))
        self._generator = torch.Generator().manual_seed(derive(recipe.run.seed, "random tokens"))

    def rows(self, batch: int) -> Batch:
        ids = self._random_ids(batch)
        if self._encoder:
            return self._encoder_rows(ids[:, :-1])
        if not self._data.document_mask:
            return Batch(ids, last=self._last)
        documents = torch.arange(self._length + 1) // MEASURED_DOCUMENT + 1
        return Batch(ids, documents.repeat(batch, 1), document_mask=True)

    def _random_ids(self, batch: int) -> Tensor:
        """In memory of the same kind as in a run: a store's rows are NumPy's, outside the tensors of a CPU's heap."""
        drawn = self._random.integers(self._vocabulary, size=(batch, self._length + 1))
        return torch.from_numpy(drawn) if self._data.stream is None else torch.tensor(drawn)

    def _encoder_rows(self, ids: Tensor) -> Batch:
        """Rows with hidden tokens or a class each; with documents where rows may be padded, for attention to see it."""
        padded = self._data.label is not None or self._data.packing != "concat"
        segments = torch.ones_like(ids) if padded else None
        if self._model.classes is not None:
            return Batch(ids, segments, wanted=ids[:, :1] % self._model.classes)
        hidden = torch.rand(ids.shape, generator=self._generator) < self._data.masked
        hidden[0, 0] = True  # at least one in a batch of any size
        return Batch(ids, segments, wanted=ids.masked_fill(~hidden, IGNORED), share=self._data.masked)


class TrainingWorkload:
    """Steps of a recipe's learner at any batch size, on the rows of `source` or on random ones."""

    def __init__(self, recipe: Recipe, meter: Meter, source: TokenSource | None = None):
        self.learner = make_learner(recipe, meter.device)
        self.compiled, self._meter = self.learner.keeps_shapes, meter
        self.reset_peak, self.usage, self.forget = meter.reset, meter.usage, self.learner.forget
        self._folder, self._seed = Path(recipe.run.folder), recipe.run.seed
        self._tally: Tally | None = None
        self._source, self._step = source, 0
        self._random = RandomRows(recipe)

    def _rows(self, batch: int) -> Batch:
        """Rows like those of the recipe."""
        if self._source is None:
            return self._random.rows(batch)
        self._step += 1
        return self._source.batch(self._source.order(self._seed, self._step, batch))

    def accumulate(self, batch: int) -> None:
        self._tally = self.learner.accumulate(self._rows(batch), batch)
        self._meter.wait()
        if not self._tally.fitted:
            raise MemoryError(f"a micro-batch of {batch} does not fit")

    def rehearse(self, batch: int) -> bool:
        with memory_errors():
            return self.learner.rehearse(self._rows(batch))

    def update(self) -> None:
        assert self._tally is not None, "there is a gradient to apply"
        self.learner.update(self._tally, 0.0)  # a rate of zero: the arithmetic of an update, with unchanged weights
        self._meter.wait()

    def steps(self, batch: int, count: int, passes: int = 1) -> None:
        for _ in range(count):
            tally = self.learner.accumulate(self._rows(passes * batch), batch)
            if not tally.fitted:
                raise MemoryError(f"a micro-batch of {batch} does not fit")
            self.learner.update(tally, 0.0)
        self._meter.wait()

    def validate(self, batch: int) -> None:
        failed = self.learner.unscored
        self.learner.score(self._rows(batch), batch)
        if self.learner.unscored > failed:  # the learner scored them in smaller parts
            raise MemoryError(f"a micro-batch of {batch} to be scored does not fit")

    def checkpoint(self, beside: Callable[[], object] = lambda: None) -> int:
        with temporary_folder(self._folder) as folder:  # on the disk that the run will write to
            checkpoints = Checkpoints(folder, keep=1)
            checkpoints.save(self.learner, State(recipe="", data="", schedule=Schedule(total=1)), wait=False)
            beside()
            checkpoints.wait()
            return checkpoints.path(0).stat().st_size
