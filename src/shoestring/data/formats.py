"""Files to documents: one reader for each format, in constant memory whatever the size of the file.

A *record* is what one document is made from: a line, a paragraph, a row. A format's `records` gives them in the order
of the file, each as its number and its text, or why it has none; `documents` stops at a broken one or counts it, as
`Reading.on_error` says. What makes all that follows unreadable, such as a broken gzip stream, always stops.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from shoestring.core.errors import DataError, MissingExtra
from shoestring.data.lines import BLOCK, LONGEST, Broken, of_content, read_lines, usable

_ROWS = 256
_EXAMPLES = 5
_NAMES = 8


class Document(NamedTuple):
    """A text, and where it comes from."""

    text: str
    where: str
    number: int

    @property
    def place(self) -> str:
        """As in "corpus.jsonl, line 12"; put together only where it is wanted."""
        return f"{self.where} {self.number}"


Records = Iterator[tuple[int, str | Broken]]
"""Number and text of each record; a number is that of its first line, or of the row."""


@dataclass
class Skipped:
    """What was left out."""

    count: int = 0
    """Broken records."""
    empty: int = 0
    """Records of nothing but white space."""
    examples: list[str] = field(default_factory=list)
    """Place and reason of the first broken records."""

    def add(self, place: str, why: str) -> None:
        """Count one broken record."""
        self.count += 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append(f"{place}: {why}")

    def merge(self, other: Skipped) -> None:
        """Count what was left out elsewhere, too."""
        self.count += other.count
        self.empty += other.empty
        self.examples = [*self.examples, *other.examples][:_EXAMPLES]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """How records become documents."""

    column: str = "text"
    """Name of the column, or of the field, that holds the text."""
    delimiter: str = ","
    """Between the fields of CSV."""
    end_line: str | None = None
    """A line that ends a document of several lines; without it, each line of text is a document."""
    split: str = "train"
    """Of a hub data set."""
    streaming: bool = False
    """Read a hub data set from the network as it goes, instead of storing it first."""
    on_error: Literal["stop", "skip"] = "stop"
    """What a broken record does."""


def documents(records: Records, where: str, reading: Reading, skipped: Skipped) -> Iterator[Document]:
    """The documents of a file's records; `where` is the place without the number."""
    new = tuple.__new__  # a named tuple's own constructor takes a fifth of the time to read short lines
    for number, text in records:
        if isinstance(text, Broken):
            if reading.on_error == "stop":
                hint = 'mend it, or leave such records out with data.on_error = "skip"'
                raise DataError(f"{where} {number}: {text}; {hint}") from text
            skipped.add(f"{where} {number}", str(text))
        elif not text or text.isspace():
            skipped.empty += 1
        else:
            yield new(Document, (text, where, number))


def _text_records(file: io.BufferedIOBase, name: str, reading: Reading) -> Records:
    """One document a line; with `end_line`, all lines up to that one."""
    if reading.end_line is not None:
        yield from _groups(file, name, reading.end_line)
        return
    for first, texts, broken in read_lines(file, name):
        for number, line in enumerate(texts, first):
            yield number, broken[number] if number in broken else line.strip()


def _paragraph_records(file: io.BufferedIOBase, name: str, _reading: Reading) -> Records:
    """Documents separated by blank lines."""
    return _groups(file, name, None)


def _groups(file: io.BufferedIOBase, name: str, end_line: str | None) -> Records:
    """Documents of several lines; one broken line breaks the document, and is its number."""
    group: list[str] = []
    first = size = 0
    bad: tuple[int, Broken] | None = None
    for start, texts, broken in read_lines(file, name):
        for number, line in enumerate(texts, start):
            if number in broken:
                bad = bad or (number, broken[number])
            elif not ends_group(line, end_line):
                if group or line.strip():
                    first = first if group else number
                    group.append(line.removesuffix("\r"))
                    size += len(line)
                    if size > LONGEST:
                        raise DataError(f"{name}, line {first}: no end of the document within {LONGEST:,} characters")
            elif bad or group or end_line is not None:
                yield bad or (first if group else number, "\n".join(group).strip())
                group, size, bad = [], 0, None
    if bad or group:
        yield bad or (first, "\n".join(group).strip())


def ends_group(line: str, end_line: str | None) -> bool:
    """Whether a line ends a document of several lines: one that is `end_line`, or a blank one where that is None."""
    return line.strip() == (end_line or "").strip()


def _jsonl_records(file: io.BufferedIOBase, name: str, reading: Reading) -> Records:
    """One JSON object a line; blank lines are no records."""
    column = reading.column
    for first, texts, broken in read_lines(file, name):
        for number, line in enumerate(texts, first):
            if number in broken:
                yield number, broken[number]
            elif record := line.strip():
                try:
                    yield number, _json_text(record, column)
                except Broken as cause:
                    yield number, cause


_decode_json = json.JSONDecoder().raw_decode


