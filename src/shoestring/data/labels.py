"""Documents with a class: the text of one column of a source, and beside it the whole number of another.

The texts are those that `corpora` reads, with its errors; the labels are read beside them, and joined by the number of
the record.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from shoestring.core.errors import DataError
from shoestring.core.recipe import Data
from shoestring.data.corpora import FilePart, Part, RowsPart, ShardPart
from shoestring.data.formats import Document, Skipped
from shoestring.data.lines import open_file, read_lines
from shoestring.data.sources import open_source
from shoestring.data.units import unit_heldout

MOST_DOCUMENTS = 20_000_000
"""They are held in memory."""
KINDS = ("jsonl", "csv", "parquet", "hf")
"""Sources with columns."""
_WHOLE = re.compile(r"\s*[+-]?[0-9]+\s*")
_ROWS = 1 << 12

Values = Iterator[tuple[float, Any]]
"""The number of a record, and what its label's field holds."""


class Labelled(NamedTuple):
    """A document and its class."""

    text: str
    label: int
    held_out: bool


def read_labelled(data: Data, seed: int, classes: int, skipped: Skipped | None = None) -> Iterator[Labelled]:
    """The documents of a source with their classes; `skipped` counts what is left out.

    Those held out are chosen as for a store of one unit, so a small corpus has the same ones here and there.
    """
    assert data.label is not None
    kind = data.source.partition(":")[0]
    if kind not in KINDS:
        raise DataError(
            f'data.label = "{data.label}": data.source = "{data.source}" has no columns; {", ".join(KINDS)} have'
        )
    skipped = Skipped() if skipped is None else skipped
    held_out, seen = unit_heldout(seed, data.heldout, 0), set[bytes]()
    limit = None if data.documents is None else int(data.documents)
    parts = open_source(data, seed).parts
    every = itertools.chain.from_iterable(_joined(part, data.label, skipped) for part in parts)
    for index, (document, value) in enumerate(itertools.islice(every, limit)):
        if index == MOST_DOCUMENTS:
            raise DataError(
                f'data.source = "{data.source}": documents with a class are held in memory, and there are more than '
                f"{MOST_DOCUMENTS:,}; set data.documents"
            )
        label = _class(value, document, data, classes, skipped)
        if label is None or (data.unique and _again(document.text, seen)):
            continue
        yield Labelled(document.text, label, held_out(index))


def count_labelled(data: Data, seed: int, classes: int) -> tuple[int, int]:
    """How many documents there are for training, and how many are held out."""
    counts = [0, 0]
    for document in read_labelled(data, seed, classes):
        counts[document.held_out] += 1
    return counts[0], counts[1]


def _again(text: str, seen: set[bytes]) -> bool:
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
    if digest in seen:
        return True
    seen.add(digest)
    return False


def _class(value: Any, document: Document, data: Data, classes: int, skipped: Skipped) -> int | None:
    """The class of a document; None where the record is broken, and such ones are left out."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not (whole or (isinstance(value, str) and _WHOLE.fullmatch(value))):
        shown = "nothing" if value is None or value == "" else repr(value)[:40]
        why = f'the field "{data.label}" holds {shown}, not the whole number of a class'
        if data.on_error == "stop":
            raise DataError(f'{document.place}: {why}; mend it, or leave it out with data.on_error = "skip"')
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
    """Every document of a part, and what its label's field holds; None where there is no such field."""
    values = _values(part, label)
    number, value = 0.0, None
    for document in part.documents(skipped):
        while number < document.number:
            number, value = next(values, (math.inf, None))
        yield document, value if number == document.number else None


def _values(part: Part, label: str) -> Values:
    match part:
        case FilePart(kind="csv"):
            return _csv_values(part, label)
        case FilePart(kind="jsonl"):
            return _json_values(part, label)
        case FilePart():
            return _parquet_values(part, label)
        case RowsPart():
            rows = part.dataset.select(range(part.begin, part.end))
            return _row_values(rows, part.begin, part.spec, label)
        case ShardPart():
            rows = part.dataset.shard(part.dataset.num_shards, part.shard)
            return _row_values(rows, 0, part.spec, label)
    raise AssertionError(f"{type(part).__name__} has no columns")


def _csv_values(part: FilePart, label: str) -> Values:
    """As the texts are read, from the other column; whether a broken row stops is said by them."""
    reading = dataclasses.replace(part.reading, column=label, on_error="skip")
    try:
        for document in dataclasses.replace(part, reading=reading).documents():
            yield document.number, document.text
    except DataError as cause:  # of the header
        raise DataError(str(cause).replace("data.column", "data.label")) from cause


def _json_values(part: FilePart, label: str) -> Values:
    with open_file(part.path) as file:
        for first, texts, _ in read_lines(file, str(part.path)):
            for number, line in enumerate(texts, first):
                try:
                    record = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                yield number, record.get(label) if isinstance(record, dict) else None


def _parquet_values(part: FilePart, label: str) -> Values:
    from pyarrow import parquet  # type: ignore[import-untyped]

    with open_file(part.path) as file, parquet.ParquetFile(file, pre_buffer=False) as table:
        _check_name(table.schema_arrow.names, str(part.path), label)
        batches = table.iter_batches(_ROWS, columns=[label], use_threads=False)
        yield from enumerate(itertools.chain.from_iterable(batch.column(0).to_pylist() for batch in batches), 1)


def _row_values(rows: Any, first: int, name: str, label: str) -> Values:
    batches = (batch for batch in rows.with_format("arrow").iter(batch_size=_ROWS))
    values = itertools.chain.from_iterable(_column(batch, name, label) for batch in batches)
    return enumerate(values, first + 1)


def _column(batch: Any, name: str, label: str) -> list[Any]:
    _check_name(batch.schema.names, name, label)
    values: list[Any] = batch.column(label).to_pylist()
    return values


def _check_name(names: Iterable[str], where: str, label: str) -> None:
    if label not in names:
        shown = ", ".join(f'"{name}"' for name in itertools.islice(names, 8))
        raise DataError(f'{where}: no column "{label}", but {shown}; set data.label')
