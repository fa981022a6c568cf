"""Versioned records: what one stage writes for the next, as JSON with a schema name and number.

A record is a frozen dataclass with a `SCHEMA` such as "shoestring.plan/1". Quantities are plain numbers whose field
names carry the unit; what was not measured is None (null), never zero.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from shoestring.core.errors import RecordError, storage_error
from shoestring.core.files import write_whole
from shoestring.core.schema import decode, encode


@dataclass(frozen=True, kw_only=True)
class Record:
    """Base of all records."""

    SCHEMA: ClassVar[str]

    def to_dict(self) -> dict[str, Any]:
        return {"schema": self.SCHEMA, **encode(self)}

    def write(self, path: Path) -> None:
        write_whole(path, json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n")

    @classmethod
    def from_dict(cls, values: dict[str, Any], where: str) -> Self:
        """The record in `values`; `where` names their origin in errors."""
        schema = values.get("schema") if isinstance(values, dict) else None
        if schema != cls.SCHEMA:
            raise RecordError(f"{where}: expected a record {cls.SCHEMA}, found {schema or 'none'}")
        problems: list[str] = []
        body = {key: value for key, value in values.items() if key != "schema"}
        record: Self | None = decode(cls, body, "", problems)
        if record is None or problems:
            raise RecordError("\n  ".join([f"{where}: not a whole record {cls.SCHEMA}", *problems]))
        return record

    @classmethod
    def read(cls, path: Path) -> Self:
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except OSError as cause:
            raise storage_error("read", path, cause) from cause
        except ValueError as cause:
            raise RecordError(f"{path}: not JSON: {cause}") from cause
        return cls.from_dict(values, str(path))
