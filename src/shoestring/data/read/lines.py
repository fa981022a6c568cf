"""Lines of files: decompressed, decoded and split block by block, in constant memory for files of any size."""

from __future__ import annotations

import bz2
import codecs
import contextlib
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from shoestring.core.errors import DataError, MissingExtra

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".xz": "xz", ".bz2": "bzip2"}
LONGEST = 1 << 26
"""Bytes of the longest record: a file in another format must not be read into memory as one record."""

BLOCK = 1 << 17
"""Bytes per read; a larger block and its lines would not stay in the cache."""
_ZSTD_BLOCK = 1 << 12  # decompressed at once, to 128 MiB at most
_ZSTD_WINDOW = 1 << 31  # files made with --long need more than the default


class Broken(Exception):
    """Why a record cannot be used."""


def open_file(path: Path) -> io.BufferedIOBase:
    """The bytes of a file, decompressed according to its suffix."""
    if path.suffix.lower() == ".zst":
        return io.BufferedReader(_ZstdFile(path), BLOCK)
    module: Any = {".gz": gzip, ".bz2": bz2, ".xz": lzma}.get(path.suffix.lower(), io)
    file: io.BufferedIOBase = module.open(path, "rb")
    return file


class _ZstdFile(io.RawIOBase):
    """A zstd file of any number of frames. A truncated one raises EOFError, as other compressed files do."""

    def __init__(self, path: Path):
        try:
            import zstandard
        except ImportError as cause:
            raise MissingExtra(f"reading {path}", "zstandard", "data") from cause
        self._error = zstandard.ZstdError
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._packed = b""
        self._plain = memoryview(b"")
        self._file = open(path, "rb")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._plain:
            if not (packed := self._packed or self._file.read(_ZSTD_BLOCK)):
                if self._frame is not None:
                    raise EOFError("it ends in the middle of a frame")
                return 0
            self._decompress(packed)
        count = min(len(buffer), len(self._plain))
        buffer[:count] = self._plain[:count]
        self._plain = self._plain[count:]
        return count

    def _decompress(self, packed: bytes) -> None:
        frame = self._frame or self._decompressor.decompressobj()
        try:
            self._plain = memoryview(frame.decompress(packed))
        except self._error as cause:
            raise OSError(str(cause)) from cause
        self._frame = None if frame.eof else frame
        self._packed = frame.unused_data if frame.eof else b""

    def close(self) -> None:
        if not self.closed and hasattr(self, "_file"):
            self._file.close()
        super().close()


def of_content(error: Exception) -> bool:
    """Whether an error is about the content of a file, and not about the disk, whose errors have a number."""
    return not isinstance(error, OSError) or error.errno is None


class Lines(NamedTuple):
    """Consecutive lines of a file, without their newlines."""

    first: int
    """Number of the first line, from 1."""
    texts: list[str]
    broken: dict[int, Broken]
    """The lines that cannot be used, by number."""


def read_lines(file: io.BufferedIOBase, name: str) -> Iterator[Lines]:
    """All lines, block by block: only a newline ends a line. A byte order mark at the start is dropped."""
    number, pieces, size = 1, [b""], 0
    while block := _read(file, name, number - 1):
        cut = block.rfind(b"\n")
        if cut >= 0:
            lines = _decode(b"".join([*pieces, block[:cut]]), number)
            yield lines
            number += len(lines.texts)
            pieces, size = [], 0
        pieces.append(block[cut + 1 :])
        size += len(pieces[-1])
        if size > LONGEST:
            raise DataError(f"{name}, line {number}: no end of line within {LONGEST:,} bytes; is it another format?")
    if rest := b"".join(pieces):
        yield _decode(rest, number)


def _read(file: io.BufferedIOBase, name: str, lines: int) -> bytes:
    try:
        return file.read(BLOCK)
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as cause:
        if not of_content(cause):
            raise
        kind = COMPRESSIONS.get(Path(name).suffix.lower(), "compressed")
        raise DataError(f"{name}, after line {lines}: broken {kind} file ({cause})") from cause


def _decode(block: bytes, first: int) -> Lines:
    """The lines of a block: decoded together, or one by one if one of them is broken."""
    if first == 1:
        block = block.removeprefix(codecs.BOM_UTF8)
    if b"\0" not in block:
        with contextlib.suppress(UnicodeDecodeError):
            return Lines(first, block.decode().split("\n"), {})
    lines = Lines(first, [], {})
    for number, raw in enumerate(block.split(b"\n"), first):
        lines.texts.append(raw.decode(errors="replace"))
        try:
            usable(raw.decode())
        except UnicodeDecodeError as cause:
            lines.broken[number] = Broken(f"not UTF-8 text ({cause.reason})")
        except Broken as cause:
            lines.broken[number] = cause
    return lines


def usable(text: str) -> str:
    """The text; raises Broken if it holds a NUL character."""
    if "\0" in text:
        raise Broken("holds a NUL character")
    return text
