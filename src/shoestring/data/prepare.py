"""From a source to a token store: count words, tokenize, split, write shards, then the manifest."""

from __future__ import annotations

import dataclasses
import itertools
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shoestring.core.errors import DataError, StorageError
from shoestring.core.facts import Density
from shoestring.core.files import free_bytes, locked
from shoestring.core.recipe import Data, fingerprint
from shoestring.core.seeds import derive
from shoestring.core.units import Bytes
from shoestring.data.shards import dtype_for, shard_bytes, write_shard
from shoestring.data.sources import Source, open_source
from shoestring.data.store import Manifest, ShardEntry, SplitEntry, Store, StorePaths, write_tokenizer
from shoestring.data.tokenizers import fit_tokenizer, tokenizer_fingerprint, vocabulary_size

SHARD_TOKENS = 1 << 26
_FORMAT = 1

Progress = Callable[[int], None]
"""Called with the number of documents written so far."""


def store_folder(data: Data, seed: int, documents: int | None) -> Path:
    """Where the store of these documents belongs: another source, tokenizer, seed or count has another folder."""
    identity = [_FORMAT, open_source(data.source, seed).identity(), data.tokenizer, documents, data.heldout, seed]
    name = re.sub(r"[^A-Za-z0-9]+", "-", f"{Path(data.source).name.split('.')[0]}-{data.tokenizer}").strip("-")
    return Path(data.folder) / f"{name}-{fingerprint(identity)[:8]}"


def estimate_bytes(tokens: float, documents: float, data: Data) -> int:
    """What a store of about this many tokens takes on disk."""
    return shard_bytes(int(tokens), int(documents), dtype_for(vocabulary_size(data.tokenizer)).itemsize)


def prepare(data: Data, seed: int, documents: int | None, progress: Progress = lambda _: None) -> Store:
    """The store for the first `documents` documents (None: all), made if it is not there yet."""
    source = open_source(data.source, seed)
    if documents is None and source.endless:
        raise DataError(
            f'data.source = "{data.source}" has no end; give data.documents, or plan first: shoestring plan RECIPE'
        )
    paths = StorePaths(store_folder(data, seed, documents))
    if paths.manifest.is_file():
        return Store(paths.folder, data.tokenizer)
    with locked(paths.lock, f"the store {paths.folder}"):
        if not paths.manifest.is_file():
            for leftover in paths.folder.glob(".*.tmp"):  # of a process that was killed while writing
                leftover.unlink(missing_ok=True)
            _check_room(paths.folder, source, data, documents)
            _write(paths, source, data, seed, documents, progress)
    return Store(paths.folder, data.tokenizer)


def _check_room(folder: Path, source: Source, data: Data, documents: int | None) -> None:
    """Refuse at once when the disk cannot hold the store, rather than after an hour."""
    density = measure_density(source, data, 200)
    limits = [count for count in (documents, density.total_documents) if count is not None]
    if not limits:
        return
    total = min(limits)
    needed = estimate_bytes(density.tokens_per_document * total, total, data)
    free = free_bytes(folder)
    if needed > free:
        raise StorageError(
            f"cannot prepare {total:,} documents in {folder}: they need about {Bytes(needed).short()}, and "
            f"{Bytes(free).short()} are free; choose another data.folder or fewer data.documents"
        )


def _write(paths: StorePaths, source: Source, data: Data, seed: int, documents: int | None, progress: Progress) -> None:
    def texts() -> Iterator[str]:
        return itertools.islice(source.documents(), documents)

    kept = is_heldout(derive(seed, "heldout"), data.heldout)
    training = (text for index, text in enumerate(texts()) if not kept(index))
    tokenizer = fit_tokenizer(data.tokenizer, training)
    dtype = dtype_for(tokenizer.vocab_size)
    splits = {name: _SplitWriter(paths, name, dtype, tokenizer.end) for name in ("train", "heldout")}
    count = 0
    for count, text in enumerate(texts(), start=1):
        splits["heldout" if kept(count - 1) else "train"].add(tokenizer.encode(text), len(text.encode()))
        if count % 1000 == 0:
            progress(count)
    progress(count)
    if count == 0:
        raise DataError(f'data.source = "{data.source}": the corpus is empty')
    write_tokenizer(paths, tokenizer)
    manifest = Manifest(
        source=source.identity() | {"documents": count, "heldout": data.heldout},
        tokenizer=data.tokenizer,
        tokenizer_fingerprint=tokenizer_fingerprint(tokenizer),
        vocab_size=tokenizer.vocab_size,
        itemsize=dtype.itemsize,
        end=tokenizer.end,
        splits={name: split.finish() for name, split in splits.items()},
    )
    dataclasses.replace(manifest, check=manifest.expected_check()).write(paths.manifest)


