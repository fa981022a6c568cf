"""A shard gives back what was written, or says that it cannot."""

import os
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoestring.core.errors import DataError, StorageError
from shoestring.data.store import shards, sizes
from shoestring.data.store.shards import Shard, checked_shards, dtype_for, shard_bytes, trust, write_shard

MASKS = (0x01, 0x80, 0xFF)
DTYPES = ("<u1", "<u2", "<u4")


def some_tokens(count: int, dtype: str) -> np.ndarray:
    return np.random.default_rng(count).integers(0, np.iinfo(dtype).max, count, dtype, endpoint=True)


def write(path: Path, tokens: np.ndarray, ends: list[int]) -> int:
    return write_shard(path, tokens, np.array(ends, dtype=np.uint64))


def flipped(content: bytes, at: int, mask: int) -> bytes:
    return content[:at] + bytes([content[at] ^ mask]) + content[at + 1 :]


@pytest.mark.parametrize(
    ("vocab_size", "itemsize"), [(1, 1), (255, 1), (256, 1), (257, 2), (65_536, 2), (65_537, 4), (2**32, 4)]
)
def test_ids_are_stored_in_the_smallest_type_that_holds_the_last_one(
    tmp_path: Path, vocab_size: int, itemsize: int
) -> None:
    dtype = dtype_for(vocab_size)
    assert dtype.itemsize == itemsize
    ids = [0, vocab_size - 1, vocab_size // 2]
    write(tmp_path / "a.tok", np.array(ids, dtype=dtype), [3])
    assert Shard(tmp_path / "a.tok").ids(0, 3).tolist() == ids


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(DTYPES), st.data())
def test_a_shard_reads_back_as_written(
    tmp_path_factory: pytest.TempPathFactory, dtype: str, data: st.DataObject
) -> None:
    values = data.draw(st.lists(st.integers(0, int(np.iinfo(dtype).max)), min_size=1, max_size=40))
    ends = sorted(data.draw(st.sets(st.integers(1, len(values)), max_size=5)) | {len(values)})
    path = tmp_path_factory.mktemp("shard") / "a.tok"
    seal = write(path, np.array(values, dtype=dtype), ends)
    shard = Shard(path)
    assert (shard.tokens, shard.documents, shard.itemsize, shard.seal) == (
        len(values),
        len(ends),
        np.dtype(dtype).itemsize,
        seal,
    )
    start = data.draw(st.integers(0, len(values)))
    stop = data.draw(st.integers(start, len(values)))
    assert shard.ids(start, stop).tolist() == values[start:stop]
    assert shard.ids(0, len(values)).tolist() == values
    assert shard.document_ends().tolist() == ends
    assert path.stat().st_size == shard_bytes(len(values), len(ends), np.dtype(dtype).itemsize)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [1, (1 << 14) - 4, (1 << 16) - 2, (1 << 16) + 3, (1 << 18) + 1])
def test_content_longer_than_a_block_reads_back(tmp_path: Path, dtype: str, tokens: int) -> None:
    values = some_tokens(tokens, dtype)
    write(tmp_path / "a.tok", values, [tokens])
    shard = Shard(tmp_path / "a.tok")
    assert (shard.ids(0, tokens) == values).all()
    assert shard.ids(tokens - 1, tokens).tolist() == values[-1:].tolist()
    assert (tmp_path / "a.tok").stat().st_size == shard_bytes(tokens, 1, np.dtype(dtype).itemsize)


