"""The passes over a corpus that make a store; each is a function of one work unit and writes a small result file.

    hash      hashes of the documents, to find duplicates
    words     how often each word occurs in the training documents, for a vocabulary
    tokens    the unit's shards, and their entries in the manifest
    heldout   the same of its held-out documents alone

An existing result is not made again; a process that dies leaves none.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoestring.core.files import whole_file, write_whole
from shoestring.core.reading import read_json, reading
from shoestring.core.schema import Record
from shoestring.data.read.documents import Skipped, parts_of
from shoestring.data.store.shards import dtype_for, write_shard
from shoestring.data.store.sizes import stored_ids
from shoestring.data.store.store import ShardEntry, SplitEntry, StorePaths
from shoestring.data.store.work_units import Unit, unit_heldout
from shoestring.data.tokenize.prompts import encode_documents
from shoestring.data.tokenize.tokenizers import Tokenizer, read_tokenizer
from shoestring.data.tokenize.word_counts import WordCounts

SHARD_TOKENS = 1 << 26
BATCH_CHARACTERS = 1 << 21
ROUND_HASHES = 1 << 23
SPLITS = ("train", "heldout")


@dataclass(frozen=True, kw_only=True)
class Job:
    """What all passes of a store share; sent to every process."""

    folder: Path
    heldout: float
    unique: bool
    prompts: bool = False
    """Whether every document is a prompt and its completion."""

    @property
    def work(self) -> Path:
        """Folder for results of passes."""
        return StorePaths(self.folder).work

    def result(self, name: str, unit: int) -> Path:
        return self.work / f"{name}-{unit:05d}"


class Batch(NamedTuple):
    """Some documents of a unit."""

    texts: list[str]
    held_out: list[bool]
    dropped: int
    """Duplicates that were left out of `texts`."""

    def split(self, held_out: bool) -> list[str]:
        """The texts that are held out, or the others."""
        return [text for text, held in zip(self.texts, self.held_out) if held == held_out]


def batches(job: Job, unit: Unit, skipped: Skipped) -> Iterator[Batch]:
    """The documents of a unit without duplicates, some megabytes at a time."""
    held_out = unit_heldout(job.heldout, unit.number)
    again = np.load(job.result("again", unit.number)) if job.unique else None
    texts: list[str] = []
    flags: list[bool] = []
    size = dropped = 0
    for index, document in enumerate(unit.documents(skipped)):
        if again is not None and again[index]:
            dropped += 1
            continue
        texts.append(document.text)
        flags.append(held_out(index))
        size += len(document.text)
        if size >= BATCH_CHARACTERS:
            yield Batch(texts, flags, dropped)
            texts, flags, size, dropped = [], [], 0, 0
    if texts or dropped:
        yield Batch(texts, flags, dropped)


def hash_pass(job: Job, unit: Unit) -> None:
    digests = b"".join(
        hashlib.blake2b(document.text.encode(), digest_size=16).digest() for document in unit.documents(Skipped())
    )
    _save(job.result("hash", unit.number), np.frombuffer(digests, dtype="<u8").reshape(-1, 2))


def words_pass(job: Job, unit: Unit) -> None:
    counter = WordCounts()
    for batch in batches(job, unit, Skipped()):
        counter.add(parts_of(batch.split(held_out=False)))
    words, counts = counter.counted()
    write_whole(job.result("words", unit.number), json.dumps([words, counts], ensure_ascii=False))


@dataclass(frozen=True, kw_only=True)
class UnitEntry(Record):
    """The result of a unit."""

    SCHEMA: ClassVar[str] = "shoestring.unit/1"

    splits: dict[str, SplitEntry]
    ledger: dict[str, Any]


def tokens_pass(job: Job, unit: Unit) -> None:
    _write_splits(job, unit, "tokens", SPLITS)


def heldout_pass(job: Job, unit: Unit) -> None:
    _write_splits(job, unit, "heldout", ("heldout",))


def _write_splits(job: Job, unit: Unit, result: str, splits: Sequence[str]) -> None:
    paths = StorePaths(job.folder)
    tokenizer = _tokenizer(paths.tokenizer)
    writers = {name: _Writer(paths, name, unit.number, tokenizer, job.prompts) for name in splits}
    skipped, dropped = Skipped(), 0
    for batch in batches(job, unit, skipped):
        dropped += batch.dropped
        for name in splits:
            if texts := batch.split(held_out=name == "heldout"):
                writers[name].add(texts)
    counts = {"broken": skipped.count, "empty": skipped.empty, "duplicates": dropped}
    ledger = {**counts, "examples": skipped.examples}
    entry = UnitEntry(splits={name: writer.finish() for name, writer in writers.items()}, ledger=ledger)
    entry.write(job.result(result, unit.number))


PASSES = {"hash": hash_pass, "words": words_pass, "tokens": tokens_pass, "heldout": heldout_pass}


def run_pass(name: str, job: Job, unit: Unit) -> int:
    """Run one pass over one unit, in any process; returns the unit's number."""
    PASSES[name](job, unit)
    return unit.number


