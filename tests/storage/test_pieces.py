"""Buffers in pieces: the CRC-32 of all is that of zlib, with any cuts and any number of threads."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoestring.storage import pieces, tensor_file


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE", 7)
    monkeypatch.setattr(pieces, "_THREADS", 3)


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_checks_are_joined(first: bytes, second: bytes) -> None:
    check = pieces.joined(zlib.crc32(first), zlib.crc32(second), len(second))
    assert check == zlib.crc32(first + second)


@pytest.mark.parametrize("length", [2**20, 2**31 + 1, 10**12])
def test_long_texts_are_joined(length: int) -> None:
    """A text of zeros is joined of two halves, however it is cut."""
    zeros = {0: 0, 1: zlib.crc32(b"\0")}

    def check(count: int) -> int:
        if count not in zeros:
            zeros[count] = pieces.joined(check(count // 2), check(count - count // 2), count - count // 2)
        return zeros[count]

    assert pieces.joined(check(length), check(3), 3) == check(length + 3)
    assert check(2**20) == zlib.crc32(bytes(2**20))


def test_the_check_is_that_of_the_whole() -> None:
    buffers = [b"", b"a", b"of seven", b"", bytes(range(256)), b"end"]
    assert pieces.check_of([memoryview(buffer) for buffer in buffers]) == zlib.crc32(b"".join(buffers))


def test_every_piece_is_taken_once_and_in_order() -> None:
    buffers = [memoryview(b"0123456789"), memoryview(b""), memoryview(b"abc")]
    told = pieces.each_piece(buffers, lambda piece, number, start: (bytes(piece), number, start))
    assert told == [(b"0123456", 0, 0), (b"789", 0, 7), (b"abc", 2, 0)]


def test_a_file_in_pieces_is_the_file(tmp_path) -> None:
    random = np.random.default_rng(0)
    arrays = {
        "b": random.normal(size=(5, 3)), "a": np.arange(9, dtype=np.int16), "none": np.empty((0, 4), np.float32),
        "one": np.float32(3).reshape(()), "yes": np.array([True, False]),
    }  # fmt: skip
    tensor_file.write_tensors(tmp_path / "file", arrays, "note")
    found, note = tensor_file.read_tensors(tmp_path / "file")
    assert note == "note"
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert (found[name] == array).all()


def test_an_error_of_a_thread_is_raised() -> None:
    def fail(piece: memoryview, number: int, start: int) -> None:
        raise OSError(f"{number} {start}")

    with pytest.raises(OSError, match="0 0"):
        pieces.each_piece([memoryview(bytes(20))], fail)
