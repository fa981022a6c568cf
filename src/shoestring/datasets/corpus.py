"""What a run reads, on disk or computed: training rows, and the held-out rows on which it is scored."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from shoestring.core.errors import DataError, RunError
from shoestring.core.family import family_of
from shoestring.core.recipe import Recipe
from shoestring.core.records import Plan
from shoestring.core.seeds import derive
from shoestring.data.pack.order import Index, Pool, RowIndex, drawn_rows
from shoestring.data.pack.packed import PackedSource
from shoestring.data.pack.windows import sliding_windows
from shoestring.data.store.prepare import given_store, planned_documents, scored_tokens, store_folder
from shoestring.data.store.store import SplitEntry, Store, StoreRows
from shoestring.data.tokenize.prompts import unmarked
from shoestring.data.tokenize.special_tokens import special_tokens
from shoestring.data.tokenize.tokenizers import SymbolTokenizer, Tokenizer, WordTokenizer, spelled_bytes
from shoestring.data.tokenize.vocabulary import vocabulary_size
from shoestring.datasets.labelled import LabelledCorpus
from shoestring.datasets.other_text import OtherText
from shoestring.datasets.source import LastPredictions, MaskedRows, Masking, RowsOfStore, RowsOfStream, TokenSource
from shoestring.datasets.streams import hmm_of, open_stream, symbol_names
from shoestring.models.batch import Batch
from shoestring.streams.source import HELDOUT, TRAIN, StreamRows


class Corpus(Protocol):
    """What a run reads."""

    fingerprint: str
    tokenizer: Tokenizer
    vocab_size: int
    bytes: int
    """Size on disk."""
    class_counts: NDArray[np.int64] | None
    """How many training rows each class has, (classes,); None if tokens are predicted."""

    @property
    def bytes_per_token(self) -> float | None:
        """Mean over the scored predictions; None if tokens do not keep every byte of a text, or some are hidden."""
        ...

    def training(self, device: torch.device) -> TokenSource: ...

    def heldout(self) -> Batch:
        """The rows that every evaluation of a run scores, on the CPU."""
        ...


class StoreCorpus:
    """A token store."""

    class_counts: NDArray[np.int64] | None = None
    share: float
    """Of the corpus that training reads."""

    def __init__(self, recipe: Recipe, store: Store, share: float | None = None):
        """`share` is that of the corpus that is read for training; None: all that the store holds."""
        splits = store.manifest.splits
        self._read = {name: entry.with_share(share) for name, entry in splits.items()}
        if "heldout" in splits:  # as few extents as hold the scored rows, however much is read for training
            self._read["heldout"] = splits["heldout"].with_tokens(scored_tokens(recipe))
        self.share = _share(self._read.get("train"))
        read = replace(store.manifest, splits=self._read)
        self.fingerprint, self.bytes = read.fingerprint, read.bytes
        self.tokenizer = store.tokenizer
        self.vocab_size, self.masks = vocabulary(recipe, store.tokenizer), masks(recipe, store.tokenizer)
        self._store, self._length, self._rows = store, recipe.data.length, recipe.evaluate.rows
        self._marked = store.manifest.vocab_size if store.manifest.prompts else None
        self._context = recipe.evaluate.context
        if self._context is not None and store.manifest.row is not None:
            raise DataError(
                f"evaluate.context = {self._context}: {store.paths.folder} holds rows of a fixed length, which do not "
                f"overlap; leave it out"
            )
        if self.masks is not None and self._marked is not None:
            raise DataError(
                f"{store.paths.folder} holds prompts with completions, which are for models that predict the next token"
            )
        if self.masks is not None:
            special = self.masks["train"].special
            self._length = special.room(recipe.data.length)
            if special.prefix or special.suffix:  # rows of this layout are not those of the plain tokens
                self.fingerprint += "-framed"
        self._data, self._seed = recipe.data, recipe.run.seed
        self._last = family_of(recipe.model).last_predictions(recipe.model)

    def training(self, device: torch.device) -> TokenSource:  # noqa: ARG002
        return _predicting(self.training_rows, self.masks, "train", self._last)

    @cached_property
    def training_rows(self) -> RowsOfStore:
        return self._open("train")

    def with_more(self, share: float, position: int) -> StoreCorpus:
        """This corpus with the rows of a larger share of the text, once that is prepared, from a position of the run
        on; what is counted and scored stays."""
        grown = self._extended(share)
        rows = grown.training_rows
        rows.pools = (*self.training_rows.pools, Pool(position, len(rows)))
        return grown

    def with_pools(self, share: float, pools: Sequence[Pool]) -> StoreCorpus:
        """This corpus as a run had it that got rows at several positions, the last of them those of this share."""
        grown = self._extended(share)
        rows = grown.training_rows
        if len(rows) != pools[-1].rows:
            raise RunError(
                f"the store {self._store.paths.folder} is not the one that this run has read: its rows differ"
            )
        rows.pools = pools
        return grown

    def after(self, share: float, pools: Sequence[Pool], position: int) -> StoreCorpus:
        """This corpus as it is read on from a position of a run that had these pools, the last of this share."""
        if share > self.share:
            return self.with_pools(share, pools)
        if len(self.training_rows) < pools[-1].rows or (len(self.training_rows) == pools[-1].rows and len(pools) == 1):
            return self  # data.documents are fewer, or all has been read
        grown = self._extended(self.share)
        more = len(grown.training_rows) - pools[-1].rows
        grown.training_rows.pools = (*pools, *[Pool(position, len(grown.training_rows))] * (more > 0))
        return grown

    def _extended(self, share: float) -> StoreCorpus:
        grown = copy.copy(self)
        grown._store = Store(self._store.paths.folder)
        entry = grown._store.manifest.splits["train"].with_share(share)
        if _share(entry) < share:
            raise RunError(
                f"the store {self._store.paths.folder} has {_share(entry):.2%} of the corpus, not {share:.2%}"
            )
        grown.share, grown.bytes = _share(entry), sum(part.bytes for part in (self._read | {"train": entry}).values())
        grown.training_rows = grown._open("train", entry)
        return grown

    def heldout(self) -> Batch:
        source = self._open("heldout")
        rows = drawn_rows(self._rows, len(source))
        return _heldout(_predicting(source, self.masks, "heldout", self._last), rows)

    def training_tokens(self) -> Iterator[NDArray[np.integer]]:
        """All tokens of the training split, for counting; (rows, tokens) in a store of fixed rows."""
        stream, marked = self._counted.stream(), self._marked
        return stream if marked is None else (unmarked(ids, marked) for ids in stream)

    @cached_property
    def _counted(self) -> StoreRows:
        """Kept open: pages of a file that was closed would pass for memory of the run."""
        return self._store.split("train", self._length, entry=self._read["train"])

    @property
    def training_size(self) -> int:
        """Tokens in the training split."""
        return self._read["train"].tokens

    def _open(self, split: str, entry: SplitEntry | None = None) -> RowsOfStore:
        data, entry = self._data, entry or self._read.get(split)
        if data.packing != "concat":
            packed = PackedSource(self._store, split, self._length, data.packing, entry)
            return RowsOfStore(packed, data.document_mask, self._marked)
        seed = derive(self._seed, "shift") if data.random_offset and split == "train" else None
        rows, windows = self._store.split(split, self._length, seed, entry), None
        if self._context is not None and split == "heldout":
            windows = sliding_windows(rows.tokens, self._length, self._context)
        return RowsOfStore(rows, data.document_mask, self._marked, windows)

    @property
    def keeps_bytes(self) -> bool:
        """Whether the tokens keep every byte of a text, and all are predicted."""
        tokenizer = self._store.tokenizer  # a file may hold words, too
        return self.masks is None and not isinstance(tokenizer, WordTokenizer | SymbolTokenizer)

    @cached_property
    def bytes_per_token(self) -> float | None:
        """If only a part of the split is scored, from the bytes that its tokens spell; a row may cut a character."""
        if not self.keeps_bytes:
            return None
        rows = self._store.split("heldout", self._length, entry=self._read["heldout"])
        every = self._data.packing == "concat" and self._last is self._marked is self._context is None
        if self._rows >= len(rows) and every:
            return rows.bytes_per_token
        batch, tokenizer = self.heldout(), self._store.tokenizer
        targets, scored = batch.targets().numpy(), batch.predicted().numpy()
        size = sum(spelled_bytes(tokenizer, row[there]) for row, there in zip(targets, scored, strict=True))
        return size / max(1, batch.predictions())


def _share(entry: SplitEntry | None) -> float:
    """The share of the corpus that a split has."""
    return 1.0 if entry is None or not entry.extents else entry.extents[-1].share


def masks(recipe: Recipe, tokenizer: Tokenizer) -> dict[str, Masking] | None:
    """The masking of each split; None for a model that predicts the next token."""
    if not family_of(recipe.model).predicts_hidden(recipe.model):
        return None
    return {split: Masking.of(recipe, tokenizer, split) for split in ("train", "heldout")}


class StreamCorpus:
    """A stream; held-out rows come from a separate range."""

    bytes = 0
    bytes_per_token: float | None = None
    class_counts: NDArray[np.int64] | None = None

    def __init__(self, recipe: Recipe):
        self.recipe, self.stream = recipe, open_stream(recipe)
        self.scored_rows = recipe.evaluate.rows
        self.last = family_of(recipe.model).last_predictions(recipe.model)
        self.tokenizer: Tokenizer = SymbolTokenizer(self.stream.symbols, symbol_names(recipe))
        self.fingerprint, self.vocab_size = self.stream.fingerprint, vocabulary(recipe, self.tokenizer)
        self.masks = masks(recipe, self.tokenizer)

    def training(self, device: torch.device) -> TokenSource:
        return self._open("train", TRAIN, device if self.masks is None else torch.device("cpu"))

    def heldout(self) -> Batch:
        return _heldout(self._open("heldout", HELDOUT, torch.device("cpu")), np.arange(self.scored_rows))

    def _open(self, split: str, first: int, device: torch.device) -> TokenSource:
        rows = RowsOfStream(StreamRows(self.stream, first, device))
        return _predicting(rows, self.masks, split, self.last)


def _predicting(source: TokenSource, masks: dict[str, Masking] | None, split: str, last: int | None) -> TokenSource:
    """The rows of a split with what the model predicts: hidden tokens, the last predictions, or all."""
    if masks is not None:
        return MaskedRows(source, masks[split])
    return source if last is None else LastPredictions(source, last)


def _heldout(source: TokenSource, rows: Index) -> Batch:
    """Rows of a source by number; raises DataError if they have nothing to predict."""
    batch = source.batch(RowIndex.first(rows))
    if not batch.predictions():
        raise DataError(
            f"nothing is predicted in the {len(rows):,} held-out rows; use more text, or raise evaluate.rows, "
            f"data.heldout or data.masked"
        )
    return batch


def open_corpus(recipe: Recipe, plan: Plan, store: Store | None = None, scored: str | None = None) -> Corpus:
    """As `training_corpus`, scored on the text `scored`, or those of `data.validation`, where they are given."""
    corpus, others = training_corpus(recipe, plan, store), recipe.data.scored if scored is None else {"": scored}
    if not others:
        return corpus
    if isinstance(corpus, StreamCorpus):
        raise DataError(f'"{scored}", to be scored: this run reads a stream, which has no text')
    return OtherText(corpus, recipe, others)


def training_corpus(
    recipe: Recipe, plan: Plan, store: Store | None = None
) -> StoreCorpus | StreamCorpus | LabelledCorpus:
    """What a run of this plan reads: a stream, documents with a class, or a store, prepared or named by the recipe."""
    if recipe.data.stream is not None:
        return StreamCorpus(recipe)
    if recipe.data.label is not None:
        return LabelledCorpus(recipe)
    store = store or given_store(recipe.data)
    if store is None:
        folder = store_folder(recipe.data, recipe.run.seed, planned_documents(recipe.data, plan))
        if not folder.is_dir():
            raise RunError(f"the store {folder} of this run is missing; make it again with: shoestring prepare RECIPE")
        store = Store(folder, recipe.data.tokenizer)
    return StoreCorpus(recipe, store, plan.share)


def vocabulary(recipe: Recipe, tokenizer: Tokenizer | None = None) -> int:
    """How many ids a recipe's rows have, including the mask; known before the corpus is read."""
    data, hides = recipe.data, family_of(recipe.model).predicts_hidden(recipe.model)
    if tokenizer is None and data.stream is None and given_store(data) is None:
        return vocabulary_size(data.tokenizer, data.end, hides)
    tokenizer = tokenizer or _tokenizer(recipe)
    return special_tokens(tokenizer).vocab_size if hides else tokenizer.vocab_size


def _tokenizer(recipe: Recipe) -> Tokenizer:
    """The tokenizer of a stream, or of a store that is given."""
    data, store = recipe.data, given_store(recipe.data)
    if data.stream is not None:
        symbols = data.stream.symbols
        return SymbolTokenizer(hmm_of(recipe).parameters.symbols if symbols is None else symbols)
    assert store is not None, "another is known by its size"
    return store.tokenizer
