"""Parquet, and the Arrow arrays of data sets of the hub: one document per row."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable
from typing import Any

from shoestring.core.errors import DataError, MissingExtra
from shoestring.data.read.documents import Format, Reading, Records, Values, some_names, text_of
from shoestring.data.read.lines import BLOCK, Broken, of_content

_ROWS = 256


def _parquet_records(file: io.BufferedIOBase, name: str, reading: Reading) -> Records:
    """One document per row; only the text column is read."""
    try:
        import pyarrow  # type: ignore[import-untyped]
        from pyarrow import parquet
    except ImportError as cause:
        raise MissingExtra(f"reading {name}", "pyarrow", "data") from cause
    number = 1
    try:
        # with the defaults of these two, the column of a whole row group would be held in memory
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
    """Raise DataError unless an Arrow schema has exactly one such column, of text."""
    from pyarrow import types

    if schema.names.count(column) != 1:
        raise DataError(f'{name}: no column "{column}"; the columns are {some_names(schema.names)}; set data.column')
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
            yield number, text_of(value.as_py() if texts is values else value, column)
        except UnicodeDecodeError as cause:
            yield number, Broken(f"not UTF-8 text ({cause.reason})")
        except Broken as cause:
            yield number, cause


def _parquet_values(file: io.BufferedIOBase, name: str, _reading: Reading, column: str) -> Values:
    from pyarrow import parquet

    with parquet.ParquetFile(file, pre_buffer=False) as table:
        check_label(table.schema_arrow.names, name, column)
        batches = table.iter_batches(_ROWS, columns=[column], use_threads=False)
        yield from enumerate(itertools.chain.from_iterable(batch.column(0).to_pylist() for batch in batches), 1)


def check_label(names: Iterable[str], where: str, label: str) -> None:
    """Raise DataError if a table has no such column."""
    if label not in names:
        raise DataError(f'{where}: no column "{label}"; the columns are {some_names(names)}; set data.label')


PARQUET = Format(
    (".parquet",), _parquet_records, settings=frozenset({"column"}), unit="row", values=_parquet_values, compressed=True
)
