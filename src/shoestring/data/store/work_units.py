"""A corpus divided into units of work, independent of the number of processes.

A unit is some tens of megabytes: slices of plain files, some documents of a compressed one, many small files, or a
range of stories. Its shards are made from it alone, so units can be processed in any order, on any machine, and again
after a crash.

A corpus is cut into small blocks, and their order is a permutation that the corpus alone determines. The blocks are
joined to extents along this order, each about an eighth of all before it; a small corpus is one extent. So every
extent is drawn over the whole corpus, and a store of its first extents can be extended: whatever a run reads, documents
and their units stay the same.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from shoestring.core.seeds import derive
from shoestring.data.pack.order import permute
from shoestring.data.read.corpora import BLOCK_BYTES, FilePart
from shoestring.data.read.documents import Corpus, Document, Part, Skipped

UNIT_BYTES = 1 << 25
UNIT_STORIES = 1 << 14
ROWS_OF_A_UNIT = 100_000
"""Of a data set, or of the items of user code."""
FIRST_BYTES, FIRST_ROWS = 1 << 22, 1 << 12
"""Size of the first extent, in files and in data sets; a corpus that is no larger is one extent."""
GROWTH, SCANNED_GROWTH = 1.125, 1.5
"""Size of all extents up to one, over that of all before it; larger if parts must be read whole for each extent."""
MOST_BLOCKS = 1 << 18
SLICES = 64
"""Most blocks of a part that can only be read from its start; each block has documents from all of it."""


@dataclass(frozen=True)
class Piece:
    """A part of a corpus, or a slice of it."""

    part: Part
    begin: int = 0
    end: int | None = None
    """None: the whole part."""
    slices: frozenset[int] = frozenset()
    """Of a part that is read from its start: the slices that are wanted; empty: all."""
    of: int = 1
    """How many slices it has."""

    def documents(self, skipped: Skipped) -> Iterator[Document]:
        if self.slices:
            every = self.part.documents(skipped if 0 in self.slices else Skipped())  # each broken record counts once
            return (document for number, document in enumerate(every) if _slice(number, self.of) in self.slices)
        if self.end is None:
            return self.part.documents(skipped)
        return self.part.between(self.begin, self.end, skipped)


@dataclass(frozen=True)
class Unit:
    """Pieces that are read one after the other."""

    number: int
    pieces: tuple[Piece, ...]
    limit: int | None = None
    """Read no more documents than this."""

    def documents(self, skipped: Skipped) -> Iterator[Document]:
        every = itertools.chain.from_iterable(piece.documents(skipped) for piece in self.pieces)
        return itertools.islice(every, self.limit)


@dataclass(frozen=True)
class Extent:
    """Units that are prepared together, drawn over the whole corpus."""

    units: tuple[Unit, ...]
    share: float
    """Of the corpus that is read with this extent and all before it, by size."""


def lay_out(corpus: Corpus, documents: int | None) -> list[Extent]:
    """The extents of a corpus, which it alone determines.

    A given number of documents makes one extent: the first of an endless corpus, or of one whose size is unknown; of
    others, those of blocks in their order.
    """
    parts = corpus.parts
    if corpus.endless or any(part.size is None for part in parts):
        return [Extent(tuple(divide(corpus, documents)), 1.0)]
    total = sum(part.size or 0 for part in parts)
    first = FIRST_BYTES if isinstance(parts[0], FilePart) else FIRST_ROWS
    if documents is not None:
        return [Extent(tuple(_units(_shuffled(parts, total), 0)), 1.0)]
    if total <= first:
        return [Extent(tuple(divide(corpus, None)), 1.0)]
    extents: list[Extent] = []
    count = 0
    for blocks, share in _extents(parts, total, first):
        units = tuple(_units(_joined(blocks), count))
        count += len(units)
        extents.append(Extent(units, share))
    return extents


class _Block(NamedTuple):
    part: Part
    number: int
    size: float
    begin: int
    end: int
    of: int
    """How many slices the part has, if it can only be read from its start; else 0."""

    def piece(self) -> Piece:
        if self.of:
            return Piece(self.part, slices=frozenset([self.number]), of=self.of) if self.of > 1 else Piece(self.part)
        return Piece(self.part, self.begin, self.end)


def _blocks(parts: Sequence[Part], factor: float) -> list[_Block]:
    """The blocks of all parts, those of files `factor` times as large as can be read alone."""
    blocks: list[_Block] = []
    for part in parts:
        size = part.size or 0
        if part.block is not None:
            step = max(1, math.ceil(part.block * factor))
            starts = enumerate(range(0, size, step))
            blocks += [_Block(part, n, min(step, size - at), at, min(at + step, size), 0) for n, at in starts]
        else:
            slices = max(1, min(SLICES, math.ceil(size / (BLOCK_BYTES * max(1.0, factor)))))
            blocks += [_Block(part, n, size / slices, 0, 0, slices) for n in range(slices)]
    return blocks


def _in_order(blocks: list[_Block]) -> Iterator[int]:
    """The numbers of blocks in the order in which they are read."""
    numbers = permute(np.arange(len(blocks), dtype=np.int64), len(blocks), derive(0, "blocks", len(blocks)))
    return iter(numbers.tolist())


def _shuffled(parts: Sequence[Part], total: int) -> Iterator[Piece]:
    """All blocks in their order; small ones, so that a few documents come from all of a small corpus."""
    unit = parts[0].block or BLOCK_BYTES
    factor = max(total / MOST_BLOCKS / unit, min(1.0, total / 1024 / unit))
    blocks = _blocks(parts, factor)
    return (blocks[number].piece() for number in _in_order(blocks))


def _extents(parts: Sequence[Part], total: int, first: int) -> Iterator[tuple[list[_Block], float]]:
    """The blocks of each extent in the order of the corpus, and the share of it that is read with them."""
    blocks = _blocks(parts, max(1.0, total / MOST_BLOCKS / (parts[0].block or BLOCK_BYTES)))
    growth = GROWTH if all(block.of <= 1 for block in blocks) else SCANNED_GROWTH
    end, read = float(first), 0.0
    numbers: list[int] = []
    for number in _in_order(blocks):
        if read >= end and total - read > (growth - 1) * end / 2:
            yield [blocks[n] for n in sorted(numbers)], read / total
            numbers, end = [], max(end, read) * growth
        numbers.append(number)
        read += blocks[number].size
    yield [blocks[n] for n in sorted(numbers)], 1.0


def _joined(blocks: Sequence[_Block]) -> Iterator[Piece]:
    """Pieces of neighbouring blocks, no larger than a unit; the slices of a part together."""
    for _, group in itertools.groupby(blocks, key=lambda block: id(block.part)):
        same = list(group)
        if same[0].of:
            whole = len(same) == same[0].of
            slices = frozenset() if whole else frozenset(block.number for block in same)
            yield Piece(same[0].part, slices=slices, of=same[0].of)
            continue
        begin, end = same[0].begin, same[0].end
        for block in same[1:]:
            if block.begin != end or block.end - begin > UNIT_BYTES:
                yield Piece(same[0].part, begin, end)
                begin = block.begin
            end = block.end
        yield Piece(same[0].part, begin, end)


def _units(pieces: Iterator[Piece], first: int) -> Iterator[Unit]:
    """Units of consecutive pieces, numbered from `first`."""
    waiting: list[Piece] = []
    held, number = 0.0, first
    for piece in pieces:
        waiting.append(piece)
        held += _text(piece)
        if held >= UNIT_BYTES:
            yield Unit(number, tuple(waiting))
            waiting, held, number = [], 0.0, number + 1
    if waiting:
        yield Unit(number, tuple(waiting))


def _text(piece: Piece) -> float:
    """About how many bytes a piece has."""
    size = piece.part.size or 0
    if piece.end is not None:
        size = piece.end - piece.begin
    share = len(piece.slices) / piece.of if piece.slices else 1.0
    return size * share * (1 if isinstance(piece.part, FilePart) else UNIT_BYTES / ROWS_OF_A_UNIT)


def _slice(number: int, slices: int) -> int:
    """The slice of a document, by its number in its part."""
    return derive(0, "slice", number) % slices


def divide(corpus: Corpus, documents: int | None) -> list[Unit]:
    """The units of a corpus; of an endless one, those of its first documents."""
    if corpus.endless:
        assert documents is not None, "an endless corpus is read to a number"
        return [
            Unit(number, (Piece(corpus.parts[0], begin, min(begin + UNIT_STORIES, documents)),))
            for number, begin in enumerate(range(0, documents, UNIT_STORIES))
        ]
    return [Unit(number, tuple(pieces)) for number, pieces in enumerate(_groups(corpus.parts))]


def _groups(parts: Sequence[Part]) -> Iterator[list[Piece]]:
    """The pieces of each unit: slices of large parts that can be cut; small parts together."""
    waiting: list[Piece] = []
    held = 0
    for part in parts:
        size, block = part.size, part.block
        if block is not None and size is not None and size > UNIT_BYTES:
            if waiting:
                yield waiting
            waiting, held = [], 0
            yield from ([Piece(part, at, min(at + UNIT_BYTES, size))] for at in range(0, size, UNIT_BYTES))
            continue
        waiting.append(Piece(part))
        held += size if isinstance(part, FilePart) and size is not None else UNIT_BYTES  # a part of rows makes a unit
        if held >= UNIT_BYTES:
            yield waiting
            waiting, held = [], 0
    if waiting:
        yield waiting


def limited(units: Sequence[Unit], counts: Sequence[int], documents: int) -> list[Unit]:
    """The units that hold the first `documents` documents, the last one cut; `counts` has the documents of each unit.

    Units behind the last one needed may be missing from `counts`.
    """
    chosen = []
    for unit, count in zip(units, counts):
        if documents <= 0:
            break
        chosen.append(unit if count <= documents else replace(unit, limit=documents))
        documents -= count
    return chosen


def is_heldout(key: int, fraction: float) -> Callable[[int], bool]:
    """Which documents are held out, by number alone, so that the choice never depends on how many are read.

    The documents are divided into strata of 1 / fraction, and one is drawn from each. So the fraction is right within
    one document for any number read, and no period of the corpus (such as languages that alternate) can bias it.
    """
    share = round(fraction * 2**53)
    if share == 0:
        return lambda _: False

    def first(stratum: int) -> int:
        return -(-(stratum << 53) // share)

    def held_out(index: int) -> bool:
        stratum = index * share >> 53
        begin, end = first(stratum), first(stratum + 1)
        return index == begin + derive(key, "stratum", stratum) % (end - begin)

    return held_out


def unit_heldout(fraction: float, unit: int) -> Callable[[int], bool]:
    """Which documents of a unit are held out, by their number in it: the same for every run, whatever its seed."""
    return is_heldout(derive(0, "heldout", unit), fraction)