@lru_cache(maxsize=2)
def _tokenizer(path: Path) -> Tokenizer:
    """The tokenizer, read once per process."""
    return read_tokenizer(path)


class _Writer:
    """Collects the documents of a unit's split and writes a shard whenever there are enough tokens."""

    def __init__(self, paths: StorePaths, split: str, unit: int, tokenizer: Tokenizer, prompts: bool):
        self._paths, self._split, self._unit, self._tokenizer = paths, split, unit, tokenizer
        self._prompts, self._dtype = prompts, dtype_for(stored_ids(tokenizer.vocab_size, prompts))
        self._parts: list[NDArray[np.unsignedinteger]] = []
        self._sizes: list[NDArray[np.int64]] = []
        self._filled = self._text_bytes = 0
        self._shards: list[ShardEntry] = []

    def add(self, texts: Sequence[str]) -> None:
        ids, sizes = encode_documents(self._tokenizer, texts, self._prompts)
        tokens = ids.astype(self._dtype)
        self._parts.append(tokens)
        self._sizes.append(sizes)
        self._filled += len(tokens)
        self._text_bytes += len("".join(texts).encode())
        if self._filled >= SHARD_TOKENS:
            self._flush()

    def _flush(self) -> None:
        path = self._paths.shard(self._split, self._unit, len(self._shards))
        tokens, sizes = np.concatenate(self._parts), np.concatenate(self._sizes)
        seal = write_shard(path, tokens, np.cumsum(sizes).astype(np.uint64))
        size = path.stat().st_size
        self._shards.append(ShardEntry(name=path.name, tokens=len(tokens), documents=len(sizes), bytes=size, seal=seal))
        self._parts, self._sizes, self._filled = [], [], 0

    def finish(self) -> SplitEntry:
        if self._filled:
            self._flush()
        return SplitEntry.of(self._shards, self._text_bytes)


def count_documents(job: Job, units: Sequence[Unit], documents: int) -> list[int]:
    """How many documents each of the first units has, up to the unit of the last document needed; reads no further.

    The number of a unit that was read to its end is kept in a file.
    """
    counts: list[int] = []
    for unit in units:
        left = documents - sum(counts)
        if left <= 0:
            break
        path = job.result("count", unit.number)
        if path.is_file():
            with reading(path):
                counts.append(int(read_json(path)))
            continue
        counts.append(sum(1 for _ in itertools.islice(unit.documents(Skipped()), left + 1)))
        if counts[-1] <= left:
            write_whole(path, json.dumps(counts[-1]))
    return counts


def resolve_duplicates(job: Job, units: Sequence[Unit]) -> None:
    """Write for every document whether it occurred before, in this unit or an earlier one.

    The hashes are compared in rounds of a few million, so that memory does not grow with their number.
    """
    every = [np.load(job.result("hash", unit.number), mmap_mode="r")[: unit.limit] for unit in units]
    total = sum(map(len, every))
    rounds = np.uint64(max(1, -(-total // ROUND_HASHES)))
    again = [np.zeros(len(hashes), dtype=bool) for hashes in every]
    for turn in range(int(rounds)):
        places, hashes = [], []
        for number, digests in enumerate(every):
            chosen = np.flatnonzero(digests[:, 0] % rounds == np.uint64(turn))
            places.append(np.stack([np.full(len(chosen), number), chosen], axis=1))
            hashes.append(digests[chosen])
        place, digest = np.concatenate(places), np.concatenate(hashes)
        order = np.lexsort((digest[:, 1], digest[:, 0]))  # stable: the first of equals stays first
        same = (digest[order][1:] == digest[order][:-1]).all(axis=1)
        repeated = place[order[1:][same]]
        for number in np.unique(repeated[:, 0]).tolist():
            again[number][repeated[repeated[:, 0] == number, 1]] = True
    for unit, flags in zip(units, again, strict=True):
        _save(job.result("again", unit.number), flags)


def _save(path: Path, values: NDArray[Any]) -> None:
    with whole_file(path) as file:
        np.save(file, values)


def merged_ledger(entries: Sequence[UnitEntry]) -> dict[str, Any]:
    """The ledger of all units together."""
    counts = {name: sum(entry.ledger[name] for entry in entries) for name in ("broken", "empty", "duplicates")}
    examples = [example for entry in entries for example in entry.ledger["examples"]]
    return {**counts, "examples": examples[:5]}
