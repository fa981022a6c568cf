"""JSON lines: one object per line."""

from __future__ import annotations

import io
import json
from typing import Any

from shoestring.data.read.documents import COLUMNS, Format, Reading, Records, Values, joined, some_names, text_of
from shoestring.data.read.lines import Broken, read_lines


def _jsonl_records(file: io.BufferedIOBase, name: str, reading: Reading) -> Records:
    """One document per line; blank lines are not records."""
    for first, texts, broken in read_lines(file, name):
        for number, line in enumerate(texts, first):
            if number in broken:
                yield number, broken[number]
            elif record := line.strip():
                try:
                    yield number, _json_text(record, reading)
                except Broken as cause:
                    yield number, cause


_decode_json = json.JSONDecoder().raw_decode


def _json_text(line: str, reading: Reading) -> str:
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
    return joined([_field(record, column) for column in reading.columns], reading)


def _field(record: dict[str, Any], column: str) -> str:
    if column not in record:
        raise Broken(f'no field "{column}"; the fields are {some_names(record)}')
    text = text_of(record[column], column)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as cause:
            raise Broken(f'the field "{column}" holds half a surrogate pair') from cause
    return text


def _jsonl_values(file: io.BufferedIOBase, name: str, _reading: Reading, column: str) -> Values:
    for first, texts, _ in read_lines(file, name):
        for number, line in enumerate(texts, first):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            yield number, record.get(column) if isinstance(record, dict) else None


JSONL = Format((".jsonl", ".ndjson"), _jsonl_records, settings=COLUMNS, by_lines=True, values=_jsonl_values)
