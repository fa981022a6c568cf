"""Parquet, and the Arrow arrays of data sets of the hub: one document per row."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from shoestring.core.environment import RECORD_BYTES, record_bytes
from shoestring.core.errors import DataError, MissingExtra
from shoestring.core.units import Bytes
from shoestring.data.read.documents import (
    COLUMNS,
    Format,
    Reading,
    Records,
    Values,
    joined,
    short_enough,
    some_names,
    text_of,
)
from shoestring.data.read.formats.parquet_pages import Page, read_page
from shoestring.data.read.lines import BLOCK, Broken, of_content

_ROWS = 256
_PAGES, _BATCH = 16, 4
"""Longest records that one page may hold, and that the rows of a batch may hold."""


def _parquet_records(file: io.BufferedIOBase, name: str, reading: Reading) -> Records:
    """One document per row; only the columns of the text are read."""
    try:
        import pyarrow  # type: ignore[import-untyped]
        from pyarrow import parquet
    except ImportError as cause:
        raise MissingExtra(f"reading {name}", "pyarrow", "data") from cause
    number = 1
    try:
        # with the defaults of these two, the column of a whole row group would be held in memory
        with parquet.ParquetFile(file, buffer_size=BLOCK, pre_buffer=False) as table:
            check_columns(table.schema_arrow, name, reading)
            for batch in _batches(table, file, name, reading.columns):
                yield from arrow_records(batch, number, reading)
                number += batch.num_rows
    except (pyarrow.ArrowException, OSError) as cause:
        if not of_content(cause):
            raise
        raise DataError(f"{name}, after row {number - 1}: broken parquet file ({cause})") from cause


def check_columns(schema: Any, name: str, reading: Reading) -> None:
    """Raise DataError unless an Arrow schema has exactly one of each column that is read, of text."""
    from pyarrow import types

    for column in reading.columns:
        if schema.names.count(column) != 1:
            raise DataError(
                f'{name}: no column "{column}"; the columns are {some_names(schema.names)}; set {reading.setting}'
            )
        kind = schema.field(column).type
        kind = kind.value_type if types.is_dictionary(kind) else kind
        if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
            raise DataError(f'{name}: the column "{column}" holds {kind}, not text; set {reading.setting}')


def arrow_records(batch: Any, first: int, reading: Reading) -> Records:
    """The records of an Arrow batch, numbered from `first`."""
    longest = record_bytes()
    columns = [_values(batch.column(column)) for column in reading.columns]
    for number, values in enumerate(zip(*columns), first):
        try:
            fields = [_text(value, column) for value, column in zip(values, reading.columns)]
            yield number, short_enough(joined(fields, reading), longest)
        except UnicodeDecodeError as cause:
            yield number, Broken(f"not UTF-8 text ({cause.reason})")
        except Broken as cause:
            yield number, cause


def _values(column: Any) -> Any:
    """The values of an Arrow array; the array itself where one of them is not UTF-8."""
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        return column


def _text(value: Any, column: str) -> str:
    return text_of(value.as_py() if hasattr(value, "as_py") else value, column)


def _parquet_values(file: io.BufferedIOBase, name: str, _reading: Reading, column: str) -> Values:
    from pyarrow import parquet

    with parquet.ParquetFile(file, pre_buffer=False) as table:
        check_label(table.schema_arrow.names, name, column)
        batches = _batches(table, file, name, (column,))
        yield from enumerate(itertools.chain.from_iterable(batch.column(0).to_pylist() for batch in batches), 1)


def _batches(table: Any, file: io.BufferedIOBase, name: str, columns: Sequence[str]) -> Iterator[Any]:
    """The rows of columns, so many at a time that they fit the memory, however small they are in the file.

    A page is decompressed whole, and a row may repeat all of its dictionary's page.
    """
    longest = record_bytes()
    for group in range(table.num_row_groups):
        rows = _ROWS
        for column, page in _pages(file, table.metadata.row_group(group), columns):
            if page.plain_bytes > _PAGES * longest:
                size, most = Bytes(page.plain_bytes).short(), Bytes(_PAGES * longest).short()
                raise DataError(
                    f'{name}, row group {group + 1}: a page of {size} of the column "{column}"; at most {most} are '
                    f"read at once, {_PAGES} times the longest record; {RECORD_BYTES} sets another limit"
                )
            if page.is_dictionary:
                rows = min(rows, max(1, _BATCH * longest // max(1, page.plain_bytes)))
        yield from table.iter_batches(rows, row_groups=[group], columns=list(columns), use_threads=False)


def _pages(file: io.BufferedIOBase, group: Any, columns: Sequence[str]) -> Iterator[tuple[str, Page]]:
    """The pages of columns in a row group; none of a column of several parts, as of a label that is a table."""
    chunks = [group.column(index) for index in range(group.num_columns)]
    for chunk in chunks:
        if chunk.path_in_schema not in columns:
            continue
        at = chunk.data_page_offset
        if chunk.has_dictionary_page and chunk.dictionary_page_offset:
            at = min(at, chunk.dictionary_page_offset)
        end = at + chunk.total_compressed_size
        while at < end:
            page = read_page(file, at)
            yield chunk.path_in_schema, page
            at += page.header_bytes + page.packed_bytes


def check_label(names: Iterable[str], where: str, label: str) -> None:
    """Raise DataError if a table has no such column."""
    if label not in names:
        raise DataError(f'{where}: no column "{label}"; the columns are {some_names(names)}; set data.label')


PARQUET = Format((".parquet",), _parquet_records, settings=COLUMNS, unit="row", values=_parquet_values, compressed=True)
