"""From a corpus to a token store: passes over its units in parallel, then the manifest.

The result depends on the corpus and the tokenizer alone: not on how many processes or machines write it, and
not on how often they were killed.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import math
import multiprocessing
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from shoestring.core.errors import DataError, Fault, RecordError, StorageError
from shoestring.core.files import (
    drop_lock,
    folder_bytes,
    free_bytes,
    locked,
    remove,
    temporary_files,
    temporary_folder,
)
from shoestring.core.reading import read_json, reading
from shoestring.core.recipe import Data, Recipe, fingerprint
from shoestring.core.records import START_SECONDS, Density, Plan
from shoestring.core.units import Bytes, counted
from shoestring.data.read.corpora import FilePart, open_source
from shoestring.data.read.density import measure_density
from shoestring.data.read.documents import Corpus
from shoestring.data.store.map_stage import (
    SPLITS,
    Job,
    UnitEntry,
    count_documents,
    merged_ledger,
    resolve_duplicates,
    run_pass,
)
from shoestring.data.store.shards import dtype_for
from shoestring.data.store.sizes import estimate_bytes
from shoestring.data.store.store import (
    ExtentEntry,
    Manifest,
    ShardEntry,
    SplitEntry,
    Store,
    StorePaths,
    write_tokenizer,
)
from shoestring.data.store.work_units import ROWS_OF_A_UNIT, UNIT_BYTES, Extent, Unit, lay_out, limited
from shoestring.data.tokenize.tokenizers import (
    Tokenizer,
    WordTokenizer,
    open_tokenizer,
    read_tokenizer,
    tokenizer_fingerprint,
    tokenizer_identity,
)

_FORMAT = 3
VOCABULARY_BYTES = 1 << 26
"""A vocabulary of words is counted on about this much of a corpus, so that it stays when a store is extended."""

Progress = Callable[[int], None]
"""Called with the number of documents written so far."""


def given_store(data: Data) -> Store | None:
    """The store that a recipe names in place of a corpus; None if it names a corpus."""
    return Store(Path(data.source.place)) if data.source.kind == "store" else None


def planned_documents(data: Data, plan: Plan | None) -> int | None:
    """How many documents the store of a plan is limited to; None: none is left out, though not all may be read yet."""
    if plan is not None and plan.share is None and not plan.every_entry:
        return plan.entries
    return None if data.documents is None else int(data.documents)


def scored_tokens(recipe: Recipe) -> int:
    """Held-out tokens that suffice for the scored rows, however they are packed; none if other text is scored."""
    return 0 if recipe.data.validation is not None else recipe.evaluate.rows * (recipe.data.length + 1)


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
    share: float | None = None,
    heldout_tokens: int = 0,
) -> Store | None:
    """The store of `documents` documents (None: all), drawn over the corpus; what is missing of it is made.

    It holds at least a `share` of the corpus for training (None: all of it), and more of it for held-out documents, if
    these would have fewer than `heldout_tokens` tokens. Part i of n makes every n-th unit. Returns None if it cannot
    continue before other parts are made.
    """
    source = open_source(data, seed)
    if documents is None and source.endless:
        raise DataError(
            f'data.source = "{data.source}" has no end; set data.documents, or plan first: shoestring plan RECIPE'
        )
    paths = StorePaths(store_folder(data, seed, documents, source))
    wanted = Wanted(share, heldout_tokens)
    if wanted.is_in(paths):
        drop_lock(paths.lock(part))
        _clear(paths)
    else:
        alone = _check_room(paths.folder, source, data, seed, documents, share)
        processes = processes or _worth(alone)
        with locked(paths.lock(part), f"the store {paths.folder}"):
            paths.sweep()
            maker = _Maker(paths, source, data, documents, progress, part, processes, wanted)
            if not wanted.is_in(paths) and not maker.make():
                return None
    return Store(paths.folder, data.tokenizer)


class Wanted(NamedTuple):
    """What a store must hold."""

    share: float | None = None
    """Of the corpus, for training; None: all."""
    heldout_tokens: int = 0

    def is_in(self, paths: StorePaths) -> bool:
        """Whether a store holds it; damaged ones are left to whoever opens them."""
        if not paths.manifest.is_file():
            return False
        try:
            splits = Manifest.read(paths.manifest).splits
        except RecordError:
            return True
        train, held_out = (splits[name].extents for name in SPLITS)
        if not train or train[-1].share >= 1:
            return True
        enough = splits["heldout"].tokens >= self.heldout_tokens or held_out[-1].share >= 1
        return self.share is not None and train[-1].share >= self.share and enough


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


def _check_room(
    folder: Path, source: Corpus, data: Data, seed: int, documents: int | None, share: float | None = None
) -> float | None:
    """Raise StorageError now if the disk cannot hold the store, rather than after an hour.

    Returns the seconds that one process would take for the whole store, if known.
    """
    density = measure_density(source, data, seed, sample_bytes=1 << 20)
    limits = [count for count in (documents, density.total_documents) if count is not None]
    if not limits:
        return None
    total = math.ceil(min(limits) * (1.0 if share is None else share))
    written = folder_bytes(folder) if folder.is_dir() else 0
    needed = estimate_bytes(density.tokens_per_document * total, total, data) - written
    free = free_bytes(folder)
    if needed > free:
        raise StorageError(
            f"cannot prepare {counted(total, 'document')} in {folder}: they need about {Bytes(needed).short()}, and "
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
    wanted: Wanted = Wanted()
    pool: ProcessPoolExecutor | None = None

    def __post_init__(self) -> None:
        data = self.data
        self.job = Job(folder=self.paths.folder, heldout=data.heldout, unique=data.unique)

    def make(self) -> bool:
        """Make what is missing. Returns whether the store is complete; if not, other parts must be made first."""
        try:
            whole = self._make()
        except StorageError:  # the process that writes the manifest removes the results of the passes
            if not self.wanted.is_in(self.paths):
                raise
            return True
        finally:
            if self.pool is not None:
                self.pool.shutdown(cancel_futures=True)
        return whole or self.wanted.is_in(self.paths)

    def _make(self) -> bool:
        extents = self._lay_out()
        read = self._extents_read(extents)
        if not self._make_tokenizer(extents) or not self._write("tokens", extents[:read], extents[:read]):
            return False
        held = read
        while held < len(extents) and self._heldout_tokens(extents[:held]) < self.wanted.heldout_tokens:
            some = self._more(extents, held)
            if not self._write("heldout", extents[held:some], extents[:some]):
                return False
            held = some
        self._finish(extents, read, held)
        return True

    def _lay_out(self) -> list[Extent]:
        extents = lay_out(self.source, self.documents)
        if self.documents is not None and not self.source.endless:
            units = extents[0].units
            counts = count_documents(self.job, units, self.documents)
            if len(counts) == len(units) and sum(counts) <= self.documents:
                return lay_out(self.source, None)
            return [Extent(tuple(limited(units, counts, self.documents)), 1.0)]
        return extents

    def _extents_read(self, extents: Sequence[Extent]) -> int:
        """How many extents hold the wanted share, or were read before."""
        share = math.inf if self.wanted.share is None else self.wanted.share
        before = 0.0
        if self.paths.manifest.is_file():
            before = Manifest.read(self.paths.manifest).splits["train"].extents[-1].share
        return min(len(extents), 1 + sum(extent.share < max(share, before) for extent in extents))

    def _make_tokenizer(self, extents: Sequence[Extent]) -> bool:
        """Write the tokenizer, unless the store has it; words are counted on the first extents. False: not yet."""
        words = self.data.tokenizer.words
        if self.paths.manifest.is_file():
            return True
        if words is None:
            write_tokenizer(self.paths.tokenizer, open_tokenizer(self.data.tokenizer, self.data.end))
            return True
        counted = [
            extent for extent, before in zip(extents, [0.0, *(e.share for e in extents)]) if not self._enough(before)
        ]
        if not self._write("words", counted, counted):
            return False
        write_tokenizer(self.paths.tokenizer, self._count_words(words, _units_of(counted)))
        return True

    def _enough(self, share: float) -> bool:
        """Whether this share of the corpus is enough to count words on."""
        sizes = [part.size for part in self.source.parts]
        return (
            bool(share) and sum(size or 0 for size in sizes) * share * _bytes_per_size(self.source) >= VOCABULARY_BYTES
        )

    def _write(self, name: str, extents: Sequence[Extent], before: Sequence[Extent]) -> bool:
        """Make a pass over extents, the last of those `before`, in which duplicates are found. False: not yet whole."""
        if self.data.unique:
            if not self._run("hash", _units_of(before)):
                return False
            resolve_duplicates(self.job, _units_of(before))
        return self._run(name, _units_of(extents))

    def _entries(self, extent: Extent) -> list[UnitEntry]:
        found = []
        for unit in extent.units:
            both = self.job.result("tokens", unit.number)
            found.append(UnitEntry.read(both if both.is_file() else self.job.result("heldout", unit.number)))
        return found

    def _heldout_tokens(self, extents: Sequence[Extent]) -> int:
        return sum(entry.splits["heldout"].tokens for extent in extents for entry in self._entries(extent))

    def _more(self, extents: Sequence[Extent], held: int) -> int:
        """How many extents probably hold the wanted held-out tokens; at least one more than `held`."""
        tokens = max(1, self._heldout_tokens(extents[:held]))
        share = extents[held - 1].share * self.wanted.heldout_tokens / tokens
        return max(held + 1, min(len(extents), 1 + sum(extent.share < share for extent in extents)))

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
            path = self.job.result("words", unit.number)
            with reading(path):
                counts.update(dict(zip(*read_json(path), strict=True)))
        return WordTokenizer.of_counts(words, counts)

    def _finish(self, extents: Sequence[Extent], read: int, held: int) -> None:
        tokenizer = read_tokenizer(self.paths.tokenizer)
        every = [(extent.share, self._entries(extent)) for extent in extents[:held]]
        splits = {}
        for name, number in zip(SPLITS, (read, held), strict=True):
            shards: list[ShardEntry] = []
            found = []
            for share, entries in every[:number]:
                parts = [entry.splits[name] for entry in entries]
                more = [shard for part in parts for shard in part.shards]
                text_bytes = sum(part.text_bytes for part in parts)
                found.append(ExtentEntry(shards=len(more), text_bytes=text_bytes, share=share))
                shards += more
            divided = found if len(extents) > 1 else []
            splits[name] = SplitEntry.of(shards, sum(extent.text_bytes for extent in found), divided)
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
            ledger=merged_ledger([entry for _, entries in every[:read] for entry in entries]),
        )
        dataclasses.replace(manifest, check=manifest.expected_check()).write(self.paths.manifest)
        _clear(self.paths)


def _units_of(extents: Sequence[Extent]) -> list[Unit]:
    return [unit for extent in extents for unit in extent.units]


def _bytes_per_size(source: Corpus) -> float:
    """About how many bytes of text there are per unit of size: a byte of a file, or a row."""
    return 1.0 if isinstance(source.parts[0], FilePart) else UNIT_BYTES / ROWS_OF_A_UNIT


def _clear(paths: StorePaths) -> None:
    """Remove what a store does not need: the results of passes, unless the store can be extended."""
    with contextlib.suppress(RecordError):
        extents = Manifest.read(paths.manifest).splits["train"].extents
        if not extents or extents[-1].share >= 1:
            remove(paths.work)
    paths.sweep()


def _start(processes: int) -> ProcessPoolExecutor:
    """A pool of processes forked from one that has loaded the modules they need."""
    _sweepable_sockets()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["shoestring.data.store.map_stage", "shoestring.data.tokenize.fast_words"])
    return ProcessPoolExecutor(processes, mp_context=context, initializer=_begin)


@functools.cache
def _sweepable_sockets() -> None:
    """Have the sockets of pools in a folder that is swept after a kill; multiprocessing's own would stay for ever."""
    config = getattr(multiprocessing.current_process(), "_config", {})
    if config.get("tempdir") is None:
        folder = temporary_folder(temporary_files())
        config["tempdir"] = str(folder.__enter__())
        atexit.register(folder.__exit__, None, None, None)


def _begin() -> None:
    """Set up a process of the pool: one core for the tokenizers library too, and exit when the parent dies."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_watch, daemon=True).start()


def _watch() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
