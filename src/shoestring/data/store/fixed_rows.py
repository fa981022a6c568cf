"""A token store of rows of one length, made by a function of their numbers: sharded and restartable.

Every shard is a function of its number, and is written whole or not at all. So a killed run resumes with the missing
shards, and many machines can each write a part of one store. The process that writes the last shard also writes the
manifest.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoestring.core.errors import DataError, StorageError
from shoestring.core.files import drop_lock, folder_bytes, free_bytes, locked
from shoestring.core.schema import Record
from shoestring.core.units import Bytes, Count
from shoestring.data.store.shards import Shard, dtype_for, shard_bytes, write_shard
from shoestring.data.store.store import Manifest, ShardEntry, SplitEntry, Store, StorePaths, write_tokenizer
from shoestring.data.tokenize.tokenizers import SymbolTokenizer, tokenizer_fingerprint

SHARD_BYTES = 1 << 27
MANY_SHARDS = 100_000
_WRITERS = 3
"""Shards that are written at the same time, while the next one is made."""

Make = Callable[[str, int, int], NDArray[np.unsignedinteger]]
"""From a split, the first row and the number of rows to the rows: (rows, length)."""


@dataclass(frozen=True, kw_only=True)
class Job(Record):
    """Everything that determines a store of fixed rows; kept in its folder, so that no other store is written there."""

    SCHEMA: ClassVar[str] = "shoestring.fixed_rows/1"

    source: dict[str, Any]
    symbols: int
    length: int
    rows: dict[str, int]
    """Number of rows of each split."""
    shard_rows: int


class Progress(NamedTuple):
    """The progress of writing a part."""

    rows: int
    total: int
    rate: float
    """Tokens per second since the start."""
    seconds_left: float


class _Task(NamedTuple):
    path: Path
    split: str
    first: int
    rows: int


def shard_rows(length: int, symbols: int) -> int:
    """How many rows a shard holds."""
    return max(1, SHARD_BYTES // (length * dtype_for(symbols).itemsize))


def write_rows(
    folder: Path,
    job: Job,
    names: tuple[str, ...] | None,
    make: Make,
    part: tuple[int, int] = (0, 1),
    progress: Callable[[Progress], None] = lambda _: None,
) -> Manifest | None:
    """Write what is missing of part i of n (0 to n - 1). Returns the manifest if the store is complete, else None.

    Every byte of what is there of the part is checked first.
    """
    paths = StorePaths(folder)
    itemsize = dtype_for(job.symbols).itemsize
    _check_job(folder / "job.json", job)
    shards = sum(-(-rows // job.shard_rows) for rows in job.rows.values()) // part[1]
    if shards > MANY_SHARDS:  # too many to list before checking that there is room
        least = shards * job.shard_rows * job.length * itemsize
        _check_room(folder, least - (folder_bytes(folder) if folder.is_dir() else 0), job, part)
    tasks = list(_tasks(paths, job))
    mine = [task for number, task in enumerate(tasks) if number % part[1] == part[0]]
    if paths.manifest.is_file() and all(_whole(task, job) for task in tasks):
        manifest = Store(folder).manifest
        entries = {entry.name: entry for split in manifest.splits.values() for entry in split.shards}
        _verify(mine, entries)
        drop_lock(paths.lock(part))
        return manifest
    missing = [task for task in mine if not _whole(task, job)]
    _verify([task for task in mine if task not in missing])
    _check_room(folder, sum(shard_bytes(task.rows * job.length, 0, itemsize) for task in missing), job, part)
    with locked(paths.lock(part), f"part {part[0]}/{part[1]} of the store {folder}"):
        paths.sweep()
        job.write(folder / "job.json")
        _write(missing, sum(task.rows for task in mine), job.length, make, progress)
        if not all(_whole(task, job) for task in tasks):
            return None
        tokenizer = SymbolTokenizer(job.symbols, names)
        write_tokenizer(paths.tokenizer, tokenizer)
        manifest = Manifest(
            source=job.source,
            tokenizer=tokenizer.spec,
            tokenizer_fingerprint=tokenizer_fingerprint(tokenizer),
            vocab_size=job.symbols,
            itemsize=itemsize,
            end=None,
            row=job.length,
            splits={split: _entry([task for task in tasks if task.split == split]) for split in job.rows},
        )
        manifest = dataclasses.replace(manifest, check=manifest.expected_check())
        manifest.write(paths.manifest)
        return manifest


def missing_shards(folder: Path, job: Job) -> int:
    """How many shards of a store are not there yet."""
    return sum(not _whole(task, job) for task in _tasks(StorePaths(folder), job))


def _check_job(path: Path, job: Job) -> None:
    others = not path.is_file() and any(path.parent.glob("*.tok"))  # of an unknown job
    if others or (path.is_file() and Job.read(path) != job):
        raise DataError(f"{path.parent} holds, or was started for, other rows; choose another folder, or remove it")


def _tasks(paths: StorePaths, job: Job) -> Iterator[_Task]:
    for split, rows in job.rows.items():
        for number, first in enumerate(range(0, rows, job.shard_rows)):
            yield _Task(paths.shard(split, number), split, first, min(job.shard_rows, rows - first))


def _whole(task: _Task, job: Job) -> bool:
    if not task.path.is_file():
        return False
    if Shard(task.path).tokens != task.rows * job.length:
        raise DataError(f"{task.path} does not belong to this store: its number of tokens is wrong")
    return True


def _verify(tasks: Sequence[_Task], entries: Mapping[str, ShardEntry] | None = None) -> None:
    """Check every byte of shards, and that they are those of a manifest's entries, where there are any."""
    for task in tasks:
        shard = Shard(task.path)
        if entries is not None and (task.path.name not in entries or entries[task.path.name].seal != shard.seal):
            raise _damaged(task.path, "its content differs from the manifest")
        try:
            shard.verify()
        except DataError as cause:
            raise _damaged(task.path, "its content does not match its checksums") from cause


