"""The header of a parquet page, which says how large the page will be; pyarrow only says so of all pages together.

A header is a struct in Thrift's compact protocol:
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

import io
from typing import NamedTuple

_FIRST, _MOST = 1 << 9, 1 << 20
"""Bytes that are read for a header at first, and at most."""
_DICTIONARY = 2
_TYPE, _PLAIN, _PACKED = 1, 2, 3
"""Fields of a header."""
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12
_NUMBERS = (4, 5, 6)
"""Types of fields."""
_DEEPEST = 16


class Page(NamedTuple):
    """What a header says."""

    is_dictionary: bool
    plain_bytes: int
    packed_bytes: int
    header_bytes: int


def read_page(file: io.BufferedIOBase, at: int) -> Page:
    """The header at this byte of a file. If there is none, raises OSError without an errno, as for any broken file."""
    size = _FIRST
    while True:
        file.seek(at)
        raw = file.read(size)
        try:
            return _page(raw)
        except IndexError:
            if size >= _MOST or len(raw) < size:
                raise OSError(f"no header of a page at byte {at:,}") from None
            size *= 8


def _page(raw: bytes) -> Page:
    header = _Header(raw)
    numbers: dict[int, int] = {}
    field = 0
    while (kind := header.byte()) != 0:
        field = field + (kind >> 4) if kind >> 4 else header.number()
        if kind & 15 in _NUMBERS:
            numbers[field] = header.number()
        else:
            header.skip(kind & 15)
    sizes = numbers.get(_PLAIN, -1), numbers.get(_PACKED, -1)
    if min(sizes) < 0:
        raise OSError("a page of no size")
    return Page(numbers.get(_TYPE) == _DICTIONARY, *sizes, header.at)


class _Header:
    """Bytes that are read from the front; raises IndexError after the last one."""

    def __init__(self, raw: bytes):
        self._raw, self.at = raw, 0

    def byte(self) -> int:
        self.at += 1
        return self._raw[self.at - 1]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise OSError("a number of more than 64 bits in the header of a page")

    def number(self) -> int:
        """A signed number: 0, -1, 1, -2 are written as 0, 1, 2, 3."""
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def skip(self, kind: int, depth: int = 0) -> None:
        """Go to the end of a value."""
        if depth > _DEEPEST:
            raise OSError("structs in structs in the header of a page")
        if kind in _NUMBERS:
            self._varint()
        elif kind == _BYTE:
            self.at += 1
        elif kind == _DOUBLE:
            self.at += 8
        elif kind == _BINARY:
            size = self._varint()
            self.at += size
        elif kind in (_LIST, _SET):
            head = self.byte()
            for _ in range(self._count(head >> 4 if head >> 4 < 15 else self._varint())):
                self._item(head & 15, depth)
        elif kind == _MAP:
            if count := self._count(self._varint()):
                kinds = self.byte()
                for _ in range(count):
                    self._item(kinds >> 4, depth)
                    self._item(kinds & 15, depth)
        elif kind == _STRUCT:
            while (head := self.byte()) != 0:
                if not head >> 4:
                    self._varint()
                self.skip(head & 15, depth + 1)
        elif kind not in (_TRUE, _FALSE):
            raise OSError(f"a field of the unknown type {kind} in the header of a page")

    def _count(self, count: int) -> int:
        """A number of items; every item takes a byte or more."""
        if count > len(self._raw) - self.at:
            raise IndexError
        return count

    def _item(self, kind: int, depth: int) -> None:
        if kind in (_TRUE, _FALSE):
            self.at += 1  # in a list, a truth value has a byte of its own
        else:
            self.skip(kind, depth + 1)
