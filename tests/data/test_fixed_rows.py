"""Stores of fixed rows: the same bytes however they were written, never another's, never more than fits."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shoestring.core.errors import DataError, RunError, StorageError, UserError
from shoestring.core.files import whole_file
from shoestring.data.store import fixed_rows, store
from shoestring.data.store.fixed_rows import Job, Make, Progress, missing_shards, shard_rows, write_rows
from shoestring.data.store.shards import dtype_for, shard_bytes
from shoestring.data.store.store import Manifest, Store

ROWS = {"train": 23, "heldout": 7}
LENGTH = 5
SYMBOLS = 11
SHARDS = 6 + 2
"""With four rows in each."""


class Killed(Exception):
    """In place of a signal."""


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixed_rows, "SHARD_BYTES", 4 * LENGTH + 3)


def a_job(rows: dict[str, int] = ROWS, length: int = LENGTH, symbols: int = SYMBOLS) -> Job:
    source = {"source": "numbers"}
    return Job(source=source, symbols=symbols, length=length, rows=rows, shard_rows=shard_rows(length, symbols))


def numbers(split: str, first: int, count: int, job: Job) -> NDArray[np.unsignedinteger]:
    """Rows that are a function of their numbers, and of nothing else."""
    row = np.arange(first, first + count)[:, None] * 7919 + (104729 if split == "heldout" else 0)
    mixed = (row + np.arange(job.length) * 31) ** 2 // 3
    return (mixed % job.symbols).astype(dtype_for(job.symbols))


def maker(job: Job, made: list[tuple[str, int]] | None = None, die_after: int | None = None) -> Make:
    """Makes numbers, notes what it made, and dies when asked for more than `die_after` shards."""
    made = [] if made is None else made

    def make(split: str, first: int, count: int) -> NDArray[np.unsignedinteger]:
        if len(made) == die_after:
            raise Killed
        made.append((split, first))
        return numbers(split, first, count, job)

    return make


def files_of(folder: Path) -> dict[str, bytes]:
    """All that lies in a folder, but for the locks."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".lock")}


def at_once(folder: Path, job: Job) -> dict[str, bytes]:
    assert write_rows(folder, job, None, maker(job)) is not None
    return files_of(folder)


def put_byte(path: Path, at: int, mask: int = 0x10) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= mask
    path.write_bytes(content)


# --- the same store however it was written


@pytest.mark.parametrize("shards", range(SHARDS + 1))
def test_a_store_that_was_killed_after_any_shard_ends_with_the_same_bytes(tmp_path: Path, shards: int) -> None:
    job, folder = a_job(), tmp_path / "killed"
    expected = at_once(tmp_path / "whole", job)
    before: list[tuple[str, int]] = []
    if shards < SHARDS:
        with pytest.raises(Killed):
            write_rows(folder, job, None, maker(job, before, die_after=shards))
        assert not (folder / "manifest.json").exists()
        assert missing_shards(folder, job) == SHARDS - shards
        with pytest.raises(DataError, match="not a token store"):
            Store(folder)
    after: list[tuple[str, int]] = []
    assert write_rows(folder, job, None, maker(job, after)) is not None
    assert files_of(folder) == expected
    assert len(before) + len(after) == SHARDS, "nothing is made twice"
    assert missing_shards(folder, job) == 0


def test_a_store_killed_at_every_shard_makes_its_way(tmp_path: Path) -> None:
    job, folder = a_job(), tmp_path / "killed"
    for shard in range(1, SHARDS):
        with pytest.raises(Killed):
            write_rows(folder, job, None, maker(job, die_after=1))
        assert missing_shards(folder, job) == SHARDS - shard
    assert write_rows(folder, job, None, maker(job, die_after=1)) is not None, "the last one was enough"
    assert files_of(folder) == at_once(tmp_path / "whole", job)


def test_a_store_killed_before_its_manifest_needs_no_rows_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(self: Manifest, path: Path) -> None:
        raise Killed

    job, folder, made = a_job(), tmp_path / "killed", list[tuple[str, int]]()
    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "write", die)
        with pytest.raises(Killed):
            write_rows(folder, job, None, maker(job))
    assert not (folder / "manifest.json").exists()
    assert write_rows(folder, job, None, maker(job, made)) is not None
    assert made == []
    assert files_of(folder) == at_once(tmp_path / "whole", job)


