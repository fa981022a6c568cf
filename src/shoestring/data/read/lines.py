"""Lines of files: decompressed, decoded and split block by block, in constant memory for files of any size."""

from __future__ import annotations

import bz2
import codecs
import contextlib
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from shoestring.core.environment import RECORD_BYTES, record_bytes
from shoestring.core.errors import DataError, MissingExtra

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".xz": "xz", ".bz2": "bzip2"}

BLOCK = 1 << 17
"""Bytes per read; a larger block and its lines would not stay in the cache."""
_PACKED_BLOCK = 1 << 12
"""Bytes that are decompressed at once; zstd makes 128 MiB of them at most."""
_WINDOWS = 8
"""Longest records that the window of a compressed file may hold: 512 MiB by default."""
_XZ_BYTES = 1 << 20
"""What xz takes besides its window."""


class Broken(Exception):
    """Why a record cannot be used."""


def open_file(path: Path) -> io.BufferedIOBase:
    """The bytes of a file, decompressed according to its suffix."""
    suffix = path.suffix.lower()
    if suffix in (".zst", ".xz"):
        return io.BufferedReader(_PackedFile(path, _zstd if suffix == ".zst" else _xz), BLOCK)
    module: Any = {".gz": gzip, ".bz2": bz2}.get(suffix, io)
    file: io.BufferedIOBase = module.open(path, "rb")
    return file


def without_end(of: str, longest: int) -> str:
    """Why a record is too long, for a message."""
    return f"no end of the {of} within {longest:,} bytes; {RECORD_BYTES} sets another limit"


class _Frame(Protocol):
    """A decompressor of one frame."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


def _zstd(path: Path) -> tuple[Callable[[], _Frame], type[Exception]]:
    """The decompressor of a frame, and its error. A frame says how large a window it needs, so that is limited."""
    try:
        import zstandard
    except ImportError as cause:
        raise MissingExtra(f"reading {path}", "zstandard", "data") from cause
    window = 1 << min(31, max(10, (_WINDOWS * record_bytes()).bit_length() - 1))
    return zstandard.ZstdDecompressor(max_window_size=window).decompressobj, zstandard.ZstdError


def _xz(_: Path) -> tuple[Callable[[], _Frame], type[Exception]]:
    """As `_zstd`; the memory limit holds the dictionary that the file asks for."""
    limit = _WINDOWS * record_bytes() + _XZ_BYTES
    return lambda: _XzFrame(limit), lzma.LZMAError


class _XzFrame:
    """A frame of xz, decompressed a block at a time: a few of its bytes can become thousands of times as many."""

    def __init__(self, limit: int):
        self._frame = lzma.LZMADecompressor(memlimit=limit)

    @property
    def eof(self) -> bool:
        return self._frame.eof

    @property
    def unused_data(self) -> bytes:
        return self._frame.unused_data

    @property
    def has_more(self) -> bool:
        return not self._frame.needs_input

    def decompress(self, data: bytes, /) -> bytes:
        return self._frame.decompress(data, BLOCK)


class _PackedFile(io.RawIOBase):
    """A compressed file of any number of frames. A truncated one raises EOFError, as other compressed files do."""

    def __init__(self, path: Path, how: Callable[[Path], tuple[Callable[[], _Frame], type[Exception]]]):
        self._new_frame, self._error = how(path)
        self._frame: _Frame | None = None
        self._packed = b""
        self._plain = memoryview(b"")
        self._file = open(path, "rb")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._plain:
            more = getattr(self._frame, "has_more", False)
            packed = b"" if more else self._packed or self._file.read(_PACKED_BLOCK)
            if not packed and not more:
                if self._frame is not None:
                    raise EOFError("it ends in the middle of a frame")
                return 0
            self._decompress(packed)
        count = min(len(buffer), len(self._plain))
        buffer[:count] = self._plain[:count]
        self._plain = self._plain[count:]
        return count

    def _decompress(self, packed: bytes) -> None:
        if self._frame is None and not (packed := packed.lstrip(b"\0")):  # padding between frames of xz
            self._packed = b""
            return
        frame = self._frame or self._new_frame()
        try:
            self._plain = memoryview(frame.decompress(packed))
        except self._error as cause:
            raise OSError(f"{cause}{_hint(cause)}") from cause
        self._frame = None if frame.eof else frame
        self._packed = frame.unused_data if frame.eof else b""

    def close(self) -> None:
        if not self.closed and hasattr(self, "_file"):
            self._file.close()
        super().close()


def _hint(error: Exception) -> str:
    """What to do where a frame asks for more memory than it may have."""
    asks = any(words in str(error).lower() for words in ("window", "memory", "memlimit"))
    return f"; it was packed with a large window: set {RECORD_BYTES}" if asks else ""


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
    number, pieces, size, longest = 1, [b""], 0, record_bytes()
    while block := _read(file, name, number - 1):
        cut = block.rfind(b"\n")
        if cut >= 0:
            lines = _decode(b"".join([*pieces, block[:cut]]), number)
            yield lines
            number += len(lines.texts)
            pieces, size = [], 0
        pieces.append(block[cut + 1 :])
        size += len(pieces[-1])
        if size > longest:
            raise DataError(f"{name}, line {number}: {without_end('line', longest)}; is it another format?")
    if rest := b"".join(pieces):
        yield _decode(rest, number)


def read_start(path: Path, size: int) -> bytes:
    """The first bytes of a file, decompressed."""
    with open_file(path) as file:
        return _read(file, str(path), 0, size)


def _read(file: io.BufferedIOBase, name: str, lines: int, size: int = BLOCK) -> bytes:
    try:
        return file.read(size)
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
