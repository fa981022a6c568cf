"""A corpus of documents with a class each, read into memory: a row is one document, of which the class is predicted."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoestring.core.errors import DataError
from shoestring.core.recipe import Recipe
from shoestring.data.labels import Labelled, read_labelled
from shoestring.data.order import Index, step_rows
from shoestring.data.shards import dtype_for
from shoestring.data.special_tokens import special_tokens
from shoestring.data.tokenizers import Tokenizer, WordTokenizer, open_tokenizer, tokenizer_fingerprint, words_in
from shoestring.evaluate.classes import uniform_and_frequency
from shoestring.models import Batch
from shoestring.stages.answers import Strategies

_AT_A_TIME = 1 << 12


class Documents:
    """The ids of documents, each cut to `length`, and their classes."""

    def __init__(self, documents: Iterator[Labelled], tokenizer: Tokenizer, length: int):
        special = special_tokens(tokenizer)
        self.length, self._first, self._last = length, special.first, special.last
        room = max(0, length - (special.first is not None) - (special.last is not None))
        ids, sizes, labels, held_out = [], [], [], []
        kind = dtype_for(special.vocab_size)
        while some := list(itertools.islice(documents, _AT_A_TIME)):
            found, count = tokenizer.encode_batch([document.text for document in some])
            places = np.arange(len(found)) - np.repeat(np.cumsum(count) - count, count)
            ids.append(found[places < room].astype(kind))
            sizes.append(np.minimum(count, room))
            labels.append(np.array([document.label for document in some], dtype=np.int64))
            held_out.append(np.array([document.held_out for document in some], dtype=np.bool_))
        nothing = np.zeros(0, dtype=np.int64)
        self._ids, self._sizes = np.concatenate([nothing.astype(kind), *ids]), np.concatenate([nothing, *sizes])
        self._starts = np.cumsum(self._sizes) - self._sizes
        self.labels = np.concatenate([nothing, *labels])
        self.held_out = np.concatenate([nothing.astype(np.bool_), *held_out])

    def batch(self, numbers: Index) -> Batch:
        """Documents by number as rows of `length`: the first token, the text, the last token, and padding.

        First and last are left out where the tokenizer has none.
        """
        begin = int(self._first is not None)
        sizes, places = self._sizes[numbers, None], np.arange(self.length)[None] - begin  # (n, 1), (1, length)
        inside = (places >= 0) & (places < sizes)
        ids = np.zeros(inside.shape, dtype=np.int64)
        ids[inside] = self._ids[(self._starts[numbers, None] + places)[inside]]
        if self._first is not None:
            ids[:, 0] = self._first
        if self._last is not None:
            ids[places == sizes] = self._last
        segments = (places < sizes + (self._last is not None)).astype(np.int64)
        wanted = self.labels[numbers, None]
        return Batch(torch.from_numpy(ids), torch.from_numpy(segments), wanted=torch.from_numpy(wanted))

    @property
    def fingerprint(self) -> str:
        """Of all that the rows are made from."""
        digest = hashlib.sha256()
        for array in (self._ids, self._sizes, self.labels, self.held_out):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()[:16]


class LabelledRows:
    """Some of the documents as a token source."""

    def __init__(self, documents: Documents, numbers: Index):
        self._documents, self._numbers = documents, numbers

    def order(self, seed: int, step: int, batch: int) -> Index:
        return step_rows(seed, len(self._numbers), step, batch)

    def rows(self, indices: Index) -> Batch:
        return self._documents.batch(self._numbers[indices])


class LabelledCorpus:
    """The documents of a recipe with `data.label`."""

    bytes = 0
    bytes_per_token: float | None = None

    def __init__(self, recipe: Recipe):
        data, classes = recipe.data, recipe.model.classes
        assert classes is not None, "checked when the recipe was read"

        def read() -> Iterator[Labelled]:
            return read_labelled(data, recipe.run.seed, classes)

        words = words_in(data.tokenizer)
        if words is None:
            tokenizer = open_tokenizer(data.tokenizer, data.end)
        else:
            tokenizer = WordTokenizer.fit(words, (document.text for document in read() if not document.held_out))
        self.vocab_size = special_tokens(tokenizer).vocab_size
        self._documents = Documents(read(), tokenizer, data.length)
        self.fingerprint = f"{tokenizer_fingerprint(tokenizer)}-{self._documents.fingerprint}"
        self._train, held_out = (np.flatnonzero(self._documents.held_out == held) for held in (False, True))
        self._heldout = held_out[: recipe.evaluate.rows]
        for name, numbers in (("for training", self._train), ("held out", held_out)):
            if not len(numbers):
                raise DataError(
                    f'data.source = "{data.source}": of its {len(self._documents.labels):,} documents none is {name}; '
                    f"give more, or another data.heldout"
                )
        self.class_counts: NDArray[np.int64] | None = np.bincount(
            self._documents.labels[self._train], minlength=classes
        ).astype(np.int64)

    def training(self, device: torch.device) -> LabelledRows:  # noqa: ARG002
        return LabelledRows(self._documents, self._train)

    def heldout(self) -> Batch:
        return self._documents.batch(self._heldout)

    def strategies(self) -> Strategies:
        assert self.class_counts is not None
        truth = self._documents.labels[self._heldout]
        uniform, majority = uniform_and_frequency(truth, self.class_counts)
        return Strategies({"uniform": uniform, "majority class": majority})

    def strategies_take(self) -> None:
        return None

    def predictions(self) -> Mapping[str, Tensor]:
        return {}