@settings(max_examples=25, deadline=None)
@given(
    train=st.integers(1, 30),
    heldout=st.integers(0, 9),
    per_shard=st.integers(1, 12),
    parts=st.integers(1, 9),
    chance=st.randoms(use_true_random=False),
)
def test_parts_in_any_order_make_the_same_store(
    tmp_path_factory: pytest.TempPathFactory, train: int, heldout: int, per_shard: int, parts: int, chance: Any
) -> None:
    place = tmp_path_factory.mktemp("parts")
    job = replace(a_job({"train": train} | ({"heldout": heldout} if heldout else {})), shard_rows=per_shard)
    order = list(range(parts))
    chance.shuffle(order)
    shards = sum(-(-count // per_shard) for count in job.rows.values())
    made: list[tuple[str, int]] = []
    for done, part in enumerate(order, start=1):
        before = missing_shards(place / "parts", job)
        mine = len(range(part, shards, parts))
        manifest = write_rows(place / "parts", job, None, maker(job, made), (part, parts))
        assert missing_shards(place / "parts", job) == before - mine
        assert (manifest is not None) == (missing_shards(place / "parts", job) == 0)
        assert (manifest is not None) == (place / "parts/manifest.json").is_file()
        assert manifest is not None or done < parts
    assert len(made) == len(set(made)) == shards
    assert files_of(place / "parts") == at_once(place / "whole", job)


def test_parts_that_were_killed_and_parts_of_another_number_make_the_same_store(tmp_path: Path) -> None:
    job, folder = a_job(), tmp_path / "parts"
    with pytest.raises(Killed):
        write_rows(folder, job, None, maker(job, die_after=1), (1, 3))
    assert write_rows(folder, job, None, maker(job), (0, 2)) is None
    assert write_rows(folder, job, None, maker(job), (2, 3)) is None
    assert write_rows(folder, job, None, maker(job)) is not None
    assert files_of(folder) == at_once(tmp_path / "whole", job)


def test_a_whole_store_is_not_made_again(tmp_path: Path) -> None:
    job = a_job()
    first = write_rows(tmp_path, job, None, maker(job))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert write_rows(tmp_path, job, None, maker(job, die_after=0)) == first
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}


def test_what_a_killed_process_left_half_written_is_removed(tmp_path: Path) -> None:
    job = a_job()
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed/.train-00003.tok.4711.tmp").write_bytes(b"half a sh")
    assert write_rows(tmp_path / "killed", job, None, maker(job)) is not None
    assert files_of(tmp_path / "killed") == at_once(tmp_path / "whole", job)


def test_a_shard_that_cannot_be_written_ends_the_job_and_the_next_one_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(path: Path, *rest: Any) -> int:
        if path.name == "train-00002.tok":
            raise StorageError(f"cannot write {path}: the disk is full")
        return original(path, *rest)

    job, folder, original = a_job(), tmp_path / "full", fixed_rows.write_shard
    with monkeypatch.context() as patch:
        patch.setattr(fixed_rows, "write_shard", no_room)
        with pytest.raises(StorageError, match=r"train-00002\.tok: the disk is full"):
            write_rows(folder, job, None, maker(job))
    assert not (folder / "manifest.json").exists()
    assert write_rows(folder, job, None, maker(job)) is not None
    assert files_of(folder) == at_once(tmp_path / "whole", job)


# --- one job, one folder


@pytest.mark.parametrize(
    "change",
    [
        {"rows": {"train": 24, "heldout": 7}},
        {"rows": {"train": 23}},
        {"length": 6},
        {"symbols": 12},
        {"source": {"source": "numbers", "seed": 1}},
        {"shard_rows": 5},
    ],
)
@pytest.mark.parametrize("whole", [True, False])
def test_rows_of_another_job_are_refused_and_nothing_changes(
    tmp_path: Path, change: dict[str, Any], whole: bool
) -> None:
    job = a_job()
    with contextlib.nullcontext() if whole else pytest.raises(Killed):
        write_rows(tmp_path, job, None, maker(job, die_after=None if whole else 3))
    before = files_of(tmp_path)
    other = replace(job, **change)
    with pytest.raises(DataError, match="holds, or was started for, other rows") as caught:
        write_rows(tmp_path, other, None, maker(other, die_after=0))
    assert str(tmp_path) in str(caught.value)
    assert files_of(tmp_path) == before


def test_a_store_that_was_made_otherwise_is_refused(tmp_path: Path) -> None:
    """As `shoestring prepare` makes one: a manifest, and nothing beside it that names a job."""
    job, other = a_job(), replace(a_job(), source={"source": "text"})
    at_once(tmp_path, other)
    (tmp_path / "job.json").unlink()
    before = files_of(tmp_path)
    with pytest.raises(DataError):
        write_rows(tmp_path, job, None, maker(job))
    assert files_of(tmp_path) == before


def test_shards_of_nobody_knows_what_are_refused(tmp_path: Path) -> None:
    job, other = a_job(), replace(a_job(), source={"source": "others"})
    with pytest.raises(Killed):
        write_rows(tmp_path, other, None, maker(other, die_after=2))
    (tmp_path / "job.json").unlink()
    before = files_of(tmp_path)
    with pytest.raises(DataError):
        write_rows(tmp_path, job, None, maker(job))
    assert files_of(tmp_path) == before


def test_a_shard_that_was_lost_is_made_again(tmp_path: Path) -> None:
    job = a_job()
    expected = at_once(tmp_path, job)
    (tmp_path / "train-00001.tok").unlink()
    made: list[tuple[str, int]] = []
    assert write_rows(tmp_path, job, None, maker(job, made)) is not None
    assert made == [("train", 4)]
    assert files_of(tmp_path) == expected


@pytest.mark.parametrize("part", [(0, 1), (1, 3)])
def test_a_part_is_written_by_one_process_at_a_time(tmp_path: Path, part: tuple[int, int]) -> None:
    job, refused = a_job(), list[str]()

    def make(split: str, first: int, count: int) -> NDArray[np.unsignedinteger]:
        with pytest.raises(RunError) as caught:
            write_rows(tmp_path, job, None, maker(job, die_after=0), part)
        refused.append(str(caught.value))
        return numbers(split, first, count, job)

    write_rows(tmp_path, job, None, make, part)
    assert refused
    assert all(f"part {part[0]}/{part[1]} of the store {tmp_path} is in use by process" in text for text in refused)


def test_other_parts_may_be_written_meanwhile(tmp_path: Path) -> None:
    job, inner = a_job(), list[Manifest | None]()

    def make(split: str, first: int, count: int) -> NDArray[np.unsignedinteger]:
        if not inner:
            inner.append(write_rows(tmp_path / "parts", job, None, maker(job), (1, 2)))
        return numbers(split, first, count, job)

    assert write_rows(tmp_path / "parts", job, None, make, (0, 2)) is not None, "the last part writes the manifest"
    assert inner == [None]
    assert files_of(tmp_path / "parts") == at_once(tmp_path / "whole", job)


def test_what_another_part_is_writing_is_left_alone(tmp_path: Path) -> None:
    job, begun = a_job(), tmp_path / "train-00001.tok"

    def make(split: str, first: int, count: int) -> NDArray[np.unsignedinteger]:
        with whole_file(begun) as file, contextlib.suppress(Killed):
            file.write(b"half a sh")
            write_rows(tmp_path, job, None, maker(job, die_after=0))
        assert begun.read_bytes() == b"half a sh"
        begun.unlink()
        return numbers(split, first, count, job)

    write_rows(tmp_path, job, None, make, (1, 2))


# --- room


def test_a_disk_that_is_too_small_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, folder = a_job({"train": 40_000}, length=104), tmp_path / "a" / "store"
    monkeypatch.setattr(fixed_rows, "free_bytes", lambda _: 3_000_000)
    job = replace(job, shard_rows=1000)
    with pytest.raises(StorageError) as caught:
        write_rows(folder, job, None, maker(job, die_after=0))
    for part in (str(folder), "40,000 rows of 104 tokens", "still need 4.16 MB", "3 MB are free"):
        assert part in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_only_what_is_missing_needs_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = a_job({"train": 24})
    each = shard_bytes(4 * LENGTH, 0, 1)
    with pytest.raises(Killed):
        write_rows(tmp_path, job, None, maker(job, die_after=4))
    before = files_of(tmp_path)
    monkeypatch.setattr(fixed_rows, "free_bytes", lambda _: 2 * each - 1)
    with pytest.raises(StorageError, match=f"still need {2 * each} B, and {2 * each - 1} B are free"):
        write_rows(tmp_path, job, None, maker(job))
    assert files_of(tmp_path) == before
    monkeypatch.setattr(fixed_rows, "free_bytes", lambda _: each - 1)
    with pytest.raises(StorageError, match=f"of part 1/2 still need {each} B"):
        write_rows(tmp_path, job, None, maker(job), (1, 2))
    monkeypatch.setattr(fixed_rows, "free_bytes", lambda _: 2 * each)
    assert write_rows(tmp_path, job, None, maker(job)) is not None


def test_a_part_without_a_shard_needs_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = a_job({"train": 8})
    monkeypatch.setattr(fixed_rows, "free_bytes", lambda _: 10)
    assert write_rows(tmp_path, job, None, maker(job, die_after=0), (2, 3)) is None


def test_far_too_many_rows_are_refused_without_counting_their_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard for each of 10¹⁵ rows is a list that no memory holds."""
    looked_at = itertools.count()

    def shard(self: store.StorePaths, split: str, number: int) -> Path:
        assert next(looked_at) < 1000
        return self.folder / f"{split}-{number:05d}.tok"

    monkeypatch.setattr(store.StorePaths, "shard", shard)
    job = replace(a_job({"train": 10**15}), shard_rows=1)
    with pytest.raises(StorageError, match="are free"):
        write_rows(tmp_path / "store", job, None, maker(job))


# --- the rows


@pytest.mark.parametrize("symbols", [2, 11, 256, 257, 65_536])
@pytest.mark.parametrize("length", [LENGTH - 1, 2, 1])
def test_rows_come_back_as_they_were_made(tmp_path: Path, symbols: int, length: int) -> None:
    job = a_job(symbols=symbols)
    write_rows(tmp_path, job, None, maker(job))
    opened = Store(tmp_path)
    for split, count in ROWS.items():
        rows = opened.split(split, length)
        made = numbers(split, 0, count, job)
        assert len(rows) == count
        assert rows.rows(np.arange(count)).tolist() == made[:, : length + 1].tolist()
        some = np.array([count - 1, 0, count // 2])
        assert rows.rows(some).tolist() == made[some, : length + 1].tolist()
        assert sorted(rows.order(0, 0, count).rows.tolist()) == list(range(count)), "an epoch reads every row once"
        with pytest.raises(IndexError):
            rows.rows(np.array([count]))


@pytest.mark.parametrize(("symbols", "itemsize"), [(2, 1), (256, 1), (257, 2), (65_536, 2)])
def test_tokens_take_no_more_bytes_than_they_need(tmp_path: Path, symbols: int, itemsize: int) -> None:
    job = replace(a_job({"train": 3000}, symbols=symbols), shard_rows=3000)
    manifest = write_rows(tmp_path, job, None, maker(job))
    assert manifest is not None
    assert (manifest.itemsize, manifest.vocab_size, manifest.row, manifest.end) == (itemsize, symbols, LENGTH, None)
    size = (tmp_path / "train-00000.tok").stat().st_size
    assert size == shard_bytes(3000 * LENGTH, 0, itemsize) == manifest.bytes
    assert size < 3000 * LENGTH * itemsize + 100
    assert numbers("train", 0, 3000, job).max() > 0.95 * (symbols - 1), "large numbers are among them"


def test_the_manifest_says_what_there_is(tmp_path: Path) -> None:
    job = a_job()
    manifest = write_rows(tmp_path, job, None, maker(job))
    assert manifest == Store(tmp_path).manifest
    assert manifest is not None
    assert manifest.source == job.source
    for split, count in ROWS.items():
        entry = manifest.splits[split]
        assert (entry.tokens, entry.documents) == (count * LENGTH, count)
        assert [shard.tokens // LENGTH for shard in entry.shards] == [4] * (count // 4) + [count % 4]
    assert Job.read(tmp_path / "job.json") == job


@pytest.mark.parametrize("names", [None, ("a", "b", "c", "d", "é")])
def test_the_store_knows_its_symbols_by_name(tmp_path: Path, names: tuple[str, ...] | None) -> None:
    job = a_job(symbols=5)
    write_rows(tmp_path, job, names, maker(job))
    tokenizer = Store(tmp_path).tokenizer
    row = numbers("train", 3, 1, job)[0]
    shown = " ".join(names[i] if names else str(i) for i in row)
    assert tokenizer.decode(row) == shown
    assert tokenizer.encode(shown).tolist() == row.tolist()
    assert tokenizer.end is None
    with pytest.raises(DataError, match='"z" is not one of the 5 symbols'):
        tokenizer.encode(f"{shown} z")


def test_rows_shorter_than_asked_for_are_refused(tmp_path: Path) -> None:
    job = a_job()
    write_rows(tmp_path, job, None, maker(job))
    opened = Store(tmp_path)
    with pytest.raises(DataError, match=r"rows of 5 tokens, and data\.length = 5 needs 6; .* at most 4 predictions"):
        opened.split("train", LENGTH)


def test_a_split_that_nobody_asked_for_is_not_there(tmp_path: Path) -> None:
    job = a_job({"train": 9})
    write_rows(tmp_path, job, None, maker(job))
    with pytest.raises(DataError, match="has no heldout rows; it has: train"):
        Store(tmp_path).split("heldout", 2)


# --- damage


def test_no_flipped_byte_of_a_shard_is_read(tmp_path: Path) -> None:
    job = a_job()
    write_rows(tmp_path, job, None, maker(job))
    path = tmp_path / "train-00001.tok"
    for at in range(path.stat().st_size):
        put_byte(path, at)
        with pytest.raises(DataError):
            Store(tmp_path).split("train", 2)
        put_byte(path, at)
    assert len(Store(tmp_path).split("train", 2)) == ROWS["train"]


@pytest.mark.parametrize("whole", [True, False])
def test_any_flipped_byte_is_noticed_by_the_command_that_made_the_store(tmp_path: Path, whole: bool) -> None:
    """It is not told that the store is there; without the file it makes the same again."""
    job = a_job()
    with contextlib.nullcontext() if whole else pytest.raises(Killed):
        write_rows(tmp_path, job, None, maker(job, die_after=None if whole else 3))
    path, before = tmp_path / "train-00001.tok", files_of(tmp_path)
    for at in range(0, path.stat().st_size, 3 if whole else 9):
        put_byte(path, at)
        with pytest.raises(DataError, match=r"train-00001\.tok: (damaged|not a token shard)"):
            write_rows(tmp_path, job, None, maker(job, die_after=0))
        put_byte(path, at)
    assert files_of(tmp_path) == before
    path.unlink()
    assert write_rows(tmp_path, job, None, maker(job)) is not None
    assert before.items() <= files_of(tmp_path).items()


def test_other_damage_of_a_whole_store_is_noticed_by_the_command_that_made_it(tmp_path: Path) -> None:
    job = a_job()
    before = at_once(tmp_path, job)
    one, other = tmp_path / "train-00000.tok", tmp_path / "train-00001.tok"
    one.write_bytes(before[other.name])
    other.write_bytes(before[one.name])
    with pytest.raises(DataError, match=r"train-00000\.tok: damaged, its content differs from the manifest"):
        write_rows(tmp_path, job, None, maker(job))
    one.write_bytes(before[one.name])
    other.write_bytes(before[other.name])
    for name in ("manifest.json", "tokenizer.json"):
        (tmp_path / name).write_bytes(before[name].replace(b"1", b"2", 1))
        with pytest.raises(UserError, match=name.partition(".")[0]):
            write_rows(tmp_path, job, None, maker(job))
        (tmp_path / name).write_bytes(before[name])
    assert write_rows(tmp_path, job, None, maker(job, die_after=0)) is not None


def test_damage_in_a_large_store_is_noticed_when_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = a_job()
    write_rows(tmp_path, job, None, maker(job))
    put_byte(tmp_path / "train-00001.tok", 64)
    monkeypatch.setattr(store, "EAGER_BYTES", 0)
    rows = Store(tmp_path).split("train", 2)
    made = numbers("train", 0, 4, job)
    assert rows.rows(np.arange(4)).tolist() == made[:, :3].tolist(), "the shard before it is whole"
    with pytest.raises(DataError, match=r"train-00001\.tok: damaged"):
        rows.rows(np.array([4]))


def test_a_shard_that_was_cut_off_is_noticed_when_the_job_resumes(tmp_path: Path) -> None:
    job = a_job()
    with pytest.raises(Killed):
        write_rows(tmp_path, job, None, maker(job, die_after=3))
    path = tmp_path / "train-00001.tok"
    path.write_bytes(path.read_bytes()[:-1])
    before = files_of(tmp_path)
    for refused in (lambda: write_rows(tmp_path, job, None, maker(job)), lambda: missing_shards(tmp_path, job)):
        with pytest.raises(DataError, match=r"train-00001\.tok: damaged"):
            refused()
    assert files_of(tmp_path) == before


def test_a_shard_with_other_rows_is_noticed_when_the_job_resumes(tmp_path: Path) -> None:
    job = a_job()
    with pytest.raises(Killed):
        write_rows(tmp_path, job, None, maker(job, die_after=6))
    (tmp_path / "train-00005.tok").replace(tmp_path / "train-00001.tok")  # three rows, not four
    with pytest.raises(DataError, match=r"train-00001\.tok does not belong to this store"):
        write_rows(tmp_path, job, None, maker(job))


# --- memory and progress


def test_few_shards_are_in_memory_at_once(tmp_path: Path) -> None:
    job, alive, most = a_job({"train": 160}), 0, 0

    def gone() -> None:
        nonlocal alive
        alive -= 1

    def make(split: str, first: int, count: int) -> NDArray[np.unsignedinteger]:
        nonlocal alive, most
        rows = numbers(split, first, count, job)
        weakref.finalize(rows, gone)
        alive += 1
        most = max(most, alive)
        return rows

    write_rows(tmp_path, job, None, make)
    assert len(list(tmp_path.glob("*.tok"))) == 40
    assert 1 <= most <= 5
    assert alive == 0


def told(folder: Path, job: Job, part: tuple[int, int] = (0, 1), die_after: int | None = None) -> list[Progress]:
    found: list[Progress] = []
    with contextlib.suppress(Killed):
        write_rows(folder, job, None, maker(job, die_after=die_after), part, found.append)
    return found


def check_progress(found: list[Progress]) -> None:
    rows = [progress.rows for progress in found]
    assert rows == sorted(rows)
    assert len({progress.total for progress in found}) == 1
    assert all(progress.rate > 0 and progress.seconds_left >= 0 for progress in found)
    for progress in found:
        assert progress.seconds_left == pytest.approx((progress.total - progress.rows) * LENGTH / progress.rate)


def test_progress_counts_every_row_once(tmp_path: Path) -> None:
    found = told(tmp_path, a_job())
    check_progress(found)
    assert len(found) == SHARDS
    assert (found[-1].rows, found[-1].total, found[-1].seconds_left) == (30, 30, 0.0)


def test_progress_of_parts_adds_up(tmp_path: Path) -> None:
    parts = [told(tmp_path, a_job(), (part, 3)) for part in range(3)]
    for found in parts:
        check_progress(found)
        assert found[-1].rows == found[-1].total
    assert sum(found[-1].total for found in parts) == sum(ROWS.values())
    assert sum(map(len, parts)) == SHARDS


def test_progress_resumes_from_what_is_there(tmp_path: Path) -> None:
    told(tmp_path, a_job(), die_after=3)
    found = told(tmp_path, a_job())
    check_progress(found)
    assert {progress.total for progress in found} == {30}
    assert found[0].rows in (16, 15, 14), "twelve rows, and the first shard that is done now"
    assert found[-1].rows == 30
    assert len(found) == SHARDS - 3


# --- how many rows a shard holds


@pytest.mark.parametrize(("limit", "length", "symbols", "rows"), [(100, 10, 256, 10), (100, 10, 257, 5), (7, 8, 2, 1)])
def test_shards_are_as_large_as_the_limit_allows_and_hold_one_row_at_least(
    monkeypatch: pytest.MonkeyPatch, limit: int, length: int, symbols: int, rows: int
) -> None:
    monkeypatch.setattr(fixed_rows, "SHARD_BYTES", limit)
    assert shard_rows(length, symbols) == rows
