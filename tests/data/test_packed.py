"""Rows of whole documents: those of the packing's definition, in all shards, computed once and for the right shard."""

import itertools
import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shoestring.core.errors import DataError
from shoestring.core.sections import Data
from shoestring.data import pack as pack_package
from shoestring.data.pack import packing as packings
from shoestring.data.pack.order import RowIndex
from shoestring.data.pack.packed import PAD, PackedSource
from shoestring.data.store import map_stage as passes
from shoestring.data.store import work_units as units
from shoestring.data.store.fixed_rows import Job, write_rows
from shoestring.data.store.prepare import prepare
from shoestring.data.store.shards import Shard, write_shard
from shoestring.data.store.store import SplitEntry, Store, StoreRows

PACKINGS = ("best_fit", "pad")


def make(folder: Path, documents: list[str], unit_bytes: int = 300, shard_tokens: int = 120) -> Store:
    folder.mkdir(parents=True, exist_ok=True)
    corpus = folder / "corpus.txt"
    corpus.write_bytes("\n".join(documents).encode())
    data = Data(source=f"text:{corpus}", heldout=0.2, folder=str(folder / "stores"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(units, "UNIT_BYTES", unit_bytes)
        patch.setattr(passes, "SHARD_TOKENS", shard_tokens)
        patch.setattr(passes, "BATCH_CHARACTERS", 1)
        opened = prepare(data, 0, None, processes=1)
    assert opened is not None
    return opened


def some_documents(count: int, seed: int = 0) -> list[str]:
    chance = random.Random(seed)
    return ["".join(chance.choices("abcde", k=int(chance.paretovariate(0.8) * 2) % 60 + 1)) for _ in range(count)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    opened = make(tmp_path_factory.mktemp("packed"), some_documents(150))
    assert len(opened.manifest.splits["train"].shards) > 4
    return opened


def shards_of(opened: Store, split: str) -> list[list[list[int]]]:
    """The documents of each shard of bytes, cut by hand at their end tokens."""
    found = []
    for entry in opened.manifest.splits[split].shards:
        shard = Shard(opened.paths.folder / entry.name)
        documents: list[list[int]] = [[]]
        for token in shard.ids(0, shard.tokens).tolist():
            documents[-1].append(token)
            if token == opened.manifest.end:
                documents.append([])
        assert documents.pop() == []
        found.append(documents)
    return found


def pieces_of(document: list[int], capacity: int) -> list[list[int]]:
    """A document cut into pieces that each begin with the last token of the one before."""
    found = []
    while len(document) > 1:
        found.append(document[:capacity])
        document = document[capacity - 1 :]
    return found


def unpacked(ids: list[int], segments: list[int]) -> list[list[int]]:
    """The pieces of a row, by its segments."""
    pieces = {segment: [i for i, s in zip(ids, segments) if s == segment] for segment in sorted({*segments} - {0})}
    assert [*pieces] == list(range(1, len(pieces) + 1)), "numbered from 1 on"
    assert segments == [*itertools.chain(*([s] * len(piece) for s, piece in pieces.items()))] + [0] * segments.count(0)
    assert all(i == PAD for i, s in zip(ids, segments) if s == 0)
    return [*pieces.values()]


def read(source: PackedSource) -> list[list[list[int]]]:
    """All rows as their pieces."""
    rows = source.rows(np.arange(len(source)))
    assert rows.ids.shape == rows.segments.shape == (len(source), source.length + 1)
    assert rows.ids.dtype == rows.segments.dtype == np.int64
    return [unpacked(ids, segments) for ids, segments in zip(rows.ids.tolist(), rows.segments.tolist())]


@pytest.mark.parametrize("split", ["train", "heldout"])
@pytest.mark.parametrize("length", [1, 5, 17, 40, 100])
def test_padded_rows_are_the_pieces_of_the_documents(store: Store, split: str, length: int) -> None:
    expected = [[p] for shard in shards_of(store, split) for d in shard for p in pieces_of(d, length + 1)]
    assert read(PackedSource(store, split, length, "pad")) == expected


@pytest.mark.parametrize("split", ["train", "heldout"])
@pytest.mark.parametrize("length", [1, 5, 17, 40, 100])
def test_best_fit_rows_are_those_of_the_packing_of_each_shard(store: Store, split: str, length: int) -> None:
    source = PackedSource(store, split, length, "best_fit")
    expected, pieces = [], []
    for documents in shards_of(store, split):
        stream = [token for document in documents for token in document]
        packing = packings.best_fit(np.array([len(document) for document in documents]), length + 1)
        for first, last in itertools.pairwise(packing.row_starts.tolist()):
            places = zip(packing.piece_at[first:last].tolist(), packing.piece_size[first:last].tolist())
            expected.append([stream[at : at + size] for at, size in places])
        pieces += [piece for document in documents for piece in pieces_of(document, length + 1)]
    rows = read(source)
    assert rows == expected
    assert sorted(piece for row in rows for piece in row) == sorted(pieces), "nothing is lost and nothing repeated"


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("length", [1, 5, 40])
def test_the_ledger_is_that_of_all_shards(store: Store, packing: str, length: int) -> None:
    source = PackedSource(store, "train", length, packing)
    ledger = source.ledger
    filled = [len(piece) for row in read(source) for piece in row]
    documents = [document for shard in shards_of(store, "train") for document in shard]
    assert ledger["tokens"] == store.manifest.splits["train"].tokens == ledger["used"] + ledger["cropped"]
    assert ledger["cropped"] == sum(len(document) == 1 for document in documents)
    assert len(source) * (length + 1) == ledger["used"] + ledger["repeated"] + ledger["padded"]
    assert ledger["used"] + ledger["repeated"] == sum(filled)
    assert set(ledger) == {"tokens", "used", "cropped", "padded", "repeated"}


@pytest.mark.parametrize("packing", PACKINGS)
def test_rows_come_in_any_order_and_not_from_outside(store: Store, packing: str) -> None:
    source = PackedSource(store, "train", 12, packing)
    numbers = np.array([len(source) - 1, 0, 3, 3, len(source) // 2])
    found = source.rows(numbers)
    whole = source.rows(np.arange(len(source)))
    assert np.array_equal(found.ids, whole.ids[numbers]) and np.array_equal(found.segments, whole.segments[numbers])
    for index in (-1, len(source)):
        with pytest.raises(IndexError, match=f"0 to {len(source) - 1}"):
            source.rows(np.array([0, index]))
    assert source.rows(np.zeros(0, dtype=np.int64)).ids.shape == (0, 13)


def test_every_epoch_is_a_permutation(store: Store) -> None:
    source = PackedSource(store, "train", 12, "best_fit")
    n = len(source)
    order = np.concatenate([source.order(4, step, 10).rows for step in range(-(-3 * n // 10))])
    epochs = [order[epoch * n : (epoch + 1) * n].tolist() for epoch in range(3)]
    assert all(sorted(rows) == list(range(n)) for rows in epochs)
    assert len({tuple(rows) for rows in epochs}) == 3


# What lies on disk


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of documents of each packing that is computed."""
    seen: list[int] = []

    def watched(pack: Any) -> Any:
        return lambda lengths, capacity: seen.append(len(lengths)) or pack(lengths, capacity)

    for name in PACKINGS:
        monkeypatch.setattr(packings, name, watched(getattr(packings, name)))
    return seen


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_packing_is_computed_once(tmp_path: Path, packing: str, counted: list[int]) -> None:
    store = make(tmp_path, some_documents(80))
    expected = read(PackedSource(store, "train", 9, packing))
    shards = store.manifest.splits["train"].shards
    assert counted == [shard.documents for shard in shards]
    folder = store.paths.folder / f"{packing}-10"
    before = contents(folder)
    assert len(before) == 4 * len(shards)
    assert not list(folder.glob(".*")), "nothing half written is left"
    again = PackedSource(Store(store.paths.folder), "train", 9, packing)
    assert read(again) == expected
    assert again.ledger == PackedSource(store, "train", 9, packing).ledger
    assert len(counted) == len(shards) and contents(folder) == before
    PackedSource(store, "train", 10, packing)
    PackedSource(store, "heldout", 9, packing)
    assert len(counted) == 2 * len(shards) + len(store.manifest.splits["heldout"].shards), "another length or split"
    assert {name: found for name, found in contents(folder).items() if name in before} == before


def test_a_packing_that_was_cut_short_is_made_again(tmp_path: Path, counted: list[int]) -> None:
    store = make(tmp_path, some_documents(80))
    expected = read(PackedSource(store, "train", 9, "best_fit"))
    first = len(counted)
    about = sorted((store.paths.folder / "best_fit-10").glob("train-*.json"))
    about[1].unlink()  # it is written last, so without it the arrays may be anything
    about[1].with_suffix(".at.npy").write_bytes(b"half an arr")
    assert read(PackedSource(store, "train", 9, "best_fit")) == expected
    assert len(counted) == first + 1


def test_the_packing_of_another_shard_is_not_used(tmp_path: Path, counted: list[int]) -> None:
    """Two stores of equal names, as where a corpus was changed and the packing stayed."""
    one, two = make(tmp_path / "one", some_documents(80)), make(tmp_path / "two", some_documents(80, seed=1))
    PackedSource(one, "train", 9, "best_fit")
    expected = read(PackedSource(two, "train", 9, "best_fit"))
    ours, theirs = one.paths.folder / "best_fit-10", two.paths.folder / "best_fit-10"
    names = {path.name for path in theirs.iterdir()}
    for path in ours.iterdir():
        os.replace(path, theirs / path.name)
    first = len(counted)
    assert read(PackedSource(two, "train", 9, "best_fit")) == expected
    assert len(counted) == first + len(two.manifest.splits["train"].shards)
    for name in (name for name in names if name.endswith(".json")):
        entry = next(s for s in two.manifest.splits["train"].shards if s.name.removesuffix(".tok") == name[:-5])
        assert json.loads(json.loads((theirs / name).read_text())[0])["seal"] == entry.seal


def test_no_flipped_byte_of_an_index_changes_a_row(tmp_path: Path) -> None:
    store = make(tmp_path, some_documents(12), unit_bytes=1 << 20, shard_tokens=1 << 20)
    expected = read(PackedSource(store, "train", 9, "best_fit"))
    for path in sorted((store.paths.folder / "best_fit-10").glob("train-00000-00000.*")):
        original = path.read_bytes()
        for at in range(0, len(original), 7):
            path.write_bytes(original[:at] + bytes([original[at] ^ 0x01]) + original[at + 1 :])
            try:
                assert read(PackedSource(store, "train", 9, "best_fit")) == expected, f"byte {at} of {path.name}"
            except DataError:
                continue
        path.write_bytes(original)


def test_what_cannot_be_packed_is_refused(tmp_path: Path) -> None:
    def numbers(split: str, first: int, count: int) -> NDArray[np.unsignedinteger]:
        return np.zeros((count, 8), dtype=np.uint8)

    job = Job(source={"source": "zeros"}, symbols=3, length=8, rows={"train": 4, "heldout": 2}, shard_rows=4)
    assert write_rows(tmp_path / "fixed", job, None, numbers) is not None
    with pytest.raises(DataError, match="rows of a fixed length, which cannot be packed"):
        PackedSource(Store(tmp_path / "fixed"), "train", 7, "best_fit")
    text = make(tmp_path, some_documents(40))
    with pytest.raises(DataError, match="one row needs"):
        PackedSource(text, "train", 10**6, "pad")
    with pytest.raises(DataError, match="has no other rows"):
        PackedSource(text, "other", 9, "pad")


# Segments of windows


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 7), min_size=1, max_size=6), min_size=1, max_size=3),
    st.integers(1, 20),
    st.lists(st.integers(0, 80), max_size=6),
)
def test_segments_are_those_of_a_naive_loop(
    tmp_path_factory: pytest.TempPathFactory, shards: list[list[int]], width: int, starts: list[int]
) -> None:
    folder, opened = tmp_path_factory.mktemp("shards"), []
    for number, sizes in enumerate(shards):
        path, ends = folder / f"{number}.tok", np.cumsum(sizes).astype(np.uint64)
        write_shard(path, np.zeros(sum(sizes), dtype=np.uint8), ends)
        opened.append(Shard(path))
    every = [size for sizes in shards for size in sizes]
    document_at = [number for number, size in enumerate(every) for _ in range(size)]
    entry = SplitEntry(tokens=len(document_at), documents=len(every), text_bytes=0, shards=())
    starts = [start for start in starts if start + width <= len(document_at)]
    expected = []
    for start in starts:
        row, segment = [], 1
        for place in range(start, start + width):
            if place > start and document_at[place] != document_at[place - 1]:
                segment += 1
            row.append(segment)
        expected.append(row)
    found = StoreRows(opened, 1, entry).segments(np.array(starts, dtype=np.int64), width)
    assert found.shape == (len(starts), width)
    assert found.tolist() == expected


def windows_of(opened: Store, length: int) -> Iterator[tuple[list[int], list[int]]]:
    rows = opened.split("train", length)
    numbers = np.arange(len(rows))
    segments = rows.segments(rows.starts(RowIndex.first(numbers)), length + 1)
    yield from zip(rows.rows(numbers).tolist(), segments.tolist())


def test_a_new_segment_begins_behind_every_end_token(store: Store) -> None:
    for ids, segments in windows_of(store, 30):
        ends = [int(token == store.manifest.end) for token in ids]
        assert segments == [1, *(1 + before for before in itertools.accumulate(ends[:-1]))]


@pytest.mark.parametrize("packing", PACKINGS)
def test_rows_that_were_packed_before_need_no_compiled_loops(
    store: Store, monkeypatch: pytest.MonkeyPatch, packing: str
) -> None:
    first = PackedSource(store, "train", 20, packing)
    monkeypatch.delattr(pack_package, "packing")
    monkeypatch.setitem(sys.modules, "shoestring.data.pack.packing", None)  # importing it is an error
    again = PackedSource(store, "train", 20, packing)
    every = np.arange(len(first))
    assert again.ledger == first.ledger
    assert all(np.array_equal(one, two) for one, two in zip(first.rows(every), again.rows(every), strict=True))
    with pytest.raises(ImportError):
        PackedSource(store, "train", 21, packing)
