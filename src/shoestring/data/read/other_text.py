"""Texts to score a model on that it was not trained on: `data.validation`, or `evaluate --data`."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

from shoestring.core.errors import DataError
from shoestring.core.sections import Data
from shoestring.core.specs import SourceSpec
from shoestring.data.read.corpora import FilePart, open_source
from shoestring.data.read.documents import Corpus, Reading
from shoestring.data.read.formats import FORMATS
from shoestring.data.read.hub import SETTINGS


def other_data(data: Data, source: str) -> Data:
    """The settings by which `data` is read, as far as they apply, for all documents of another source.

    "hf:NAME:CONFIG#SPLIT" names the split of a data set, in place of `data.split`.
    """
    spec, split = SourceSpec(source), data.split
    if spec.kind == "hf" and "#" in spec and not Path(spec.place).exists():
        name, _, split = spec.rpartition("#")
        spec = SourceSpec(name)
    problem = spec.problem()
    if problem is None and (spec == "stories" or spec.kind in ("store", "code")):
        problem = "must name files or a hub data set"
    if problem is None and not split:
        problem = 'names no split after "#"'
    if problem is not None:
        raise DataError(f'"{source}", to be scored: {problem}')
    known = SETTINGS if spec.kind == "hf" else FORMATS[spec.kind].settings
    named = dataclasses.replace(data, source=spec, split=split, documents=None, validation=None)
    reading = Reading(**{name: getattr(named, name) for name in (*known, "on_error")})
    return dataclasses.replace(named, **dataclasses.asdict(reading))


def open_other(data: Data, source: str) -> Corpus:
    """The corpus `source`, read as `data.source` is; refused if it has a file or data set in common with that."""
    other = other_data(data, source)
    try:
        corpus = open_source(other, 0)
    except DataError as cause:
        raise DataError(f'"{source}", to be scored: {str(cause).removeprefix("data.source: ")}') from cause
    if data.stream is None and data.source.kind != "store":
        own = _names(open_source(data, 0), data)
        for name in sorted(name for name in _names(corpus, other) if _meets(name, own)):
            raise DataError(f"{name} is part of data.source: a model must not be scored on text that it is trained on")
    return corpus


def check_others(data: Data) -> None:
    """Raise an error for a text of `data.validation` that cannot be scored, or that is there twice."""
    found = {}
    for name, source in data.scored.items():
        try:
            found[name] = _names(open_other(data, source), other_data(data, source))
        except DataError as cause:
            raise DataError(f"{f'data.validation.{name}'.removesuffix('.')}: {cause}") from cause
    for one, two in itertools.combinations(found, 2):
        if found[one] == found[two]:
            raise DataError(f"data.validation: {one} and {two} are the same text, {min(found[one])}; leave one out")


def _names(corpus: Corpus, data: Data) -> set[str]:
    """What tells the parts of a corpus from those of another: files, or a split or a slice of one."""
    files = {str(part.path.resolve()) for part in corpus.parts if isinstance(part, FilePart)}
    folder = Path(data.source.place)
    place = f"hf:{folder.resolve()}" if data.source.kind == "hf" and folder.exists() else data.source
    return files or {f"{place}, split {data.split}"}


def _meets(name: str, own: set[str]) -> bool:
    """Whether one of `own` has this name, or is a slice of it, as train[:90%], or the whole of this slice."""
    if not name.startswith("hf:"):
        return name in own
    return any(name == other or name.partition("[")[0] == other or other.partition("[")[0] == name for other in own)
