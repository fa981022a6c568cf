"""JSON lines that survive a kill at any byte: only complete lines count."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from shoestring.core.errors import RecordError, RunError, StorageError, storage_error
from shoestring.core.files import open_itself, write_whole
from shoestring.core.reading import check_file, parse_json, reading
from shoestring.core.units import counted

NOWHERE = Path(os.devnull)
"""Where a process that does not write has its lines."""

_MOST_BYTES = 1 << 34
"""Of a file of lines: a hundred million steps."""

_AMOUNTS = ("step", "elapsed", "tokens", "tokens_per_second", "loss", "heldout_loss", "lr", "grad_norm")
"""What must be a number that is not negative, wherever a line has it."""


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All complete lines of a file, in order; an incomplete last line is ignored, and a missing file has none."""
    return [values for _, values in _parsed_lines(path)]


def read_some_lines(path: Path, most: int, *always: str) -> list[dict[str, Any]]:
    """As `read_lines`, but about `most` of them, evenly, the last one, and those that have a name of `always`.

    The others are not looked at, so that long files are read in milliseconds.
    """
    lines, names = _whole_lines(path), [f'"{name}"'.encode() for name in always]
    every, last = max(1, len(lines) // most), len(lines) - 1

    def is_wanted(at: int) -> bool:
        return at % every == 0 or at == last or any(name in lines[at] for name in names)

    return [values for _, values in _parsed_lines(path, lines, is_wanted)]


def _parsed_lines(
    path: Path, lines: Sequence[bytes] | None = None, is_wanted: Callable[[int], bool] = lambda _: True
) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Each complete line that is wanted, with its values."""
    for number, line in enumerate(_whole_lines(path) if lines is None else lines, start=1):
        if not is_wanted(number - 1):
            continue
        values = parse_json(line, f"{path}, line {number}")
        if not isinstance(values, dict):
            raise RecordError(f"{path}, line {number}: not an object: {line[:80]!r}")
        for name in (name for name in _AMOUNTS if name in values):
            if isinstance(value := values[name], bool) or not isinstance(value, (int, float)) or not value >= 0:
                raise RecordError(f"{path}, line {number}: {name} = {value!r}: must be a number, and not negative")
        yield line, values


def _whole_lines(path: Path) -> list[bytes]:
    if path == NOWHERE:
        return []
    try:
        with reading(path):
            check_file(path, _MOST_BYTES)
            content = path.read_bytes()
    except StorageError as cause:
        if isinstance(cause.__cause__, FileNotFoundError):
            return []
        raise
    return content.split(b"\n")[:-1]  # what follows the last newline is incomplete or empty


class LineFile:
    """A file of JSON lines to append to. Opening it removes an incomplete last line; between lines it is closed.

    Its folder must exist. It must hold what was written to it: one that was removed or changed meanwhile is an error.
    """

    def __init__(self, path: Path):
        self.path = path
        lines = _whole_lines(path)
        self._count = len(lines)
        self._bytes: int | None = None
        with self._opened() as file:
            file.truncate(sum(len(line) + 1 for line in lines))
            self._bytes = file.seek(0, os.SEEK_END)

    @property
    def lines(self) -> int:
        """How many the file has."""
        return self._count

    @classmethod
    def rewound(
        cls, path: Path, step: int, least: int = 0, write: Callable[[Path, bytes], None] = write_whole
    ) -> LineFile:
        """The file without lines of later steps, which `write` puts in place: those steps will be taken again.

        Raises RunError, before anything is changed, if fewer than `least` lines are left.
        """
        lines = []
        for number, (line, values) in enumerate(_parsed_lines(path), start=1):
            if not isinstance(values.get("step"), int):
                raise RecordError(f"{path}, line {number}: no step: {line[:80]!r}")
            if values["step"] <= step:
                lines.append(line)
        if len(lines) < least:
            raise RunError(
                f"{path} has {counted(len(lines), 'line')} up to step {step:,}, and the run had written {least:,} when "
                "it saved that step; restore the file, or start again with --set run.name=…"
            )
        write(path, b"".join(line + b"\n" for line in lines))
        return cls(path)

    def add(self, **values: Any) -> None:
        """Append one line. It survives a crash of the process at once, and one of the machine after `sync`."""
        line = json.dumps(values, allow_nan=False).encode() + b"\n"
        with self._opened() as file:
            file.write(line)
            file.flush()
            self._count, self._bytes = self._count + 1, file.tell()

    def sync(self) -> None:
        with self._opened() as file:
            os.fsync(file.fileno())

    @contextlib.contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        try:
            with open(self.path, "ab" if self._bytes is None else "rb+", opener=open_itself) as file:
                if self._bytes is not None and file.seek(0, os.SEEK_END) != self._bytes:
                    raise StorageError(f"{self.path} was changed by another process while this one wrote it")
                yield file
        except OSError as cause:
            raise storage_error("write", self.path, cause) from cause


class NoLines(LineFile):
    """The lines of a process that does not write any."""

    def __init__(self) -> None:
        self.path, self._count = NOWHERE, 0

    def add(self, **values: Any) -> None: ...

    def sync(self) -> None: ...
