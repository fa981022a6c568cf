"""One shard of a token store: a file that describes itself and detects any flipped bit.

    header    64 bytes: magic, version, bytes per token, tokens, documents, CRC-32 of these
    payload   tokens, padding to 8 bytes, then where each document ends (uint64, in tokens from the shard's start)
    trailer   CRC-32 of every 64 KiB of the payload, then CRC-32 of those

All numbers are little-endian.
"""

from __future__ import annotations

import os
import struct
import time
import zlib
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from shoestring.core.errors import DataError, storage_error
from shoestring.core.files import check_readable, whole_file
from shoestring.data.store import sizes
from shoestring.data.store.sizes import HEADER, payload_bytes, token_bytes
from shoestring.data.store.sizes import shard_bytes as shard_bytes

_MAGIC = b"SHOESTOK"
_VERSION = 2
_DTYPES: dict[int, np.dtype[np.unsignedinteger]] = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4")}


FileState = tuple[str, int, int, int]
"""Of a file: path, inode, size, and when it was changed, in nanoseconds."""
_SETTLED = 0.1
"""Seconds after which another change shows in a file's time."""

_whole: set[FileState] = set()
"""Shards that were checked as a whole, by this process or one that it trusts."""


def checked_shards() -> frozenset[FileState]:
    """The shards that need not be checked again, unless they change."""
    return frozenset(_whole)


def trust(checked: frozenset[FileState]) -> None:
    """Take these shards, which another process of this run has checked, for whole."""
    _whole.update(checked)


def dtype_for(vocab_size: int) -> np.dtype[np.unsignedinteger]:
    """The smallest unsigned type that holds every id."""
    return _DTYPES[token_bytes(vocab_size)]


def write_shard(path: Path, tokens: NDArray[np.unsignedinteger], ends: NDArray[np.uint64]) -> int:
    """Write a shard atomically; returns the CRC-32 of its trailer, which identifies the content."""
    itemsize = tokens.dtype.itemsize
    words = np.ascontiguousarray(tokens).data.cast("B")  # not copied: large shards are written by several threads
    whole = len(words) // sizes.BLOCK * sizes.BLOCK
    rest = memoryview(bytes(words[whole:]) + b"\0" * (-len(words) % 8) + ends.astype("<u8").tobytes())
    payload = (words[:whole], rest)
    checks = [zlib.crc32(part[at : at + sizes.BLOCK]) for part in payload for at in range(0, len(part), sizes.BLOCK)]
    table = np.array(checks, dtype="<u4").tobytes()
    seal = zlib.crc32(table)
    head = HEADER.pack(_MAGIC, _VERSION, itemsize, len(tokens), len(ends), 0)[:-4]
    with whole_file(path) as file:
        for part in (head, struct.pack("<I", zlib.crc32(head)), *payload, table, struct.pack("<I", seal)):
            file.write(part)
    return seal


class Shard:
    """A shard mapped into memory. Every block is checked against its CRC before its tokens are returned."""

    def __init__(self, path: Path):
        self.path = path
        check_readable(path)
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                # a plain array over the mapped file: slices of a memmap cost several times as much
                self._bytes = np.asarray(np.memmap(file, dtype=np.uint8, mode="r"))
        except OSError as cause:
            raise storage_error("read", path, cause) from cause
        except ValueError as cause:  # an empty file cannot be mapped
            raise DataError(f"{path}: not a token shard: it is empty") from cause
        if len(self._bytes) < HEADER.size:
            raise DataError(f"{path}: not a token shard: it is shorter than a header")
        head = self._bytes[: HEADER.size].tobytes()
        magic, version, itemsize, self.tokens, self.documents, check = HEADER.unpack(head)
        if magic != _MAGIC:
            raise DataError(f"{path}: not a token shard")
        if zlib.crc32(head[:-4]) != check or itemsize not in _DTYPES:
            raise self._damaged("its header")
        if version != _VERSION:
            raise DataError(f"{path}: a token shard of version {version}; this program reads version {_VERSION}")
        if len(self._bytes) != shard_bytes(self.tokens, self.documents, itemsize):
            raise self._damaged("its size")
        payload = payload_bytes(self.tokens, self.documents, itemsize)
        table = self._bytes[HEADER.size + payload : -4].tobytes()
        self.seal = int.from_bytes(self._bytes[-4:].tobytes(), "little")
        if zlib.crc32(table) != self.seal:
            raise self._damaged("its table of checksums")
        self._payload = self._bytes[HEADER.size : HEADER.size + payload]
        self._checks = np.frombuffer(table, dtype="<u4")
        self._trusted = np.zeros(len(self._checks), dtype=bool)
        self._file = str(path.absolute()), status.st_ino, status.st_size, status.st_mtime_ns
        self._all_trusted = self._file in _whole
        self._ids: NDArray[np.unsignedinteger] = self._payload[: self.tokens * itemsize].view(_DTYPES[itemsize])
        self._windows: NDArray[np.unsignedinteger] | None = None
        self.itemsize = itemsize

    def _damaged(self, what: str) -> DataError:
        return DataError(
            f"{self.path}: damaged, {what} does not match; remove the store's folder and make it again, "
            f"with `shoestring prepare` or the command that made it"
        )

    def verify(self, first: int = 0, last: int | None = None) -> None:
        """Check the blocks of the payload from byte `first` to byte `last`, except those checked before."""
        stop = len(self._checks) if last is None else min(len(self._checks), -(-last // sizes.BLOCK))
        for block in first // sizes.BLOCK + np.flatnonzero(~self._trusted[first // sizes.BLOCK : stop]):
            if zlib.crc32(self._payload[block * sizes.BLOCK : (block + 1) * sizes.BLOCK].data) != self._checks[block]:
                raise self._damaged(f"block {block} of its content")
            self._trusted[block] = True
        if first == 0 and last is None and time.time() - self._file[-1] / 1e9 > _SETTLED:
            _whole.add(self._file)

    @property
    def trusted(self) -> bool:
        """Whether every block has been checked."""
        self._all_trusted = self._all_trusted or bool(self._trusted.all())
        return self._all_trusted

    def gather(self, starts: NDArray[np.int64], width: int) -> NDArray[np.unsignedinteger]:
        """The `width` tokens from each of `starts`, checked; a copy."""
        if not self.trusted:
            first, last = starts * self.itemsize // sizes.BLOCK, ((starts + width) * self.itemsize - 1) // sizes.BLOCK
            for begin, end in zip(first.tolist(), last.tolist()):
                if not self._trusted[begin : end + 1].all():
                    self.verify(begin * sizes.BLOCK, (end + 1) * sizes.BLOCK)
        if self._windows is None or self._windows.shape[1] != width:
            self._windows = sliding_window_view(self._ids, width)
        tokens: NDArray[np.unsignedinteger] = self._windows[starts]
        return tokens

    def ids(self, start: int, stop: int) -> NDArray[np.unsignedinteger]:
        """Tokens start to stop, checked; a view, not a copy."""
        if not self.trusted:
            self.verify(start * self.itemsize, stop * self.itemsize)
        return self._ids[start:stop]

    def document_ends(self) -> NDArray[np.uint64]:
        """Where each document ends, in tokens from the shard's start."""
        at = len(self._payload) - 8 * self.documents
        self.verify(at)
        return self._payload[at:].view("<u8")
