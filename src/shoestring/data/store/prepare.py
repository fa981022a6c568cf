"""From a corpus to a token store: passes over its units in parallel, then the manifest.

The result depends on the corpus and the tokenizer alone: not on how many processes or machines write it, and
not on how often they were killed.
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
from dataclasses import dataclass
from pathlib import Path

from shoestring.core.errors import DataError, Fault, StorageError
from shoestring.core.files import folder_bytes, free_bytes, locked
from shoestring.core.recipe import Data, fingerprint
from shoestring.core.records import START_SECONDS, Density, Plan
from shoestring.core.units import Bytes
from shoestring.data.read.corpora import open_source
from shoestring.data.read.density import measure_density
from shoestring.data.read.documents import Corpus
from shoestring.data.store.map_stage import (
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
from shoestring.data.store.shards import dtype_for
from shoestring.data.store.sizes import estimate_bytes
from shoestring.data.store.store import Manifest, SplitEntry, Store, StorePaths, write_tokenizer
from shoestring.data.store.work_units import UNIT_BYTES, Unit, divide, limited
from shoestring.data.tokenize.tokenizers import (
    Tokenizer,
    WordTokenizer,
    open_tokenizer,
    tokenizer_fingerprint,
    tokenizer_identity,
)

_FORMAT = 2

Progress = Callable[[int], None]
"""Called with the number of documents written so far."""


def given_store(data: Data) -> Store | None:
    """The store that a recipe names in place of a corpus; None if it names a corpus."""
    return Store(Path(data.source.place)) if data.source.kind == "store" else None


def planned_documents(data: Data, plan: Plan | None) -> int | None:
    """How many documents are read; None: all."""
    if plan is not None and not plan.every_entry:
        return plan.entries
    return None if data.documents is None else int(data.documents)


def store_folder(data: Data, seed: int, documents: int | None, source: Corpus | None = None) -> Path:
    """The folder of the store of these documents; it depends on the source, the tokenizer and the count.

    The seed matters to the stories alone, so runs of other corpora that differ in their seed share a store.
    """
    source = source or open_source(data, seed)
    tokenizer = tokenizer_identity(data.tokenizer, data.end)
    identity = [_FORMAT, source.identity(), tokenizer, documents, data.heldout, data.unique]
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
    """The store of the first `documents` documents (None: all), made if it does not exist yet.

    Part i of n makes every n-th unit. Returns None if it cannot continue before other parts are made.
    """
    source = open_source(data, seed)
    if documents is None and source.endless:
        raise DataError(
            f'data.source = "{data.source}" has no end; set data.documents, or plan first: shoestring plan RECIPE'
        )
    paths = StorePaths(store_folder(data, seed, documents, source))
    if paths.manifest.is_file():
        _clear(paths)
    else:
        alone = _check_room(paths.folder, source, data, seed, documents)
        processes = processes or _worth(alone)
        with locked(paths.lock(part), f"the store {paths.folder}"):
            maker = _Maker(paths, source, data, documents, progress, part, processes)
            if not paths.manifest.is_file() and not maker.make():
                return None
    return Store(paths.folder, data.tokenizer)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _worth(alone: float | None) -> int:
    """How many processes to use for work that takes one process `alone` seconds; None: unknown."""
    cores = _cores()
    return 1 if alone is not None and alone - alone / _together(cores) < START_SECONDS else cores


def _together(processes: int) -> float:
    """The speed-up by so many processes, which share memory bandwidth; measured: 2.0 on 2 cores, 10.7 on 16."""
    return float(processes**0.85)


def _passes(data: Data) -> int:
    return 1 + data.unique + (data.tokenizer.words is not None)


def with_all_passes(density: Density, data: Data, cores: int | None = None) -> Density:
    """The density of a sample that one process read and tokenized once, with the seconds of all passes in parallel.

    An endless corpus has a unit for every core; the number of units of another is estimated from its text.
    """
    alone, processes = density.seconds * _passes(data), cores or _cores()
    if density.total_documents is not None:
        text_bytes = density.total_documents * density.text_bytes / density.documents
        processes = min(processes, max(1, math.ceil(text_bytes / UNIT_BYTES)))
    together = alone / _together(processes)
    return dataclasses.replace(density, seconds=together, alone_seconds=alone if processes > 1 else None)


def _check_room(folder: Path, source: Corpus, data: Data, seed: int, documents: int | None) -> float | None:
    """Raise StorageError now if the disk cannot hold the store, rather than after an hour.

    Returns the seconds that one process would take for the whole store, if known.
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


