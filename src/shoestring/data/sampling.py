"""What a corpus holds without reading all of it: blocks drawn at random from its parts, and sums over the whole."""

from __future__ import annotations

import bisect
import itertools
import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shoestring.core.errors import DataError
from shoestring.core.seeds import derive
from shoestring.data.corpora import Part
from shoestring.data.formats import Document, Skipped


class Block(NamedTuple):
    """A piece of a part, drawn at random."""

    part: Part
    begin: int
    end: int
    draws: int
    """How many times it was drawn."""

    @property
    def size(self) -> int:
        """Of the source: what its documents stand for, though the last of them may reach beyond."""
        return self.end - self.begin

    def documents(self, skipped: Skipped | None = None) -> Iterator[Document]:
        """The documents that begin in it, each to its end."""
        return self.part.between(self.begin, self.end, skipped)


class Total(NamedTuple):
    """An estimate for a whole corpus, and its standard error."""

    value: float
    error: float


@dataclass(frozen=True)
class Sample:
    """Blocks of a corpus, from which any sum over all its documents can be estimated without bias."""

    blocks: tuple[Block, ...]
    size: int
    """Of the whole corpus, in the unit of its parts."""
    exact: bool
    """The blocks are the whole corpus."""

    def total(self, sums: Sequence[float]) -> Total:
        """The sum over all documents, from the sums over those of each block.

        A block is drawn with a probability in proportion to its size, so the mean of sum / size over the draws has the
        expected value of the corpus, whatever the lengths of the documents. An interval of 95 % is the value ± 1.96
        errors, or Student's t with draws − 1 degrees of freedom where the draws are few.
        """
        if self.exact:
            return Total(math.fsum(sums), 0.0)
        draws = sum(block.draws for block in self.blocks)
        densities = [(value / block.size, block.draws) for value, block in zip(sums, self.blocks, strict=True)]
        mean = math.fsum(density * times for density, times in densities) / draws
        variance = math.fsum((density - mean) ** 2 * times for density, times in densities) / (draws - 1)
        return Total(mean * self.size, math.sqrt(variance / draws) * self.size)


def sample(parts: Sequence[Part], draws: int, seed: int) -> Sample:
    """Blocks of all parts, drawn by random places; all of the corpus where it has no more blocks than `draws`.

    Every record begins in exactly one block, so none is more likely to be read because it is long. Parts that cannot be
    cut (compressed files, CSV, parquet) are a block each, however large.
    """
    assert draws > 1, "the spread of one draw is unknown"
    sizes = [_known_size(part) for part in parts]
    ends = list(itertools.accumulate(sizes, initial=0))
    if sum(-(-size // (part.block or size or 1)) for part, size in zip(parts, sizes)) <= draws:
        return Sample(tuple(Block(part, 0, size, 1) for part, size in zip(parts, sizes)), ends[-1], exact=True)
    generator = random.Random(derive(seed, "sample"))
    drawn: Counter[tuple[int, int]] = Counter()
    for _ in range(draws):
        place = generator.randrange(ends[-1])
        index = bisect.bisect_right(ends, place) - 1
        block = parts[index].block or sizes[index]
        drawn[index, (place - ends[index]) // block * block] += 1
    blocks = [
        Block(parts[index], begin, min(begin + (parts[index].block or sizes[index]), sizes[index]), times)
        for (index, begin), times in sorted(drawn.items())
    ]
    return Sample(tuple(blocks), ends[-1], exact=False)


def _known_size(part: Part) -> int:
    if part.size is None:
        raise DataError(f"{part.identity()['name']} is streamed, so its size is unknown; set data.streaming = false")
    return part.size
