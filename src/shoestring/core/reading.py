"""The boundary between files and the program: what reading and parsing can raise becomes an error with the file.

It is put around reading and parsing alone: an error of our own arithmetic still shows as a bug.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import stat
import tomllib
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shoestring.core.environment import FILE_BYTES, file_bytes
from shoestring.core.errors import RecordError, ShoestringError, UserError, shown_path, storage_error
from shoestring.core.units import Bytes

DEEPEST = 64
"""Most levels of tables and lists within each other."""

_RAISED: tuple[type[Exception], ...] = (
    OSError, ValueError, RecursionError, OverflowError, MemoryError, EOFError, zlib.error,
    KeyError, TypeError, AttributeError, IndexError,
)  # fmt: skip
"""What reading and parsing raises, and code that takes the parts out of what they return."""
_OPEN_ALREADY = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")
"""Pipes that a shell has opened, as in <(command)."""


@contextlib.contextmanager
def reading(where: str | Path, error: type[UserError] = RecordError, what: str = "") -> Iterator[None]:
    """Turn what a block that reads and parses `where` raises into `error`; `what` is what the file should be."""
    try:
        yield
    except ShoestringError:
        raise
    except _RAISED as cause:
        if isinstance(cause, OSError) and cause.errno is not None:
            raise storage_error("read", where, cause) from cause
        reason = _reason(cause)
        raise error.of_file(shown_path(where), f"not {what} ({reason})" if what else reason) from cause


def _reason(cause: Exception) -> str:
    match cause:
        case UnicodeDecodeError():
            return f"not UTF-8 text ({cause.reason} at byte {cause.start})"
        case json.JSONDecodeError():
            return f"not JSON: {cause}"
        case tomllib.TOMLDecodeError():
            return f"not valid TOML: {cause}"
        case RecursionError():
            return f"tables or lists nested more than {DEEPEST} deep"
        case MemoryError():
            return "too large for the memory"
        case KeyError():
            return f"{cause.args[0] if cause.args else cause}: missing"
        case ValueError() if "integer string conversion" in str(cause):
            return "a number of thousands of digits"
        case TypeError() | AttributeError() | IndexError():
            return f"not of the expected form ({cause})"
    return str(cause) or type(cause).__name__


def check_file(path: Path, most: int | None = None) -> None:
    """Raise OSError or ValueError unless `path` is a file of at most `most` bytes, by default as for any other."""
    status = path.stat()
    if stat.S_ISDIR(status.st_mode) or str(path).startswith(_OPEN_ALREADY):
        return  # opening a folder says best what is wrong
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("a pipe or a device, not a file")
    check_size(status.st_size, most)


def check_size(size: int, most: int | None = None) -> None:
    """Raise ValueError if so many bytes are too many to be read whole."""
    settable = "" if most is not None else f"; the variable {FILE_BYTES} sets another limit"
    most = file_bytes() if most is None else most
    if size > most:
        raise ValueError(f"{Bytes(size).short()}; at most {Bytes(most).short()} are read{settable}")


def read_packed(path: Path) -> bytes:
    """The bytes of a file, decompressed if it ends in .gz; they are counted, as few bytes can become very many."""
    check_file(path)
    if path.suffix != ".gz":
        return path.read_bytes()
    with gzip.open(path) as file:
        raw = file.read(file_bytes() + 1)
    check_size(len(raw))
    return raw


def read_text(path: Path, error: type[UserError] = RecordError, most: int | None = None) -> str:
    """The text of a file in UTF-8, without a byte order mark."""
    with reading(path, error):
        check_file(path, most)
        return path.read_bytes().decode("utf-8-sig")


def read_json(path: Path, error: type[UserError] = RecordError) -> Any:
    """The value in a file of JSON."""
    return parse_json(read_text(path, error), path, error)


def parse_json(text: str | bytes, where: str | Path, error: type[UserError] = RecordError) -> Any:
    with reading(where, error):
        values = json.loads(text, object_pairs_hook=_without_doubles)
        check_depth(values)
        return values


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; TOML allows no name twice either."""
    found = dict(pairs)
    if len(found) < len(pairs):
        [(name, count)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f'the field "{name}" is there {count} times')
    return found


def parse_toml(text: str, where: str | Path, error: type[UserError] = RecordError) -> dict[str, Any]:
    with reading(where, error):
        values = tomllib.loads(text)
        check_depth(values)
        return values


def check_depth(values: Any) -> None:
    """Raise RecursionError where tables and lists lie deeper within each other than code that walks them can go."""
    level = [values]
    for _ in range(DEEPEST):
        inner = [value.values() if isinstance(value, Mapping) else value for value in level if _has_items(value)]
        level = [item for items in inner for item in items]
        if not level:
            return
    raise RecursionError


def _has_items(value: Any) -> bool:
    return isinstance(value, (Mapping, list))
