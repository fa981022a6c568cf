"""A corpus divided into units of work: what they are does not depend on how many processes work on them.

A unit is some tens of megabytes: a slice of a large plain file, a compressed file, many small ones, or a range of
stories. Its shards are made from it alone, so units can be made in any order, anywhere, and again after a crash.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from shoestring.core.seeds import derive
from shoestring.data.corpora import Corpus, FilePart, Part
from shoestring.data.formats import Document, Skipped

UNIT_BYTES = 1 << 25
UNIT_STORIES = 1 << 14


@dataclass(frozen=True)
class Piece:
    """A part of a corpus, or a slice of it."""

    part: Part
    begin: int = 0
    end: int | None = None
    """None: all of it."""

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
    """The units of a corpus; of one without end, those of its first documents."""
    if corpus.endless:
        assert documents is not None, "an endless corpus is read to a number"
        return [
            Unit(number, (Piece(corpus.parts[0], begin, min(begin + UNIT_STORIES, documents)),))
            for number, begin in enumerate(range(0, documents, UNIT_STORIES))
        ]
    return [Unit(number, tuple(pieces)) for number, pieces in enumerate(_groups(corpus.parts))]


def _groups(parts: Sequence[Part]) -> Iterator[list[Piece]]:
    """Slices of what can be cut into them; small parts together, until they are large enough."""
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
        held += size if isinstance(part, FilePart) and size is not None else UNIT_BYTES  # rows are enough for a unit
        if held >= UNIT_BYTES:
            yield waiting
            waiting, held = [], 0
    if waiting:
        yield waiting


def limited(units: Sequence[Unit], counts: Sequence[int], documents: int) -> list[Unit]:
    """The units that hold the first `documents` documents, the last of them cut, from how many each has.

    Units behind the last one that is needed may be left uncounted.
    """
    found = []
    for unit, count in zip(units, counts):
        if documents <= 0:
            break
        found.append(unit if count <= documents else replace(unit, limit=documents))
        documents -= count
    return found


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


def unit_heldout(seed: int, fraction: float, unit: int) -> Callable[[int], bool]:
    """Which documents of a unit are held out, by their number in it."""
    return is_heldout(derive(seed, "heldout", unit), fraction)
