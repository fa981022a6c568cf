"""What a run reads, be it on disk or computed: training rows, held-out rows, and strategies beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from shoestring.core.errors import RunError
from shoestring.core.facts import Plan
from shoestring.core.recipe import Recipe
from shoestring.core.seeds import derive
from shoestring.data.order import Index
from shoestring.data.packed import PackedSource
from shoestring.data.prepare import store_folder
from shoestring.data.store import Store, StoreRows
from shoestring.data.tokenizers import vocabulary_size
from shoestring.evaluate.strategies import count, strategy_losses
from shoestring.models import Batch
from shoestring.stages.answers import WATCHED_ROWS, Strategies, open_answers
from shoestring.stages.prepare import given_store, planned_documents
from shoestring.stages.streams import hmm_of
from shoestring.streams.source import HELDOUT, TRAIN, StreamRows
from shoestring.train.loop import TokenSource


class Corpus(Protocol):
    """What a run reads."""

    fingerprint: str
    vocab_size: int
    bytes: int
    """On disk."""
    bytes_per_token: float | None
    """Of held-out text; None where a token does not keep every byte of it."""

    def training(self, device: torch.device) -> TokenSource: ...

    def heldout(self) -> Batch:
        """The rows that every evaluation of a run scores, (rows, length + 1) on the CPU."""
        ...

    def strategies(self) -> Strategies:
        """Scored on the held-out rows."""
        ...

    def predictions(self) -> Mapping[str, Tensor]:
        """What strategies expect of the first held-out rows, each (rows, length, vocabulary); empty for a text."""
        ...


class StoreCorpus:
    """A token store."""

    def __init__(self, recipe: Recipe, store: Store):
        self.fingerprint, self.bytes = store.manifest.fingerprint, store.manifest.bytes
        self.vocab_size = store.manifest.vocab_size
        self._store, self._length, self._rows = store, recipe.data.length, recipe.evaluate.rows
        self._data, self._seed = recipe.data, recipe.run.seed
        exact = not store.manifest.tokenizer.startswith(("words:", "symbols:"))  # others keep every byte of a text
        self.bytes_per_token = store.split("heldout", self._length).bytes_per_token if exact else None

    def training(self, device: torch.device) -> TokenSource:
        return self._open("train")

    def heldout(self) -> Batch:
        source = self._open("heldout")
        return Batch.of(source.rows(np.arange(min(self._rows, len(source)))))

    def _open(self, split: str) -> Documents | StoreRows:
        data = self._data
        if data.packing != "concat":
            return Documents(PackedSource(self._store, split, data.length, data.packing), data.within)
        seed = derive(self._seed, "shift") if data.shift and split == "train" else None
        rows = self._store.split(split, data.length, seed)
        return Documents(rows, True) if data.within else rows

    def strategies(self) -> Strategies:
        counts = count(self._store.split("train", self._length).stream(), self.vocab_size)
        batch = self.heldout()
        return Strategies(strategy_losses(batch.ids.numpy(), counts, batch.predicted().numpy()))

    def predictions(self) -> Mapping[str, Tensor]:
        return {}


class Documents:
    """Rows of a store with the documents that they hold."""

    def __init__(self, source: StoreRows | PackedSource, within: bool):
        self._source, self._within = source, within

    def __len__(self) -> int:
        return len(self._source)

    def order(self, seed: int, step: int, batch: int) -> Index:
        return self._source.order(seed, step, batch)

    def rows(self, indices: Index) -> Batch:
        if isinstance(self._source, PackedSource):
            ids, segments = self._source.rows(indices)
        else:
            starts, width = self._source.starts(indices), self._source.length + 1
            ids, segments = self._source.windows(starts, width), self._source.segments(starts, width)
        return Batch(torch.from_numpy(ids), torch.from_numpy(segments), self._within)


class StreamCorpus:
    """A stream: held-out rows are of a range of their own, and the answers are known."""

    bytes = 0
    bytes_per_token: float | None = None

    def __init__(self, recipe: Recipe):
        self._rows, self._answers = recipe.evaluate.rows, open_answers(recipe)
        self._stream = self._answers.stream
        self.fingerprint, self.vocab_size = self._stream.fingerprint, self._stream.symbols

    def training(self, device: torch.device) -> TokenSource:
        return StreamRows(self._stream, TRAIN, device)

    def heldout(self) -> Batch:
        return Batch(self._stream.rows(HELDOUT, self._rows).long())

    def strategies(self) -> Strategies:
        return self._answers.strategies(self._rows)

    def predictions(self) -> Mapping[str, Tensor]:
        return self._answers.predictions(min(self._rows, WATCHED_ROWS))


def open_corpus(recipe: Recipe, plan: Plan, store: Store | None = None) -> Corpus:
    """What a run of this plan reads: a stream, or a store that has been prepared and may be given."""
    if recipe.data.stream is not None:
        return StreamCorpus(recipe)
    store = store or given_store(recipe)
    if store is None:
        folder = store_folder(recipe.data, recipe.run.seed, planned_documents(recipe, plan))
        if not folder.is_dir():
            raise RunError(f"the store {folder} of this run is gone; make it again with: shoestring prepare RECIPE")
        store = Store(folder, recipe.data.tokenizer)
    return StoreCorpus(recipe, store)


def vocabulary(recipe: Recipe) -> int:
    """How many ids a recipe's rows have; known before the rows are."""
    if recipe.data.stream is not None:
        name = recipe.data.stream
        return hmm_of(recipe).parameters.symbols if name.startswith("hmm:") else int(name.removeprefix("markov:"))
    store = given_store(recipe)
    return vocabulary_size(recipe.data.tokenizer, recipe.data.end) if store is None else store.manifest.vocab_size
