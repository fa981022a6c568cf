"""From a corpus to a token store: passes over its units, side by side, then the manifest.

What is written depends on the corpus, the tokenizer and the seed alone: not on how many processes or machines write it,
and not on how often they were killed.
"""

from __future__ import annotations

import dataclasses
import math
import multiprocessing
import os
import re
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from shoestring.core.errors import DataError, Fault, StorageError
from shoestring.core.facts import START_SECONDS, Density
from shoestring.core.files import folder_bytes, free_bytes, locked
from shoestring.core.recipe import Data, fingerprint
from shoestring.core.units import Bytes
from shoestring.data.corpora import Corpus
from shoestring.data.density import measure_density
from shoestring.data.passes import (
    SPLITS,
    WORK,
    Job,
    UnitEntry,
    count_documents,
    merged_ledger,
    read_json,
    resolve_duplicates,
    run_pass,
)
from shoestring.data.shards import dtype_for
from shoestring.data.sizes import estimate_bytes as estimate_bytes
from shoestring.data.sources import open_source
from shoestring.data.store import Manifest, SplitEntry, Store, StorePaths, write_tokenizer
from shoestring.data.tokenizers import (
    Tokenizer,
    WordTokenizer,
    open_tokenizer,
    tokenizer_fingerprint,
    tokenizer_identity,
    words_in,
)
from shoestring.data.units import UNIT_BYTES, Unit, divide, limited

_FORMAT = 2

Progress = Callable[[int], None]
"""Called with the number of documents written so far."""


def store_folder(data: Data, seed: int, documents: int | None, source: Corpus | None = None) -> Path:
    """Where the store of these documents belongs: another source, tokenizer, seed or count has another folder."""
    source = source or open_source(data, seed)
    tokenizer = tokenizer_identity(data.tokenizer, data.end)
    identity = [_FORMAT, source.identity(), tokenizer, documents, data.heldout, seed, data.unique]
    label = f"{Path(data.source).name.split('.')[0]}-{Path(data.tokenizer).name.split('.')[0]}"
    name = re.sub(r"[^A-Za-z0-9]+", "-", label).strip("-")
    return Path(data.folder) / f"{name}-{fingerprint(identity)[:8]}"


def prepare(
    data: Data,
    seed: int,
    documents: int | None,
    progress: Progress = lambda _: None,
    part: tuple[int, int] = (0, 1),
    processes: int | None = None,
) -> Store | None:
    """The store for the first `documents` documents (None: all), made if it is not there yet.

    Part i of n makes every n-th unit; None is returned where other parts are missing before it can go on.
    """
    source = open_source(data, seed)
    if documents is None and source.endless:
        raise DataError(
            f'data.source = "{data.source}" has no end; give data.documents, or plan first: shoestring plan RECIPE'
        )
    paths = StorePaths(store_folder(data, seed, documents, source))
    if paths.manifest.is_file():
        _clear(paths)
    else:
        alone = _check_room(paths.folder, source, data, seed, documents)
        processes = processes or _worth(alone)
        with locked(paths.lock(part), f"the store {paths.folder}"):
            making = _Making(paths, source, data, seed, documents, progress, part, processes)
            if not paths.manifest.is_file() and not making.make():
                return None
    return Store(paths.folder, data.tokenizer)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _worth(alone: float | None) -> int:
    """Processes for what takes one of them so many seconds; None: nobody knows."""
    cores = _cores()
    return 1 if alone is not None and alone - alone / _together(cores) < START_SECONDS else cores


def _together(processes: int) -> float:
    """How many times as fast as one alone so many are: they share memory, and the clocks and parts of cores. Seen on
    two cores: 2.0, on sixteen of another machine: 10.7."""
    return float(processes**0.85)


def _passes(data: Data) -> int:
    return 1 + data.unique + (words_in(data.tokenizer) is not None)


def with_all_passes(density: Density, data: Data, cores: int | None = None) -> Density:
    """A sample that one process has read and tokenized once, with the seconds of all passes, units side by side.

    A corpus without end has a unit for every core; of another, the text tells about how many there are.
    """
    alone, processes = density.seconds * _passes(data), cores or _cores()
    if density.total_documents is not None:
        text_bytes = density.total_documents * density.text_bytes / density.documents
        processes = min(processes, max(1, math.ceil(text_bytes / UNIT_BYTES)))
    together = alone / _together(processes)
    return dataclasses.replace(density, seconds=together, alone_seconds=alone if processes > 1 else None)


def _check_room(folder: Path, source: Corpus, data: Data, seed: int, documents: int | None) -> float | None:
    """Refuse at once when the disk cannot hold the store, rather than after an hour.

    Returns the seconds that one process would take for all of it, where that can be told.
    """
    density = measure_density(source, data, seed, sample_bytes=1 << 20)
    limits = [count for count in (documents, density.total_documents) if count is not None]
    if not limits:
        return None
    total = min(limits)
    written = folder_bytes(folder) if folder.is_dir() else 0
    needed = estimate_bytes(density.tokens_per_document * total, total, data) - written
    free = free_bytes(folder)
    if needed > free:
        raise StorageError(
            f"cannot prepare {total:,} documents in {folder}: they need about {Bytes(needed).short()}, and "
            f"{Bytes(free).short()} are free; choose another data.folder or fewer data.documents"
        )
    return density.seconds / density.documents * total * _passes(data)