def test_the_format_is_the_documented_one(tmp_path: Path) -> None:
    write(tmp_path / "a.tok", np.array([1, 513, 2], dtype="<u2"), [1, 3])
    content = (tmp_path / "a.tok").read_bytes()
    assert content[:8] == b"SHOESTOK"
    assert struct.unpack("<IIQQ", content[8:32]) == (2, 2, 3, 2)
    assert content[64:72] == bytes([1, 0, 1, 2, 2, 0, 0, 0])
    assert struct.unpack("<QQ", content[72:88]) == (1, 3)
    assert len(content) == 88 + 4 + 4


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_flipped_byte_is_noticed(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "a.tok"
    write(path, some_tokens(21, dtype), [4, 9, 21])
    content = path.read_bytes()
    for at in range(len(content)):
        for mask in MASKS:
            path.write_bytes(flipped(content, at, mask))
            with pytest.raises(DataError, match=r"a\.tok: (damaged|not a token shard)"):
                Shard(path).ids(0, 21)


def test_any_other_length_of_the_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.tok"
    write(path, some_tokens(21, "<u2"), [4, 9, 21])
    content = path.read_bytes()
    for other in [*(content[:length] for length in range(len(content))), content + b"\0", content + content]:
        path.write_bytes(other)
        with pytest.raises(DataError, match=r"a\.tok: (damaged|not a token shard)"):
            Shard(path).ids(0, 21)


def test_another_version_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(shards, "_VERSION", 1)
        write(tmp_path / "a.tok", some_tokens(3, "<u1"), [3])
    with pytest.raises(DataError, match="version 1; this program reads version 2"):
        Shard(tmp_path / "a.tok")


def test_a_missing_file_and_a_folder_are_storage_errors(tmp_path: Path) -> None:
    for path in (tmp_path / "none.tok", tmp_path):
        with pytest.raises(StorageError, match="cannot read"):
            Shard(path)


def test_the_seal_stands_for_the_content(tmp_path: Path) -> None:
    tokens = some_tokens(50, "<u1")
    seals = {write(tmp_path / "a.tok", tokens, [50])}
    assert write(tmp_path / "b.tok", tokens, [50]) in seals
    for at in range(50):
        other = tokens.copy()
        other[at] ^= 1
        seals.add(write(tmp_path / "a.tok", other, [50]))
    seals.add(write(tmp_path / "a.tok", tokens, [7, 50]))
    assert len(seals) == 52


def test_damage_is_reported_exactly_where_its_block_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block = 16
    monkeypatch.setattr(sizes, "BLOCK", block)
    path, tokens = tmp_path / "a.tok", some_tokens(40, "<u2")
    write(path, tokens, [8, 40])
    content = path.read_bytes()
    assert Shard(path).ids(0, 40).tolist() == tokens.tolist()
    for at in range(80):
        path.write_bytes(flipped(content, 64 + at, 0x10))
        shard = Shard(path)
        first, last = at // block * block // 2, (at // block + 1) * block // 2  # the tokens of the damaged block
        assert shard.ids(0, first).tolist() == tokens[:first].tolist()
        assert shard.ids(last, 40).tolist() == tokens[last:].tolist()
        assert shard.document_ends().tolist() == [8, 40]
        for start, stop in ((at // 2, at // 2 + 1), (first, first + 1), (last - 1, last), (0, 40), (first, 40)):
            with pytest.raises(DataError, match=f"block {at // block} of its content"):
                shard.ids(start, stop)
        assert not shard.trusted


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(DTYPES), st.sampled_from([16, 40, 1 << 16]), st.booleans(), st.data())
def test_gathered_windows_are_those_of_slicing(
    tmp_path_factory: pytest.TempPathFactory, dtype: str, block: int, checked_before: bool, data: st.DataObject
) -> None:
    values = some_tokens(data.draw(st.integers(1, 90)), dtype)
    width = data.draw(st.integers(1, len(values)))
    starts = data.draw(st.lists(st.integers(0, len(values) - width), max_size=12))
    path = tmp_path_factory.mktemp("shard") / "a.tok"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sizes, "BLOCK", block)
        write(path, values, [len(values)])
        shard = Shard(path)
        if checked_before:
            shard.verify()
        found = shard.gather(np.array(starts, dtype=np.int64), width)
    assert found.shape == (len(starts), width)
    assert found.tolist() == [values[start : start + width].tolist() for start in starts]
    found[:] = 0  # a copy, so this reaches no other reader


def test_damage_is_reported_exactly_where_a_window_holds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block, width = 16, 5
    monkeypatch.setattr(sizes, "BLOCK", block)
    path, tokens = tmp_path / "a.tok", some_tokens(40, "<u2")
    write(path, tokens, [8, 40])
    content = path.read_bytes()
    for at in range(0, 80, 3):
        path.write_bytes(flipped(content, 64 + at, 0x10))
        good = [s for s in range(36) if not s * 2 // block <= at // block <= ((s + width) * 2 - 1) // block]
        shard = Shard(path)
        assert shard.gather(np.array(good), width).tolist() == [tokens[s : s + width].tolist() for s in good]
        for start in {*range(36)} - {*good}:
            with pytest.raises(DataError, match=f"block {at // block} of its content"):
                shard.gather(np.array([good[0], start]), width)


def test_a_block_is_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen = tmp_path / "a.tok", []
    write(path, some_tokens(3 << 16, "<u1"), [3 << 16])
    shard = Shard(path)
    crc32 = shards.zlib.crc32
    monkeypatch.setattr(shards.zlib, "crc32", lambda part, *rest: seen.append(len(part)) or crc32(part, *rest))
    for _ in range(3):
        shard.gather(np.arange(0, 2 << 16, 5_000), 100)
    assert seen == [1 << 16] * 2, "64 KiB each"
    assert not shard.trusted
    shard.verify()
    assert shard.trusted
    shard.ids(0, 3 << 16)
    shard.document_ends()
    assert seen == [1 << 16] * 3 + [8]


def test_damaged_document_ends_do_not_stop_tokens_of_other_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, "BLOCK", 16)
    path, tokens = tmp_path / "a.tok", some_tokens(40, "<u2")
    write(path, tokens, [8, 40])
    path.write_bytes(flipped(path.read_bytes(), 64 + 80, 1))
    shard = Shard(path)
    assert shard.ids(0, 40).tolist() == tokens.tolist()
    with pytest.raises(DataError, match="damaged"):
        shard.document_ends()


def test_a_shard_is_checked_once_until_its_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.tok"
    write(path, some_tokens(100, "<u2"), [100])
    Shard(path).verify()
    assert not Shard(path).trusted, "another change may have the same time"
    os.utime(path, (1e9, 1e9))
    Shard(path).verify()
    assert Shard(path).trusted
    known = checked_shards()
    monkeypatch.setattr(shards, "_whole", set())
    assert not Shard(path).trusted
    trust(known)
    assert Shard(path).trusted, "as another process said"
    path.write_bytes(flipped(path.read_bytes(), sizes.HEADER.size, 0x01))
    with pytest.raises(DataError, match="damaged"):
        Shard(path).ids(0, 100)


def test_a_shard_is_checked_again_where_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.tok"
    write(path, some_tokens(100, "<u2"), [100])
    os.utime(path, (1e9, 1e9))
    Shard(path).verify()
    path.write_bytes(flipped(path.read_bytes(), sizes.HEADER.size, 0x01))
    os.utime(path, (1e9, 1e9))  # a bit that the disk has flipped changes no time
    assert Shard(path).trusted
    with pytest.raises(DataError, match="damaged"):
        Shard(path).verify()
