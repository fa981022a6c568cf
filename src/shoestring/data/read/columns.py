"""Which column of a table is its text, by the first records of a file."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from shoestring.data.read.lines import read_start

LOOKED_AT, MOST_BYTES = 200, 1 << 20
"""Records, and bytes of a file of lines, that are looked at."""
USUAL = "text"
DELIMITERS = ",;\t|"

Record = dict[str, Any]


def text_fields(kind: str, file: Path) -> dict[str, tuple[str, str]]:
    """The column and the delimiter of a table, with reasons, where they are not the usual ones.

    A file of another format is left to its reader, which says what is wrong; one that is damaged is an error.
    """
    if kind not in _READERS:
        return {}
    found = dict[str, tuple[str, str]]()
    try:
        if kind == "csv" and (delimiter := _delimiter(file)) != DELIMITERS[0]:
            found["delimiter"] = delimiter, "parts the header into the most columns"
        records = list(itertools.islice(_READERS[kind](file), LOOKED_AT))
    except (ImportError, OSError, ValueError, csv.Error):
        return found
    characters = Counter[str]()
    for record in records:
        characters.update({name: len(value) for name, value in record.items() if name and isinstance(value, str)})
    if characters and USUAL not in characters:
        (column, most), *_ = characters.most_common(1)
        mean = most / len(records)
        found["column"] = column, f"the longest texts: {mean:,.0f} characters on average in {len(records)} records"
    return found


def _head(file: Path) -> io.StringIO:
    """The first lines of a file, whole ones."""
    raw = read_start(file, MOST_BYTES)
    whole = raw if len(raw) < MOST_BYTES else raw[: raw.rfind(b"\n") + 1]
    return io.StringIO(whole.decode("utf-8-sig", "replace"), newline="")


def _delimiter(file: Path) -> str:
    header = _head(file).readline()
    return max(DELIMITERS, key=lambda each: len(next(csv.reader([header], delimiter=each), [])))


def _csv(file: Path) -> Iterator[Record]:
    return iter(csv.DictReader(_head(file), delimiter=_delimiter(file)))


def _jsonl(file: Path) -> Iterator[Record]:
    records = (json.loads(line) for line in _head(file) if line.strip())
    return (record for record in records if isinstance(record, dict))


def _parquet(file: Path) -> Iterator[Record]:
    from pyarrow.parquet import ParquetFile  # type: ignore[import-untyped]

    with ParquetFile(file) as table:
        for batch in table.iter_batches(batch_size=LOOKED_AT):
            yield from batch.to_pylist()


_READERS: dict[str, Callable[[Path], Iterator[Record]]] = {"csv": _csv, "jsonl": _jsonl, "parquet": _parquet}
