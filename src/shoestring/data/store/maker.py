"""Makes a store, or a part of it: the passes over its units, in order, and the manifest at the end."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import NamedTuple

from shoestring.core.errors import DataError, Fault, RecordError, StorageError
from shoestring.core.files import (
    remove,
)
from shoestring.core.reading import read_json, reading
from shoestring.core.sections import Data
from shoestring.data.read.corpora import FilePart
from shoestring.data.read.documents import Corpus, Skipped, parts_of
from shoestring.data.store.map_stage import (
    SPLITS,
    Job,
    UnitEntry,
    batches,
    count_documents,
    merged_ledger,
    resolve_duplicates,
    run_pass,
)
from shoestring.data.store.pool import start_pool
from shoestring.data.store.sizes import stored_ids, token_bytes
from shoestring.data.store.store import (
    ExtentEntry,
    Manifest,
    ShardEntry,
    SplitEntry,
    StorePaths,
    write_tokenizer,
)
from shoestring.data.store.work_units import ROWS_OF_A_UNIT, UNIT_BYTES, Extent, Piece, Unit, lay_out, limited
from shoestring.data.tokenize.tokenizers import (
    Tokenizer,
    WordTokenizer,
    fit_tokenizer,
    open_tokenizer,
    read_tokenizer,
    tokenizer_fingerprint,
)

VOCABULARY_BYTES = 1 << 26
"""A tokenizer is fitted to about this much of a corpus at most, so that it stays when a store is extended."""

FITTED_STORIES = 1 << 9
"""Of an endless corpus, from its start: they have all words of the built-in stories."""
FITTED_EACH, FITTED_TEXT = 1 << 11, 1 << 24
"""Characters of text for each piece that is fitted, and at most. Fitted to all 7.4 MB of stories, 2,048 pieces write
them in 0.1 % fewer tokens than fitted to 4 MB."""
FITTED_WORDS = 1 << 9
"""Bytes of different words for each piece. 4,096 pieces are fitted to so much Japanese in 3 s on two cores, to 13 MB of
it in 24, and then write it in 2.5 % fewer tokens."""

Progress = Callable[[int], None]
"""Called with the number of documents written so far."""


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


@dataclass
class Maker:
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
        data, prompts = self.data, self.data.pair is not None
        self.job = Job(folder=self.paths.folder, heldout=data.heldout, unique=data.unique, prompts=prompts)

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
        """Write the tokenizer, unless the store has it; one is fitted to the first extents. False: not yet."""
        spec = self.data.tokenizer
        if self.paths.manifest.is_file():
            return True
        if spec.fitted is None:
            write_tokenizer(self.paths.tokenizer, open_tokenizer(spec, self.data.end))
            return True
        if self.source.endless:
            write_tokenizer(self.paths.tokenizer, fit_tokenizer(spec, self._first_texts()))
            return True
        read = [
            extent for extent, before in zip(extents, [0.0, *(e.share for e in extents)]) if not self._enough(before)
        ]
        units = _units_of(read)
        if not (self._find_duplicates(read) if spec.words is None else self._write("words", read, read)):
            return False
        tokenizer = self._count_words(spec.words, units) if spec.words is not None else self._fit(spec.fitted, units)
        write_tokenizer(self.paths.tokenizer, tokenizer)
        return True

    def _first_texts(self) -> Iterator[str]:
        """Of an endless corpus what a tokenizer is fitted to, however much of it is read: so that all runs on it have
        the same ids, and one can go on from another."""
        unit = Unit(0, (Piece(self.source.parts[0], 0, FITTED_STORIES),))
        for batch in batches(dataclasses.replace(self.job, unique=False), unit, Skipped()):
            yield from parts_of(batch.split(held_out=False))

    def _enough(self, share: float) -> bool:
        """Whether this share of the corpus is enough to count words on."""
        sizes = [part.size for part in self.source.parts]
        return (
            bool(share) and sum(size or 0 for size in sizes) * share * bytes_per_size(self.source) >= VOCABULARY_BYTES
        )

    def _write(self, name: str, extents: Sequence[Extent], before: Sequence[Extent]) -> bool:
        """Make a pass over extents, the last of those `before`, in which duplicates are found. False: not yet whole."""
        return self._find_duplicates(before) and self._run(name, _units_of(extents))

    def _find_duplicates(self, extents: Sequence[Extent]) -> bool:
        """Find the duplicates in these extents, where they are left out. False: not yet."""
        if self.data.unique:
            if not self._run("hash", _units_of(extents)):
                return False
            resolve_duplicates(self.job, _units_of(extents))
        return True

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
            self.pool = start_pool(self.processes)
        try:
            for future in as_completed([self.pool.submit(run_pass, name, self.job, unit) for unit in units]):
                finished(future.result())
        except (BrokenProcessPool, EOFError, ConnectionError) as cause:  # the last two where the pool's server died
            raise Fault(f"a process that prepared {self.paths.folder} died; run the same command again") from cause

    def _count_words(self, words: int, units: Sequence[Unit]) -> Tokenizer:
        counts: Counter[str] = Counter()
        for unit in units:
            path = self.job.result("words", unit.number)
            with reading(path):
                counts.update(dict(zip(*read_json(path), strict=True)))
        return WordTokenizer.of_counts(words, counts)

    def _fit(self, pieces: int, units: Sequence[Unit]) -> Tokenizer:
        """The tokenizer of so many pieces, by as much training text of every unit."""
        from shoestring.data.tokenize.pieces import first_of, fit_pieces

        def texts(unit: Unit) -> Iterator[str]:
            for batch in batches(self.job, unit, Skipped()):
                yield from parts_of(batch.split(held_out=False))

        most = min(FITTED_TEXT, FITTED_EACH * pieces) // len(units), FITTED_WORDS * pieces // len(units)
        return fit_pieces(pieces, (text for unit in units for text in first_of(texts(unit), *most)))

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
            itemsize=token_bytes(stored_ids(tokenizer.vocab_size, self.job.prompts)),
            end=tokenizer.end,
            splits=splits,
            prompts=self.job.prompts,
            ledger=merged_ledger([entry for _, entries in every[:read] for entry in entries]),
        )
        dataclasses.replace(manifest, check=manifest.expected_check()).write(self.paths.manifest)
        clear(self.paths)


def _units_of(extents: Sequence[Extent]) -> list[Unit]:
    return [unit for extent in extents for unit in extent.units]


def bytes_per_size(source: Corpus) -> float:
    """About how many bytes of text there are per unit of size: a byte of a file, or a row."""
    return 1.0 if isinstance(source.parts[0], FilePart) else UNIT_BYTES / ROWS_OF_A_UNIT


def clear(paths: StorePaths) -> None:
    """Remove what a store does not need: the results of passes, unless the store can be extended."""
    with contextlib.suppress(RecordError):
        extents = Manifest.read(paths.manifest).splits["train"].extents
        if not extents or extents[-1].share >= 1:
            remove(paths.work)
    paths.sweep()
