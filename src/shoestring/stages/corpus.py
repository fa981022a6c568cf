"""What a run reads, be it on disk or computed: training rows, held-out rows, and strategies beside them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoestring.core.errors import RunError
from shoestring.core.facts import Plan
from shoestring.core.recipe import Recipe
from shoestring.core.seeds import derive
from shoestring.data.order import Index
from shoestring.data.packed import PackedSource
from shoestring.data.prepare import store_folder
from shoestring.data.special_tokens import special_tokens
from shoestring.data.store import Store, StoreRows
from shoestring.data.tokenizers import (
    SymbolTokenizer,
    Tokenizer,
    WordTokenizer,
    open_tokenizer,
    spelled_bytes,
    words_in,
)
from shoestring.evaluate.strategies import MOST_TOKENS, PART_TOKENS, count, strategy_losses
from shoestring.models import Batch
from shoestring.stages.answers import COUNTED_ROWS, WATCHED_ROWS, Strategies, open_answers
from shoestring.stages.labelled import LabelledCorpus
from shoestring.stages.masked_rows import MaskedRows, Masking, check_hidden, hidden_losses, is_encoder
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
    class_counts: NDArray[np.int64] | None
    """How many training rows each class has, (classes,); None where tokens are predicted."""

    @property
    def bytes_per_token(self) -> float | None:
        """Of the predictions scored; None where tokens do not keep every byte of a text, or some are hidden."""
        ...

    def training(self, device: torch.device) -> TokenSource: ...

    def heldout(self) -> Batch:
        """The rows that every evaluation of a run scores, on the CPU."""
        ...

    def strategies(self) -> Strategies:
        """Scored on the held-out rows."""
        ...

    def strategies_take(self) -> float | None:
        """About how many seconds, on this machine; None: as planned."""
        ...

    def predictions(self) -> Mapping[str, Tensor]:
        """What strategies expect of the first held-out rows, each (rows, predictions, vocabulary); empty for a text."""
        ...


class StoreCorpus:
    """A token store."""

    class_counts: NDArray[np.int64] | None = None

    def __init__(self, recipe: Recipe, store: Store):
        self.fingerprint, self.bytes = store.manifest.fingerprint, store.manifest.bytes
        self.vocab_size, self._masks = vocabulary(recipe, store.tokenizer), masks(recipe, store.tokenizer)
        self._store, self._length, self._rows = store, recipe.data.length, recipe.evaluate.rows
        self._data, self._seed, self._last = recipe.data, recipe.run.seed, recipe.model.latents

    def training(self, device: torch.device) -> TokenSource:
        return self._wanted(self._open("train"), "train")

    def heldout(self) -> Batch:
        source = self._open("heldout")
        batch = Batch.of(self._wanted(source, "heldout").rows(np.arange(min(self._rows, len(source)))))
        return batch if self._masks is None else check_hidden(batch)

    def _open(self, split: str) -> Documents | StoreRows:
        data = self._data
        if data.packing != "concat":
            return Documents(PackedSource(self._store, split, data.length, data.packing), data.within)
        seed = derive(self._seed, "shift") if data.shift and split == "train" else None
        rows = self._store.split(split, data.length, seed)
        return Documents(rows, True) if data.within else rows

    def _wanted(self, source: Documents | StoreRows, split: str) -> TokenSource:
        """The rows with what the model predicts of them."""
        if self._masks is not None:
            return MaskedRows(source, self._masks[split], len(source), self._data.shift and split == "train")
        return source if self._last is None else LastPredictions(source, self._last)

    @cached_property
    def bytes_per_token(self) -> float | None:
        """Where not all of the split is scored, what the tokens spell: at the ends of a row a character may be cut."""
        if self._masks is not None or self._store.manifest.tokenizer.startswith(("words:", "symbols:")):
            return None  # others keep every byte of a text
        rows = self._store.split("heldout", self._length)
        if self._rows >= len(rows) and self._data.packing == "concat" and self._last is None:
            return rows.bytes_per_token
        batch, tokenizer = self.heldout(), self._store.tokenizer
        size = sum(spelled_bytes(tokenizer, row[there]) for row, there in zip(*_scored(batch), strict=True))
        return size / max(1, batch.predictions())

    def strategies(self) -> Strategies:
        counts = count(self._store.split("train", self._length).stream(), self.vocab_size)
        batch = self.heldout()
        if self._masks is not None:
            return Strategies(hidden_losses(batch, counts.tokens, self._masks["heldout"].special))
        return Strategies(strategy_losses(batch.ids.numpy(), counts, batch.predicted().numpy()))

    def strategies_take(self) -> float:
        """By the first tokens, counted twice: the first time it reads files and takes new memory."""
        rows, times = self._store.split("train", self._length), [time.perf_counter()]
        for _ in range(2):
            count(rows.stream(), self.vocab_size, PART_TOKENS)
            times.append(time.perf_counter())
        more = min(MOST_TOKENS, self._store.manifest.splits["train"].tokens) / PART_TOKENS - 1
        return times[1] - times[0] + max(0.0, more) * (times[2] - times[1])

    def predictions(self) -> Mapping[str, Tensor]:
        return {}


def _scored(batch: Batch) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The targets, and where they count."""
    return batch.targets().numpy(), batch.predicted().numpy()


