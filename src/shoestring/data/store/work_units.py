"""A corpus divided into units of work, independent of the number of processes.

A unit is some tens of megabytes: a slice of a large plain file, a compressed file, many small files, or a range of
stories. Its shards are made from it alone, so units can be processed in any order, on any machine, and again after a
crash.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from shoestring.core.seeds import derive
from shoestring.data.read.corpora import FilePart
from shoestring.data.read.documents import Corpus, Document, Part, Skipped

UNIT_BYTES = 1 << 25
UNIT_STORIES = 1 << 14


@dataclass(frozen=True)
class Piece:
    """A part of a corpus, or a slice of it."""

    part: Part
    begin: int = 0
    end: int | None = None
    """None: the whole part."""

    def documents(self, skipped: Skipped) -> Iterator[Document]:
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
