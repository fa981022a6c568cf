"""Text to score a model on that it was not trained on: `data.validation`, or `evaluate --data`."""

from __future__ import annotations

import dataclasses

from shoestring.core.errors import DataError
from shoestring.core.recipe import Data
from shoestring.core.specs import SourceSpec
from shoestring.data.read.corpora import FilePart, open_source
from shoestring.data.read.documents import Corpus


def other_data(data: Data, source: str) -> Data:
    """The settings by which `data` is read, for all documents of another source."""
    spec = SourceSpec(source)
    problem = spec.problem()
    if problem is None and (spec == "stories" or spec.kind in ("store", "code")):
        problem = "must name files or a hub data set"
    if problem is not None:
        raise DataError(f'"{spec}", to be scored: {problem}')
    return dataclasses.replace(data, source=spec, documents=None, validation=None)


def open_other(data: Data, source: str) -> Corpus:
    """The corpus `source`, read as `data.source` is; refused if it has a file or data set in common with that."""
    other = other_data(data, source)
    try:
        corpus = open_source(other, 0)
    except DataError as cause:
        raise DataError(f'"{source}", to be scored: {str(cause).removeprefix("data.source: ")}') from cause
    if data.stream is None and data.source.kind != "store":
        for name in _names(corpus, other) & _names(open_source(data, 0), data):
            raise DataError(f"{name} is part of data.source: a model must not be scored on text that it is trained on")
    return corpus


def _names(corpus: Corpus, data: Data) -> set[str]:
    """What tells the parts of a corpus from those of another."""
    files = {str(part.path.resolve()) for part in corpus.parts if isinstance(part, FilePart)}
    return files or {f"{data.source}, split {data.split}"}
