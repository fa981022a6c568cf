"""Documents with a class: the text from one column of a source, the class from another.

Texts are read as by `corpora`, with the same errors. Labels are read separately and joined by the number of the record.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from shoestring.core.errors import DataError
from shoestring.core.registry import registry
from shoestring.core.sections import Data
from shoestring.data.read.corpora import FilePart, drawn, open_source
from shoestring.data.read.documents import Corpus, Document, Part, Skipped
from shoestring.data.store.work_units import unit_heldout

MOST_DOCUMENTS = 20_000_000
"""All are held in memory."""
KEPT_CHARACTERS = 1 << 23
"""Of the texts that are kept for whoever reads them next."""
_WHOLE = re.compile(r"\s*[+-]?[0-9]+\s*")


class Labelled(NamedTuple):
    """A document and its class."""

    text: str
    label: int
    held_out: bool


class _Kept(NamedTuple):
    """The documents that were read last, and what they are of: the recipe's part, and the files as they were."""

    of: tuple[object, ...]
    documents: Sequence[Labelled]


_kept: _Kept | None = None


def read_labelled(data: Data, seed: int, classes: int, skipped: Skipped | None = None) -> Iterator[Labelled]:
    """The documents of a source with their classes; `skipped` counts what is left out.

    Held-out documents are chosen as in a store of one unit, so a small corpus has the same ones in both. A run counts
    them, fits a tokenizer and makes rows: a small corpus of files is read once for all of it.
    """
    global _kept
    assert data.label is not None
    if not data.source.has_columns:
        known = [name for name, form in registry("format").items() if form.has_columns]
        raise DataError(
            f'data.label = "{data.label}": data.source = "{data.source}" has no columns; {", ".join(known)}, hf have'
        )
    corpus = open_source(data, seed)
    in_files = all(isinstance(part, FilePart) for part in corpus.parts)
    of = (data, seed, classes, *(part.identity() for part in corpus.parts)) if in_files else ()
    if skipped is None and of and _kept is not None and _kept.of == of:
        yield from _kept.documents
        return
    kept: list[Labelled] | None = [] if of else None
    characters = 0
    for document in _read(corpus, data, classes, Skipped() if skipped is None else skipped):
        characters += len(document.text)
        if characters > KEPT_CHARACTERS:
            kept = None
        if kept is not None:
            kept.append(document)
        yield document
    if kept is not None:
        _kept = _Kept(of, kept)


def _read(corpus: Corpus, data: Data, classes: int, skipped: Skipped) -> Iterator[Labelled]:
    assert data.label is not None
    held_out, seen = unit_heldout(data.heldout, 0), set[bytes]()
    limit = None if data.documents is None else int(data.documents)
    labelled = itertools.chain.from_iterable(_joined(part, data.label, skipped) for part in corpus.parts)
    for read, (index, (document, value)) in enumerate(drawn(corpus, enumerate(labelled), limit)):
        if read == MOST_DOCUMENTS:
            raise DataError(
                f'data.source = "{data.source}": documents with a class are held in memory, and there are more than '
                f"{MOST_DOCUMENTS:,}; set data.documents"
            )
        label = _class(value, document, data, classes, skipped)
        if label is None:
            continue
        if data.unique:
            digest = hashlib.blake2b(document.text.encode(), digest_size=16).digest()
            if digest in seen:
                continue
            seen.add(digest)
        yield Labelled(document.text, label, held_out(index))


def count_labelled(data: Data, seed: int, classes: int) -> tuple[int, int]:
    """How many documents there are for training, and how many are held out."""
    counts = Counter(document.held_out for document in read_labelled(data, seed, classes))
    return counts[False], counts[True]


def _class(value: Any, document: Document, data: Data, classes: int, skipped: Skipped) -> int | None:
    """The class of a document; None if the record is broken and broken ones are skipped."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not (whole or (isinstance(value, str) and _WHOLE.fullmatch(value))):
        shown = "nothing" if value is None or value == "" else repr(value)[:40]
        why = f'the field "{data.label}" holds {shown}, not the whole number of a class'
        if data.on_error == "stop":
            raise DataError(f'{document.place}: {why}; repair it, or skip it with data.on_error = "skip"')
        skipped.add(document.place, why)
        return None
    label = int(value)
    if not 0 <= label < classes:
        raise DataError(
            f'{document.place}: the field "{data.label}" holds {label}; with model.classes = {classes} it must be 0 to '
            f"{classes - 1}"
        )
    return label


def _joined(part: Part, label: str, skipped: Skipped) -> Iterator[tuple[Document, Any]]:
    """Every document of a part with the value of its label; None if the record has no such field."""
    values = part.values(label)
    number: float = 0
    value = None
    for document in part.documents(skipped):
        while number < document.number:
            number, value = next(values, (math.inf, None))
        yield document, value if number == document.number else None
