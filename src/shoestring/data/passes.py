"""The passes over a corpus that make a store, each a function of one unit whose result is a small file.

    hash      of every document, to leave out those that occur again
    words     how often each word occurs in the training documents, for a vocabulary
    tokens    the unit's shards, and what is in them

A result that is there is not made again; a process that dies leaves none.
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
from shoestring.core.records import Record
from shoestring.data.formats import Skipped
from shoestring.data.shards import dtype_for, write_shard
from shoestring.data.store import ShardEntry, SplitEntry, StorePaths
from shoestring.data.tokenizers import Tokenizer, read_tokenizer
from shoestring.data.units import Unit, unit_heldout

WORK = ".work"
SHARD_TOKENS = 1 << 26
BATCH_CHARACTERS = 1 << 21
ROUND_HASHES = 1 << 23
SPLITS = ("train", "heldout")


@dataclass(frozen=True, kw_only=True)
class Job:
    """What all passes of a store have in common; sent to every process."""

    folder: Path
    seed: int
    heldout: float
    unique: bool

    @property
    def work(self) -> Path:
        """Results of passes; removed when the store is whole."""
        return self.folder / WORK

    def result(self, name: str, unit: int) -> Path:
        return self.work / f"{name}-{unit:05d}"


class Batch(NamedTuple):
    """Some documents of a unit."""

    texts: list[str]
    held_out: NDArray[np.bool_]
    dropped: int
    """Documents among them that had occurred before, and are not in `texts`."""


def batches(job: Job, unit: Unit, skipped: Skipped) -> Iterator[Batch]:
    """The documents of a unit, some megabytes at a time, without those that occur again."""
    held_out = unit_heldout(job.seed, job.heldout, unit.number)
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
            yield Batch(texts, np.array(flags, dtype=bool), dropped)
            texts, flags, size, dropped = [], [], 0, 0
    if texts or dropped:
        yield Batch(texts, np.array(flags, dtype=bool), dropped)


def hash_pass(job: Job, unit: Unit) -> None:
    digests = b"".join(
        hashlib.blake2b(document.text.encode(), digest_size=16).digest() for document in unit.documents(Skipped())
    )
    _save(job.result("hash", unit.number), np.frombuffer(digests, dtype="<u8").reshape(-1, 2))


def words_pass(job: Job, unit: Unit) -> None:
    from shoestring.data.fast_words import WordCounter  # imports Numba

    counter = WordCounter()
    for batch in batches(job, unit, Skipped()):
        counter.add([text for text, held in zip(batch.texts, batch.held_out.tolist()) if not held])
    words, counts = counter.counted()
    write_whole(job.result("words", unit.number), json.dumps([words, counts], ensure_ascii=False))


@dataclass(frozen=True, kw_only=True)
class UnitEntry(Record):
    """What a unit gave."""

    SCHEMA: ClassVar[str] = "shoestring.unit/1"

    splits: dict[str, SplitEntry]
    ledger: dict[str, Any]


def tokens_pass(job: Job, unit: Unit) -> None:
    paths = StorePaths(job.folder)
    tokenizer = _tokenizer(paths.tokenizer)
    writers = {name: _Writer(paths, name, unit.number, tokenizer) for name in SPLITS}
    skipped, dropped = Skipped(), 0
    for batch in batches(job, unit, skipped):
        dropped += batch.dropped
        for name, wanted in (("train", ~batch.held_out), ("heldout", batch.held_out)):
            chosen = [text for text, take in zip(batch.texts, wanted.tolist()) if take]
            if chosen:
                writers[name].add(chosen)
    ledger = {
        "broken": skipped.count,
        "empty": skipped.empty,
        "duplicates": dropped,
        "examples": skipped.examples,
    }
    entry = UnitEntry(splits={name: writer.finish() for name, writer in writers.items()}, ledger=ledger)
    entry.write(job.result("tokens", unit.number))


PASSES = {"hash": hash_pass, "words": words_pass, "tokens": tokens_pass}


def run_pass(name: str, job: Job, unit: Unit) -> int:
    """One pass over one unit, in whatever process; returns the unit's number."""
    PASSES[name](job, unit)
    return unit.number