def masks(recipe: Recipe, tokenizer: Tokenizer) -> dict[str, Masking] | None:
    """By split; None for a model that predicts the next token."""
    if not is_encoder(recipe.model):
        return None
    return {split: Masking.of(recipe, tokenizer, split) for split in ("train", "heldout")}


class LastPredictions:
    """Rows of which only the last predictions are made."""

    def __init__(self, source: TokenSource, last: int):
        self._source, self._last = source, last

    def order(self, seed: int, step: int, batch: int) -> Index:
        return self._source.order(seed, step, batch)

    def rows(self, indices: Index) -> Batch:
        return Batch.of(self._source.rows(indices))._replace(last=self._last)


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
    """A stream: held-out rows are of a range of their own, and the answers are known, if not for hidden tokens."""

    bytes = 0
    bytes_per_token: float | None = None
    class_counts: NDArray[np.int64] | None = None

    def __init__(self, recipe: Recipe):
        self._rows, self._answers = recipe.evaluate.rows, open_answers(recipe)
        self._stream, self._last = self._answers.stream, recipe.model.latents
        tokenizer = SymbolTokenizer(self._stream.symbols)
        self.fingerprint, self.vocab_size = self._stream.fingerprint, vocabulary(recipe, tokenizer)
        self._masks = masks(recipe, tokenizer)

    def training(self, device: torch.device) -> TokenSource:
        if self._masks is not None:  # masks are made on the CPU
            return MaskedRows(StreamRows(self._stream, TRAIN, torch.device("cpu")), self._masks["train"], None)
        rows = StreamRows(self._stream, TRAIN, device)
        return rows if self._last is None else LastPredictions(rows, self._last)

    def heldout(self) -> Batch:
        if self._masks is not None:
            rows = StreamRows(self._stream, HELDOUT, torch.device("cpu"))
            return check_hidden(MaskedRows(rows, self._masks["heldout"], None).rows(np.arange(self._rows)))
        return Batch(self._stream.rows(HELDOUT, self._rows).long(), last=self._last)

    def strategies(self) -> Strategies:
        if self._masks is not None:
            shown = self._stream.rows(TRAIN, COUNTED_ROWS).flatten().long()
            counts = torch.bincount(shown, minlength=self.vocab_size).numpy()
            return Strategies(hidden_losses(self.heldout(), counts, self._masks["heldout"].special))
        found = self._answers.strategies(self._rows)
        if self._last is None:
            return found
        losses = {name: float(np.mean(values[-self._last :])) for name, values in found.by_position.items()}
        return replace(found, losses=losses)

    def strategies_take(self) -> None:
        return None

    def predictions(self) -> Mapping[str, Tensor]:
        if self._masks is not None:
            return {}
        found = self._answers.predictions(min(self._rows, WATCHED_ROWS))
        return found if self._last is None else {name: p[:, -self._last :] for name, p in found.items()}


def open_corpus(recipe: Recipe, plan: Plan, store: Store | None = None) -> Corpus:
    """What a run of this plan reads: a stream, documents with a class, or a store that was prepared or is given."""
    if recipe.data.stream is not None:
        return StreamCorpus(recipe)
    if recipe.data.label is not None:
        return LabelledCorpus(recipe)
    store = store or given_store(recipe)
    if store is None:
        folder = store_folder(recipe.data, recipe.run.seed, planned_documents(recipe, plan))
        if not folder.is_dir():
            raise RunError(f"the store {folder} of this run is gone; make it again with: shoestring prepare RECIPE")
        store = Store(folder, recipe.data.tokenizer)
    return StoreCorpus(recipe, store)


def vocabulary(recipe: Recipe, tokenizer: Tokenizer | None = None) -> int:
    """How many ids a recipe's rows have, the mask among them; known before the rows are, and before any word is."""
    tokenizer = tokenizer or _tokenizer(recipe)
    return special_tokens(tokenizer).vocab_size if is_encoder(recipe.model) else tokenizer.vocab_size


def _tokenizer(recipe: Recipe) -> Tokenizer:
    """The recipe's, or one of as many ids."""
    data, store = recipe.data, given_store(recipe)
    if data.stream is not None:
        markov = data.stream.removeprefix("markov:")
        return SymbolTokenizer(int(markov) if markov != data.stream else hmm_of(recipe).parameters.symbols)
    if store is not None:
        return store.tokenizer
    words = words_in(data.tokenizer)
    return open_tokenizer(data.tokenizer, data.end) if words is None else WordTokenizer(words, ())