def is_heldout(key: int, fraction: float) -> Callable[[int], bool]:
    """Which documents are held out: a choice by number alone, so that it never depends on how many are read.

    The documents are cut into strata of 1 / fraction, and one of each is drawn. So the share is right within one
    document for any number read, and no rhythm of the corpus (every second line in another language, say) is caught.
    """
    share = round(fraction * 2**53)

    def first(stratum: int) -> int:
        return -(-(stratum << 53) // share)

    def held_out(index: int) -> bool:
        stratum = index * share >> 53
        begin, end = first(stratum), first(stratum + 1)
        return index == begin + derive(key, "stratum", stratum) % (end - begin)

    return held_out


class _SplitWriter:
    """Collects a split's documents and writes a shard whenever enough are there; a document never spans two."""

    def __init__(self, paths: StorePaths, name: str, dtype: np.dtype[np.unsignedinteger], end: int):
        self._paths, self._name, self._dtype = paths, name, dtype
        self._end = np.array([end], dtype=np.uint32)
        self._parts: list[NDArray[np.uint32]] = []
        self._ends: list[int] = []
        self._filled = 0
        self._text_bytes = 0
        self._shards: list[ShardEntry] = []

    def add(self, tokens: NDArray[np.uint32], text_bytes: int) -> None:
        self._parts += [tokens, self._end]
        self._filled += len(tokens) + 1
        self._ends.append(self._filled)
        self._text_bytes += text_bytes
        if self._filled >= SHARD_TOKENS:
            self._flush()

    def _flush(self) -> None:
        path = self._paths.shard(self._name, len(self._shards))
        tokens = np.concatenate(self._parts).astype(self._dtype)
        seal = write_shard(path, tokens, np.array(self._ends, dtype=np.uint64))
        size = path.stat().st_size
        entry = ShardEntry(name=path.name, tokens=len(tokens), documents=len(self._ends), bytes=size, seal=seal)
        self._shards.append(entry)
        self._parts, self._ends, self._filled = [], [], 0

    def finish(self) -> SplitEntry:
        if self._filled:
            self._flush()
        return SplitEntry(
            tokens=sum(shard.tokens for shard in self._shards),
            documents=sum(shard.documents for shard in self._shards),
            text_bytes=self._text_bytes,
            shards=tuple(self._shards),
        )


def measure_density(source: Source, data: Data, documents: int = 1000) -> Density:
    """Tokens and bytes of the first `documents` documents, and the time it takes `prepare` to turn them into tokens.

    Words beyond the tokenizer's N count as one token each either way, so the sample needs no fitted vocabulary.
    """

    def texts() -> Iterator[str]:
        return itertools.islice(source.documents(), documents)

    started = time.perf_counter()
    tokenizer = fit_tokenizer(data.tokenizer, texts())
    count = tokens = text_bytes = 0
    for count, text in enumerate(texts(), start=1):
        tokens += len(tokenizer.encode(text)) + 1
        text_bytes += len(text.encode())
    seconds = time.perf_counter() - started
    if count == 0:
        raise DataError(f'data.source = "{data.source}": the corpus is empty')
    total = None if source.endless else count if count < documents else sum(1 for _ in source.documents())
    return Density(documents=count, text_bytes=text_bytes, tokens=tokens, seconds=seconds, total_documents=total)