@lru_cache(maxsize=2)
def _tokenizer(path: Path) -> Tokenizer:
    """Read once a process."""
    return read_tokenizer(path)


class _Writer:
    """Collects the documents of a unit's split and writes a shard whenever enough are there."""

    def __init__(self, paths: StorePaths, split: str, unit: int, tokenizer: Tokenizer):
        self._paths, self._split, self._unit, self._tokenizer = paths, split, unit, tokenizer
        assert tokenizer.end is not None, "a tokenizer of text has one"
        self._end = tokenizer.end
        self._parts: list[NDArray[np.unsignedinteger]] = []
        self._sizes: list[NDArray[np.int64]] = []
        self._filled = self._text_bytes = 0
        self._shards: list[ShardEntry] = []

    def add(self, texts: Sequence[str]) -> None:
        ids, sizes = self._tokenizer.encode_batch(texts)
        tokens = with_ends(ids, sizes, self._end).astype(dtype_for(self._tokenizer.vocab_size))
        self._parts.append(tokens)
        self._sizes.append(sizes + 1)
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
        return SplitEntry(
            tokens=sum(shard.tokens for shard in self._shards),
            documents=sum(shard.documents for shard in self._shards),
            text_bytes=self._text_bytes,
            shards=tuple(self._shards),
        )


def with_ends(ids: NDArray[np.unsignedinteger], sizes: NDArray[np.int64], end: int) -> NDArray[np.unsignedinteger]:
    """The ids of documents of these sizes, each closed by `end`."""
    found = np.full(len(ids) + len(sizes), end, dtype=ids.dtype)
    inside = np.ones(len(found), dtype=bool)
    inside[np.cumsum(sizes + 1) - 1] = False
    found[inside] = ids
    return found


def count_documents(job: Job, units: Sequence[Unit], documents: int) -> list[int]:
    """How many documents the first units have, up to the one with the last that is wanted; no record behind it is read.

    A number is kept in a file once its unit was read to the end.
    """
    counts: list[int] = []
    for unit in units:
        left = documents - sum(counts)
        if left <= 0:
            break
        path = job.result("count", unit.number)
        if path.is_file():
            counts.append(int(read_json(path)))
            continue
        counts.append(sum(1 for _ in itertools.islice(unit.documents(Skipped()), left + 1)))
        if counts[-1] <= left:
            write_whole(path, json.dumps(counts[-1]))
    return counts


def resolve_duplicates(job: Job, units: Sequence[Unit]) -> None:
    """Say of every document whether it occurred before, in this unit or one before it.

    The hashes are looked at in as many rounds as keep a round's to a few million, so memory does not grow with them.
    """
    every = [np.load(job.result("hash", unit.number), mmap_mode="r")[: unit.limit] for unit in units]
    total = sum(map(len, every))
    rounds = np.uint64(max(1, -(-total // ROUND_HASHES)))
    again = [np.zeros(len(hashes), dtype=bool) for hashes in every]
    for turn in range(int(rounds)):
        places, hashes = [], []
        for number, found in enumerate(every):
            chosen = np.flatnonzero(found[:, 0] % rounds == np.uint64(turn))
            places.append(np.stack([np.full(len(chosen), number), chosen], axis=1))
            hashes.append(found[chosen])
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


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def merged_ledger(entries: Sequence[UnitEntry]) -> dict[str, Any]:
    """What all units left out."""
    found: dict[str, Any] = {
        name: sum(entry.ledger[name] for entry in entries) for name in ("broken", "empty", "duplicates")
    }
    examples = [example for entry in entries for example in entry.ledger["examples"]]
    return found | {"examples": examples[:5]}