@dataclass
class _Maker:
    """Makes one part of a store."""

    paths: StorePaths
    source: Corpus
    data: Data
    documents: int | None
    progress: Progress
    part: tuple[int, int]
    processes: int
    pool: ProcessPoolExecutor | None = None

    def __post_init__(self) -> None:
        data = self.data
        self.job = Job(folder=self.paths.folder, heldout=data.heldout, unique=data.unique)

    def make(self) -> bool:
        """Make what is missing. Returns whether the store is complete; if not, other parts must be made first."""
        try:
            whole = self._make()
        except StorageError:  # the process that writes the manifest removes the results of the passes
            if not self.paths.manifest.is_file():
                raise
            return True
        finally:
            if self.pool is not None:
                self.pool.shutdown(cancel_futures=True)
        return whole or self.paths.manifest.is_file()

    def _make(self) -> bool:
        units = divide(self.source, self.documents)
        if self.documents is not None and not self.source.endless:
            units = limited(units, count_documents(self.job, units, self.documents), self.documents)
        if self.data.unique:
            if not self._run("hash", units):
                return False
            resolve_duplicates(self.job, units)
        words = self.data.tokenizer.words
        if words is not None and not self._run("words", units):
            return False
        tokenizer = self._count_words(words, units) if words else open_tokenizer(self.data.tokenizer, self.data.end)
        write_tokenizer(self.paths.tokenizer, tokenizer)
        if not self._run("tokens", units):
            return False
        self._finish(tokenizer, [UnitEntry.read(self.job.result("tokens", unit.number)) for unit in units])
        return True

    def _run(self, name: str, units: Sequence[Unit]) -> bool:
        """Make the missing results of a pass; returns False if those of other parts are still missing."""
        mine = [unit for unit in units if unit.number % self.part[1] == self.part[0]]
        missing = [unit for unit in mine if not self.job.result(name, unit.number).is_file()]
        counted, waiting = name == "tokens", {unit.number for unit in missing}
        known = [unit.number for unit in mine if counted and unit.number not in waiting]
        documents = sum(map(self._documents_of, known))

        def finished(unit: int) -> None:
            nonlocal documents
            if counted:
                documents += self._documents_of(unit)
                self.progress(documents)

        if min(self.processes, len(missing)) <= 1:
            for unit in missing:
                finished(run_pass(name, self.job, unit))
        else:
            self._run_in_parallel(name, missing, finished)
        return all(self.job.result(name, unit.number).is_file() for unit in units)

    def _documents_of(self, unit: int) -> int:
        entry = UnitEntry.read(self.job.result("tokens", unit))
        return sum(split.documents for split in entry.splits.values())

    def _run_in_parallel(self, name: str, units: Sequence[Unit], finished: Callable[[int], None]) -> None:
        """Run a pass in a pool that serves all passes, since starting it takes longer than a small pass."""
        if self.pool is None:
            self.pool = _start(self.processes)
        try:
            for future in as_completed([self.pool.submit(run_pass, name, self.job, unit) for unit in units]):
                finished(future.result())
        except BrokenProcessPool as cause:
            raise Fault(f"a process that prepared {self.paths.folder} died; run the same command again") from cause

    def _count_words(self, words: int, units: Sequence[Unit]) -> Tokenizer:
        counts: Counter[str] = Counter()
        for unit in units:
            counts.update(dict(zip(*read_json(self.job.result("words", unit.number)), strict=True)))
        return WordTokenizer.of_counts(words, counts)

    def _finish(self, tokenizer: Tokenizer, entries: Sequence[UnitEntry]) -> None:
        splits = {}
        for name in SPLITS:
            parts = [entry.splits[name] for entry in entries]
            shards = [shard for part in parts for shard in part.shards]
            splits[name] = SplitEntry.of(shards, sum(part.text_bytes for part in parts))
        count = sum(split.documents for split in splits.values())
        if count == 0:
            raise DataError(f'data.source = "{self.data.source}": the corpus is empty')
        manifest = Manifest(
            source=self.source.identity() | {"documents": count, "heldout": self.data.heldout},
            tokenizer=self.data.tokenizer,
            tokenizer_fingerprint=tokenizer_fingerprint(tokenizer),
            vocab_size=tokenizer.vocab_size,
            itemsize=dtype_for(tokenizer.vocab_size).itemsize,
            end=tokenizer.end,
            splits=splits,
            ledger=merged_ledger(entries),
        )
        dataclasses.replace(manifest, check=manifest.expected_check()).write(self.paths.manifest)
        _clear(self.paths, self.paths.lock(self.part))


def _clear(paths: StorePaths, own: Path | None = None) -> None:
    """Remove what a complete store does not need."""
    shutil.rmtree(paths.folder / WORK, ignore_errors=True)
    paths.remove_leftovers(own)


def _start(processes: int) -> ProcessPoolExecutor:
    """A pool of processes forked from one that has loaded the modules they need."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["shoestring.data.store.map_stage", "shoestring.data.tokenize.fast_words"])
    return ProcessPoolExecutor(processes, mp_context=context, initializer=_begin)


def _begin() -> None:
    """Set up a process of the pool: one core for the tokenizers library too, and exit when the parent dies."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_watch, daemon=True).start()


def _watch() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