def _damaged(path: Path, how: str) -> DataError:
    return DataError(f"{path}: damaged, {how}; remove this file, and the same command makes it again")


def _check_room(folder: Path, needed: int, job: Job, part: tuple[int, int]) -> None:
    """Raise StorageError now if the disk cannot hold the shards, rather than after a day."""
    free = free_bytes(folder)
    if needed > free:
        of = "" if part[1] == 1 else f" of part {part[0]}/{part[1]}"
        raise StorageError(
            f"cannot write {Count(sum(job.rows.values())).short()} rows of {job.length} tokens to {folder}: the "
            f"shards{of} still need {Bytes(needed).short()}, and {Bytes(free).short()} are free. Choose fewer rows or "
            f"another disk; a stream needs no disk: data.stream in a recipe"
        )


def _write(tasks: list[_Task], total: int, length: int, make: Make, progress: Callable[[Progress], None]) -> None:
    """Make shards one by one, and let threads write them; only a few are in memory at once."""
    started, made, done = time.perf_counter(), 0, total - sum(task.rows for task in tasks)
    running: dict[Future[int], _Task] = {}

    def collect(many: int) -> None:
        nonlocal made, done
        while len(running) > many:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                future.result()
                rows = running.pop(future).rows
                made, done = made + rows, done + rows
                rate = made * length / max(1e-9, time.perf_counter() - started)
                progress(Progress(done, total, rate, (total - done) * length / rate))

    with ThreadPoolExecutor(_WRITERS) as pool:
        for task in tasks:
            collect(_WRITERS - 1)
            tokens = make(task.split, task.first, task.rows)
            running[pool.submit(write_shard, task.path, tokens.reshape(-1), np.zeros(0, np.uint64))] = task
        collect(0)


def _entry(tasks: list[_Task]) -> SplitEntry:
    shards = [
        ShardEntry(name=path.name, tokens=shard.tokens, documents=0, bytes=path.stat().st_size, seal=shard.seal)
        for path, shard in ((task.path, Shard(task.path)) for task in tasks)
    ]
    return dataclasses.replace(SplitEntry.of(shards, text_bytes=0), documents=sum(task.rows for task in tasks))