def _json_text(line: str, column: str) -> str:
    try:
        record, end = _decode_json(line)
    except json.JSONDecodeError as cause:
        raise Broken(f"not JSON ({cause.msg}, character {cause.pos + 1})") from cause
    except (ValueError, RecursionError) as cause:
        raise Broken(f"not JSON ({cause})") from cause
    if end != len(line):
        raise Broken(f"not JSON (something follows the value, at character {end + 1})")
    if not isinstance(record, dict):
        raise Broken("not a JSON object")
    if column not in record:
        raise Broken(f'no field "{column}", but {_names(record)}')
    text = _text(record[column], column)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as cause:
            raise Broken(f'the field "{column}" holds half a surrogate pair') from cause
    return text


def _text(value: object, column: str) -> str:
    if not isinstance(value, str):
        raise Broken(f'the field "{column}" holds {"null" if value is None else type(value).__name__}, not text')
    return usable(value)


def _names(names: Iterable[str]) -> str:
    """A few names for a message."""
    names = list(names)
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return ", ".join(f'"{name}"' for name in names[:_NAMES]) + more or "none"


def _csv_records(file: io.BufferedIOBase, name: str, reading: Reading) -> Records:
    """One document a row, from the column that the header names; blank lines are no records."""
    rows = _csv_rows(file, name, reading.delimiter)
    line, header = next(rows, (1, [reading.column]))
    if isinstance(header, Broken):
        raise DataError(f"{name}, line {line}: {header}")
    if header.count(reading.column) != 1:
        times = "more than one column" if reading.column in header else "no column"
        raise DataError(f'{name}, line {line}: {times} "{reading.column}", but {_names(header)}; set data.column')
    column, width = header.index(reading.column), len(header)
    for line, row in rows:
        if isinstance(row, Broken):
            yield line, row
        elif len(row) == width:
            yield line, row[column]
        else:
            yield line, Broken(f"a row of {len(row)} fields, where the header has {width}")


def _csv_rows(file: io.BufferedIOBase, name: str, delimiter: str) -> Iterator[tuple[int, list[str] | Broken]]:
    broken: dict[int, Broken] = {}

    def lines() -> Iterator[str]:
        for block in read_lines(file, name):
            broken.update(block.broken)
            yield from [f"{text}\n" for text in block.texts]

    csv.field_size_limit(LONGEST)  # of the whole process: there is no other
    rows = csv.reader(lines(), delimiter=delimiter, strict=True)
    while True:
        first = rows.line_num + 1
        row: list[str] | Broken | None
        try:
            row = next(rows, None)
        except csv.Error as cause:
            row = Broken(f"not CSV ({cause})")
        if row is None:
            return
        if broken:
            bad = [broken.pop(line) for line in range(first, rows.line_num + 1) if line in broken]
            row = bad[0] if bad else row
        if row:
            yield first, row


def _parquet_records(file: io.BufferedIOBase, name: str, reading: Reading) -> Records:
    """One document a row; only the text column is read."""
    try:
        import pyarrow  # type: ignore[import-untyped]
        from pyarrow import parquet
    except ImportError as cause:
        raise MissingExtra(f"reading {name}", "pyarrow", "data") from cause
    number = 1
    try:
        # with its own default for either, it holds the column of a whole row group in memory
        with parquet.ParquetFile(file, buffer_size=BLOCK, pre_buffer=False) as table:
            check_column(table.schema_arrow, name, reading.column)
            for batch in table.iter_batches(_ROWS, columns=[reading.column], use_threads=False):
                yield from arrow_records(batch.column(0), number, reading.column)
                number += batch.num_rows
    except (pyarrow.ArrowException, OSError) as cause:
        if not of_content(cause):
            raise
        raise DataError(f"{name}, after row {number - 1}: broken parquet file ({cause})") from cause


def check_column(schema: Any, name: str, column: str) -> None:
    """Refuse an Arrow schema without one such column, or with one that holds no text."""
    from pyarrow import types

    if schema.names.count(column) != 1:
        raise DataError(f'{name}: no column "{column}", but {_names(schema.names)}; set data.column')
    kind = schema.field(column).type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
        raise DataError(f'{name}: the column "{column}" holds {kind}, not text; set data.column')


def arrow_records(values: Any, first: int, column: str) -> Records:
    """The records of an Arrow array, numbered from `first`."""
    try:
        texts = values.to_pylist()
    except UnicodeDecodeError:
        texts = values
    for number, value in enumerate(texts, first):
        try:
            yield number, _text(value.as_py() if texts is values else value, column)
        except UnicodeDecodeError as cause:
            yield number, Broken(f"not UTF-8 text ({cause.reason})")
        except Broken as cause:
            yield number, cause


class Format(NamedTuple):
    """A kind of file."""

    suffixes: tuple[str, ...]
    """Of the files that are taken from a folder, before that of the compression."""
    settings: frozenset[str]
    """Fields of `Reading` that say something about it."""
    records: Callable[[io.BufferedIOBase, str, Reading], Records]
    unit: str = "line"
    """What the number of a record counts."""


FORMATS = {
    "text": Format((".txt", ".text"), frozenset({"end_line"}), _text_records),
    "paragraphs": Format((".txt", ".text"), frozenset(), _paragraph_records),
    "jsonl": Format((".jsonl", ".ndjson"), frozenset({"column"}), _jsonl_records),
    "csv": Format((".csv",), frozenset({"column", "delimiter"}), _csv_records),
    "parquet": Format((".parquet",), frozenset({"column"}), _parquet_records, "row"),
}
