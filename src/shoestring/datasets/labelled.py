"""A corpus of documents with classes, read into memory: a row is one document, whose class is predicted."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from shoestring.core.errors import DataError
from shoestring.core.recipe import Recipe
from shoestring.core.units import counted
from shoestring.data.pack.frame import frame_rows
from shoestring.data.pack.order import Index, RowIndex, drawn_rows, step_rows
from shoestring.data.read.labels import Labelled, read_labelled
from shoestring.data.store.shards import dtype_for
from shoestring.data.tokenize.special_tokens import special_tokens
from shoestring.data.tokenize.tokenizers import Tokenizer, fit_tokenizer, open_tokenizer, tokenizer_fingerprint
from shoestring.models.batch import Batch

_AT_A_TIME = 1 << 12


class Documents:
    """The ids of documents, each cut to `length`, and their classes."""

    def __init__(self, documents: Iterator[Labelled], tokenizer: Tokenizer, length: int):
        self.length, self._special = length, special_tokens(tokenizer)
        room = max(0, length - len(self._special.prefix) - len(self._special.suffix))
        ids, sizes, labels, held_out = [], [], [], []
        kind = dtype_for(self._special.vocab_size)
        while some := list(itertools.islice(documents, _AT_A_TIME)):
            tokens, count = tokenizer.encode_batch([document.text for document in some])
            places = np.arange(len(tokens)) - np.repeat(np.cumsum(count) - count, count)
            ids.append(tokens[places < room].astype(kind))
            sizes.append(np.minimum(count, room))
            labels.append(np.array([document.label for document in some], dtype=np.int64))
            held_out.append(np.array([document.held_out for document in some], dtype=np.bool_))
        nothing = np.zeros(0, dtype=np.int64)
        self._ids, self._sizes = np.concatenate([nothing.astype(kind), *ids]), np.concatenate([nothing, *sizes])
        self._starts = np.cumsum(self._sizes) - self._sizes
        self.labels = np.concatenate([nothing, *labels])
        self.held_out = np.concatenate([nothing.astype(np.bool_), *held_out])

    def batch(self, numbers: Index) -> Batch:
        """Documents by number as rows of `length`: text within the tokenizer's special tokens, then padding."""
        sizes, places = self._sizes[numbers, None], np.arange(self.length)  # (n, 1), (length,)
        inside = places < sizes
        text = np.zeros(inside.shape, dtype=np.int64)
        text[inside] = self._ids[(self._starts[numbers, None] + places)[inside]]
        framed = frame_rows(text, inside.astype(np.int64), self._special, end=None)
        ids, segments = (torch.from_numpy(part[:, : self.length]) for part in framed)
        return Batch(ids, segments, wanted=torch.from_numpy(self.labels[numbers, None]))

    @property
    def fingerprint(self) -> str:
        """Identifies everything that the rows are made from."""
        digest = hashlib.sha256()
        for array in (self._ids, self._sizes, self.labels, self.held_out):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()[:16]


class LabelledRows:
    """Some of the documents as a token source."""

    def __init__(self, documents: Documents, numbers: Index):
        self._documents, self._numbers = documents, numbers

    def order(self, seed: int, step: int, batch: int) -> RowIndex:
        return step_rows(seed, len(self._numbers), step, batch)

    def batch(self, index: RowIndex) -> Batch:
        return self._documents.batch(self._numbers[index.rows])


class LabelledCorpus:
    """The documents of a recipe with `data.label`."""

    bytes = 0
    bytes_per_token: float | None = None
    keeps_bytes = False

    def __init__(self, recipe: Recipe):
        data, classes = recipe.data, recipe.model.classes
        assert classes is not None, "checked when the recipe was read"

        def read() -> Iterator[Labelled]:
            return read_labelled(data, recipe.run.seed, classes)

        tokenizer: Tokenizer
        if data.tokenizer.fitted is None:
            tokenizer = open_tokenizer(data.tokenizer, data.end)
        else:
            tokenizer = fit_tokenizer(data.tokenizer, (document.text for document in read() if not document.held_out))
        self.tokenizer = tokenizer
        self.vocab_size = special_tokens(tokenizer).vocab_size
        self._documents = Documents(read(), tokenizer, data.length)
        self.fingerprint = f"{tokenizer_fingerprint(tokenizer)}-{self._documents.fingerprint}"
        self._train, held_out = (np.flatnonzero(self._documents.held_out == held) for held in (False, True))
        self._heldout = held_out[drawn_rows(recipe.evaluate.rows, len(held_out))]
        for name, numbers in (("for training", self._train), ("held out", held_out)):
            if not len(numbers) and (data.validation is None or numbers is self._train):
                raise DataError(
                    f'data.source = "{data.source}": none of its {counted(len(self._documents.labels), "document")} is '
                    f"{name}; use more, or another data.heldout"
                )
        counts = np.bincount(self._documents.labels[self._train], minlength=classes)
        self.class_counts: NDArray[np.int64] | None = counts.astype(np.int64)

    def training(self, device: torch.device) -> LabelledRows:  # noqa: ARG002
        return LabelledRows(self._documents, self._train)

    def heldout(self) -> Batch:
        return self._documents.batch(self._heldout)

    @property
    def heldout_classes(self) -> NDArray[np.int64]:
        """The classes of the scored rows."""
        return self._documents.labels[self._heldout]
