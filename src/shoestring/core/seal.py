"""The seal of a run: the size and CRC-32 of each of its records, in one file.

A record has its own form, which shows most damage; the seal shows the rest, and edits. It is written before the record,
with the sums of the new content and of the one before, so that a run that is killed between the two is still whole.
Lines are appended to metrics, timings and samples: of these the seal knows a beginning, up to the last checkpoint or
the end. The metrics and samples of a finished run are sealed whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import tomllib
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from shoestring.core.errors import RecordError, RunError, StorageError, storage_error
from shoestring.core.files import write_whole
from shoestring.core.schema import Between, Record, encode

SEAL = "seal.json"
_LINES = ".jsonl"
_BLOCK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Sum:
    """The size of a content, and its CRC-32."""

    bytes: Annotated[int, Between(0, 1 << 62)]
    crc: Annotated[int, Between(0, (1 << 32) - 1)]


@dataclass(frozen=True, kw_only=True)
class Seal(Record):
    """What the records of a run hold."""

    SCHEMA: ClassVar[str] = "shoestring.seal/1"

    records: dict[str, tuple[Sum, ...]] = field(default_factory=dict)
    """By name: the content that was written last, and where that may not be on disk yet, the one before."""
    check: int = 0
    """CRC-32 of the other fields."""

    def expected_check(self) -> int:
        return zlib.crc32(json.dumps(encode(self.records), sort_keys=True).encode())


def seal_write(folder: Path, path: Path, content: bytes) -> None:
    """Write a record of the run in `folder` atomically, and its seal before it."""
    new = Sum(bytes=len(content), crc=zlib.crc32(content))
    _update(folder, {path.name: new}, [path])
    write_whole(path, content, parents=False)


def seal_lines(folder: Path, paths: Iterable[Path]) -> None:
    """Seal files of lines as they are; they must be on disk."""
    sums = {path.name: _sum_of(path, None) for path in paths if path.is_file()}
    _update(folder, sums, ())


def adopt(folder: Path, paths: Iterable[Path]) -> None:
    """Give a run without a seal one over the records that it has."""
    if not (folder / SEAL).is_file():
        _update(folder, {path.name: _sum_of(path, None) for path in paths if path.is_file()}, ())


def broken(folder: Path, names: Sequence[str] | None = None, ended: Collection[str] = ()) -> list[str]:
    """A line for each record, or each of `names`, that is not as it was written; a run without a seal has none.

    The files of lines `ended` must not have grown.
    """
    try:
        seal = _read(folder)
    except (RecordError, StorageError) as cause:
        return [str(cause).replace("\n", "; ")]
    found = []
    for name, sums in {} if seal is None else seal.records.items():
        path = folder / name
        if (names is None or name in names) and path.is_file() and not _matches(path, sums, name not in ended):
            what = "was changed after the run had written it" if _parses(path) else "is damaged"
            found.append(f"{path} {what}")
    return found


def unseal(folder: Path) -> None:
    """Remove the seal."""
    (folder / SEAL).unlink(missing_ok=True)


def check(folder: Path, names: Sequence[str] | None = None, ended: Collection[str] = ()) -> None:
    """Raise RunError where `broken` finds something."""
    if lines := broken(folder, names, ended):
        raise RunError(
            "\n  ".join([*lines, f"restore it from a copy; to use the run as it is, remove {folder / SEAL} first"])
        )


def _update(folder: Path, sums: dict[str, Sum], replaced: Sequence[Path]) -> None:
    """Put sums into the seal; of the records `replaced`, what is on disk stays valid too."""
    with _alone(folder):
        try:
            seal = _read(folder) or Seal()
        except RecordError:  # a damaged seal says nothing; what is there was used by the one who writes
            seal = Seal()
        records = {
            name: known[:1] if _matches(folder / name, known[:1]) else known for name, known in seal.records.items()
        }
        for name, new in sums.items():
            before = [known for known in records.get(name, ()) if known != new] if folder / name in replaced else []
            records[name] = (new, *before[:1])
        made = Seal(records=records)
        write_whole(folder / SEAL, dataclasses.replace(made, check=made.expected_check()).to_text(), parents=False)


def _read(folder: Path) -> Seal | None:
    if not (folder / SEAL).is_file():
        return None
    seal = Seal.read(folder / SEAL)
    if seal.check != seal.expected_check():
        raise RecordError(f"{folder / SEAL}: damaged (wrong checksum)")
    return seal


def _matches(path: Path, sums: Sequence[Sum], may_grow: bool = True) -> bool:
    if not path.is_file():
        return True
    size, grows = path.stat().st_size, may_grow and path.suffix == _LINES
    return any(
        (size == each.bytes or (grows and size > each.bytes)) and _sum_of(path, each.bytes) == each for each in sums
    )


def _sum_of(path: Path, most: int | None) -> Sum:
    """Of a file, or of its first `most` bytes; of a file of lines, its complete lines."""
    try:
        with open(path, "rb") as file:
            if path.suffix == _LINES and most is None:
                content = file.read()
                content = content[: content.rfind(b"\n") + 1]
                return Sum(bytes=len(content), crc=zlib.crc32(content))
            size = crc = 0
            while block := file.read(_BLOCK if most is None else min(_BLOCK, most - size)):
                size, crc = size + len(block), zlib.crc32(block, crc)
            return Sum(bytes=size, crc=crc)
    except OSError as cause:
        raise storage_error("read", path, cause) from cause


def _parses(path: Path) -> bool:
    """Whether a file has the form of a record."""
    try:
        text = path.read_bytes().decode()
        if path.suffix == ".toml":
            tomllib.loads(text)
        else:
            for line in text.splitlines() if path.suffix == _LINES else [text]:
                json.loads(line)
    except (OSError, ValueError, RecursionError):
        return False
    return True


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Be the only process that changes the seal; it takes an instant. A disk without locks does without."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)  # a lock on the folder leaves no file
    except OSError as cause:
        raise storage_error("lock", folder, cause) from cause
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
