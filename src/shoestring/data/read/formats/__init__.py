"""File formats: one file each, and a line here."""

from __future__ import annotations

from shoestring.core.registry import Registry
from shoestring.data.read.documents import Format

_HERE = "shoestring.data.read.formats"

FORMATS: Registry[Format] = Registry(
    {
        "text": f"{_HERE}.text:TEXT",
        "paragraphs": f"{_HERE}.text:PARAGRAPHS",
        "jsonl": f"{_HERE}.jsonl:JSONL",
        "csv": f"{_HERE}.csv:CSV",
        "parquet": f"{_HERE}.parquet:PARQUET",
    }
)
