"""Large buffers in pieces, by several threads: reading them, and the CRC-32 of all."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from typing import TypeVar

_Result = TypeVar("_Result")

PIECE = 1 << 24
_THREADS = max(1, min(8, (os.cpu_count() or 1) // 2))
"""Half of the cores at most: a run goes on meanwhile."""
_POLYNOMIAL = 0xEDB88320
"""Of CRC-32, with the highest power first."""
_ONE, _BYTE = 1 << 31, 1 << 23
"""The polynomials 1 and x^8."""


def each_piece(buffers: Sequence[memoryview], do: Callable[[memoryview, int, int], _Result]) -> list[_Result]:
    """`do` with every piece of the buffers, the number of its buffer, and where in it the piece begins; in order."""
    pieces = [
        (buffer[start : start + PIECE], number, start)
        for number, buffer in enumerate(buffers)
        for start in range(0, len(buffer), PIECE)
    ]
    if _is_alone(buffers):
        return [do(*piece) for piece in pieces]
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(lambda piece: do(*piece), pieces))


def check_of(buffers: Sequence[memoryview]) -> int:
    """CRC-32 of the buffers, one after the other."""
    if _is_alone(buffers):
        return reduce(lambda check, buffer: zlib.crc32(buffer, check), buffers, 0)
    checks = each_piece(buffers, lambda piece, *_: (zlib.crc32(piece), len(piece)))
    return reduce(lambda first, then: joined(first, *then), checks, 0)


def _is_alone(buffers: Sequence[memoryview]) -> bool:
    """Whether threads would be of no use."""
    return _THREADS == 1 or sum(map(len, buffers)) <= PIECE


def joined(first: int, second: int, length: int) -> int:
    """CRC-32 of two texts from that of each and the bytes of the second: `first` times x^(8 length), plus `second`."""
    power, square = _ONE, _BYTE
    while length:
        if length & 1:
            power = _product(power, square)
        square = _product(square, square)
        length >>= 1
    return _product(power, first) ^ second


def _product(a: int, b: int) -> int:
    """Of two polynomials with bits as coefficients, modulo that of CRC-32."""
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = a << 1 & 0xFFFFFFFF
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product
