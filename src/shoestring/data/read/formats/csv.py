"""CSV: one document per row, from the column that the header names."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import replace

from shoestring.core.environment import record_bytes
from shoestring.core.errors import DataError
from shoestring.data.read.documents import COLUMNS, Format, Reading, Records, Values, joined, some_names
from shoestring.data.read.lines import Broken, read_lines, without_end


def _csv_records(file: io.BufferedIOBase, name: str, reading: Reading) -> Records:
    """One document per row; blank lines are not records."""
    rows = _csv_rows(file, name, reading.delimiter)
    line, header = next(rows, (1, list(reading.columns)))
    if isinstance(header, Broken):
        raise DataError(f"{name}, line {line}: {header}")
    for column in reading.columns:
        if header.count(column) != 1:
            many = "more than one column" if column in header else "no column"
            raise DataError(
                f'{name}, line {line}: {many} "{column}"; the columns are {some_names(header)}; set {reading.setting}'
            )
    places, width = [header.index(column) for column in reading.columns], len(header)
    for line, row in rows:
        if isinstance(row, Broken):
            yield line, row
        elif len(row) == width:
            try:
                yield line, joined([row[place] for place in places], reading)
            except Broken as cause:
                yield line, cause
        else:
            yield line, Broken(f"a row of {len(row)} fields, while the header has {width}")


def _csv_rows(file: io.BufferedIOBase, name: str, delimiter: str) -> Iterator[tuple[int, list[str] | Broken]]:
    broken: dict[int, Broken] = {}
    longest, size = record_bytes(), 0  # of a field; its row may be twice as long

    def lines() -> Iterator[str]:
        nonlocal size
        for block in read_lines(file, name):
            broken.update(block.broken)
            for text in block.texts:
                size += len(text) + 1
                if size > 2 * longest:
                    raise DataError(f"{name}, line {first}: {without_end('row', 2 * longest)}")
                yield f"{text}\n"

    csv.field_size_limit(longest)  # for the whole process: the module has no other limit
    rows = csv.reader(lines(), delimiter=delimiter, strict=True)
    while True:
        first, size = rows.line_num + 1, 0
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


def _csv_values(file: io.BufferedIOBase, name: str, reading: Reading, column: str) -> Values:
    """The values of a column; broken rows are left out here, and reported when the texts are read."""
    try:
        for number, value in _csv_records(file, name, replace(reading, column=column, prompt=None, completion=None)):
            if not isinstance(value, Broken):
                yield number, value
    except DataError as cause:  # an error in the header
        raise DataError(str(cause).replace("data.column", "data.label")) from cause


CSV = Format((".csv",), _csv_records, settings=COLUMNS | {"delimiter"}, values=_csv_values)
