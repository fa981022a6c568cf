"""The corpus that a recipe names: the built-in stories, files, or a data set of the hub."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from shoestring.core.errors import DataError
from shoestring.core.recipe import Data
from shoestring.core.seeds import derive
from shoestring.data.corpora import Corpus, Part, open_corpus
from shoestring.data.formats import Document, Reading, Skipped


@dataclass(frozen=True)
class StoriesPart:
    """The built-in corpus: story *i* is computed from (seed, i), so any range of them can be read alone."""

    seed: int
    size: int | None = None
    block: int | None = 1

    def documents(self, skipped: Skipped | None = None) -> Iterator[Document]:  # noqa: ARG002
        return (self._story(index) for index in itertools.count())

    def between(self, begin: int, end: int, skipped: Skipped | None = None) -> Iterator[Document]:  # noqa: ARG002
        return (self._story(index) for index in range(begin, end))

    def _story(self, index: int) -> Document:
        from shoestring.data.stories import story  # no other corpus waits for it

        return Document(story(self.seed, index), "stories, number", index)

    def identity(self) -> dict[str, Any]:
        from shoestring.data.stories import CORPUS_VERSION

        return {"source": "stories", "version": CORPUS_VERSION, "seed": self.seed}


class Stories:
    """The built-in corpus, which has no end."""

    endless = True

    def __init__(self, seed: int):
        self.parts: Sequence[Part] = (StoriesPart(derive(seed, "stories")),)

    def documents(self, skipped: Skipped | None = None) -> Iterator[Document]:
        return self.parts[0].documents(skipped)

    def identity(self) -> dict[str, Any]:
        return self.parts[0].identity()


def open_source(data: Data, seed: int) -> Corpus:
    """The corpus that `data.source` names; the seed matters to the stories alone."""
    reading = Reading(
        column=data.column,
        delimiter=data.delimiter,
        end_line=data.end_line,
        split=data.split,
        streaming=data.streaming,
        on_error=data.on_error,
    )
    if data.source != "stories":
        return open_corpus(data.source, reading)
    if reading != Reading():
        raise DataError('data.source = "stories" is read without any of column, delimiter, end_line, split, streaming')
    return Stories(seed)


def texts(corpus: Corpus, documents: int | None = None) -> Iterator[str]:
    """The texts of the first documents."""
    return (document.text for document in itertools.islice(corpus.documents(), documents))