class _Making:
    """One process' share of making a store."""

    def __init__(
        self,
        paths: StorePaths,
        source: Corpus,
        data: Data,
        seed: int,
        documents: int | None,
        progress: Progress,
        part: tuple[int, int],
        processes: int,
    ):
        self._paths, self._source, self._data, self._documents = paths, source, data, documents
        self._progress, self._part = progress, part
        self._processes = processes
        self._pool: ProcessPoolExecutor | None = None
        self._job = Job(folder=paths.folder, seed=seed, heldout=data.heldout, unique=data.unique)

    def make(self) -> bool:
        """Whether the store is whole; otherwise other parts must be made first."""
        try:
            whole = self._make()
        except StorageError:  # whoever writes the manifest takes the results away
            if not self._paths.manifest.is_file():
                raise
            return True
        finally:
            if self._pool is not None:
                self._pool.shutdown(cancel_futures=True)
        return whole or self._paths.manifest.is_file()

    def _make(self) -> bool:
        units = divide(self._source, self._documents)
        if self._documents is not None and not self._source.endless:
            units = limited(units, count_documents(self._job, units, self._documents), self._documents)
        if self._data.unique:
            if not self._run("hash", units):
                return False
            resolve_duplicates(self._job, units)
        words = words_in(self._data.tokenizer)
        if words is not None and not self._run("words", units):
            return False
        tokenizer = self._vocabulary(words, units) if words is not None else self._given()
        write_tokenizer(self._paths, tokenizer)
        if not self._run("tokens", units, self._progress):
            return False
        self._finish(tokenizer, [UnitEntry.read(self._job.result("tokens", unit.number)) for unit in units])
        return True

    def _run(self, name: str, units: Sequence[Unit], progress: Progress = lambda _: None) -> bool:
        """The results of a pass that are missing; False if those of other parts still are."""
        mine = [unit for unit in units if unit.number % self._part[1] == self._part[0]]
        missing = [unit for unit in mine if not self._job.result(name, unit.number).is_file()]
        counted, waiting = name == "tokens", {unit.number for unit in missing}
        known = [unit.number for unit in mine if counted and unit.number not in waiting]
        documents = sum(map(self._documents_of, known))

        def finished(unit: int) -> None:
            nonlocal documents
            if counted:
                documents += self._documents_of(unit)
                progress(documents)

        if min(self._processes, len(missing)) <= 1:
            for unit in missing:
                finished(run_pass(name, self._job, unit))
        else:
            self._side_by_side(name, missing, finished)
        return all(self._job.result(name, unit.number).is_file() for unit in units)

    def _documents_of(self, unit: int) -> int:
        entry = UnitEntry.read(self._job.result("tokens", unit))
        return sum(split.documents for split in entry.splits.values())

    def _side_by_side(self, name: str, units: Sequence[Unit], finished: Callable[[int], None]) -> None:
        """By processes that serve all passes: to start them takes longer than a small pass. Each is started when there
        is a unit for it."""
        if self._pool is None:
            self._pool = _start(self._processes)
        try:
            for future in as_completed([self._pool.submit(run_pass, name, self._job, unit) for unit in units]):
                finished(future.result())
        except BrokenProcessPool as cause:
            raise Fault(f"a process that prepared {self._paths.folder} died; run the same command again") from cause

    def _vocabulary(self, words: int, units: Sequence[Unit]) -> Tokenizer:
        counts: Counter[str] = Counter()
        for unit in units:
            counts.update(dict(zip(*read_json(self._job.result("words", unit.number)), strict=True)))
        return WordTokenizer.of_counts(words, counts)

    def _given(self) -> Tokenizer:
        return open_tokenizer(self._data.tokenizer, self._data.end)

    def _finish(self, tokenizer: Tokenizer, entries: Sequence[UnitEntry]) -> None:
        splits = {name: _joined([entry.splits[name] for entry in entries]) for name in SPLITS}
        count = sum(split.documents for split in splits.values())
        if count == 0:
            raise DataError(f'data.source = "{self._data.source}": the corpus is empty')
        manifest = Manifest(
            source=self._source.identity() | {"documents": count, "heldout": self._data.heldout},
            tokenizer=self._data.tokenizer,
            tokenizer_fingerprint=tokenizer_fingerprint(tokenizer),
            vocab_size=tokenizer.vocab_size,
            itemsize=dtype_for(tokenizer.vocab_size).itemsize,
            end=tokenizer.end,
            splits=splits,
            ledger=merged_ledger(entries),
        )
        dataclasses.replace(manifest, check=manifest.expected_check()).write(self._paths.manifest)
        _clear(self._paths, self._paths.lock(self._part))


def _clear(paths: StorePaths, own: Path | None = None) -> None:
    """Remove what a whole store has no use for."""
    shutil.rmtree(paths.folder / WORK, ignore_errors=True)
    paths.remove_leftovers(own)


def _joined(entries: Sequence[SplitEntry]) -> SplitEntry:
    return SplitEntry(
        tokens=sum(entry.tokens for entry in entries),
        documents=sum(entry.documents for entry in entries),
        text_bytes=sum(entry.text_bytes for entry in entries),
        shards=tuple(shard for entry in entries for shard in entry.shards),
    )


def _start(processes: int) -> ProcessPoolExecutor:
    """Copies of one process that has loaded what all of them need."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["shoestring.data.passes", "shoestring.data.fast_words"])
    return ProcessPoolExecutor(processes, mp_context=context, initializer=_begin)


def _begin() -> None:
    """In each of several processes: one core each, also for libraries that take all there are; and none outlives the
    one that started it, however that ends."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_watch, daemon=True).start()


def _watch() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
