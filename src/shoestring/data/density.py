"""How much a corpus holds: documents and tokens by the gigabyte, from a sample of it, with an interval."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from shoestring.core.errors import DataError
from shoestring.core.facts import Density
from shoestring.core.recipe import Data
from shoestring.core.seeds import derive
from shoestring.data.corpora import BLOCK_BYTES, Corpus
from shoestring.data.counting import Count, in_batches, plain_count
from shoestring.data.formats import Document, Skipped
from shoestring.data.sampling import Sample, sample
from shoestring.data.sizes import words_in
from shoestring.data.sources import texts

SAMPLE_BYTES = 1 << 26
FEW_BYTES = 1 << 19
"""Of a sample for an estimate, which is to be there at once."""
_FIRST_DOCUMENTS, _FEW_DOCUMENTS = 1000, 200
"""Read of a corpus that cannot be read at random: one without end, or one that is streamed."""
_SECONDS = 10.0
_BATCH_CHARACTERS = 1 << 21


class _Sums(NamedTuple):
    """Of a block."""

    documents: int
    text_bytes: int
    tokens: int


class _Way(NamedTuple):
    """How the tokens of a sample are counted."""

    count: Count
    byte_seconds: float | None = None
    """Of tokenizing a byte of text; None: as long as counting takes."""


def measure_density(
    source: Corpus, data: Data, seed: int = 0, sample_bytes: int = SAMPLE_BYTES, seconds: float = _SECONDS
) -> Density:
    """From blocks at random places, all of the corpus where it is small; a slow tokenizer reads for some seconds only.

    Words beyond the tokenizer's N count as one token each either way, so the sample needs no fitted vocabulary.
    """
    from shoestring.data.tokenizers import WordTokenizer, open_tokenizer  # imports numpy

    tokenizer = WordTokenizer(1, ()) if words_in(data.tokenizer) else open_tokenizer(data.tokenizer, data.end)

    def count(documents: Sequence[str]) -> int:
        return int(tokenizer.encode_batch(documents)[1].sum())

    return _density(source, data, seed, _Way(count), sample_bytes, seconds, _FIRST_DOCUMENTS)


def estimate_density(source: Corpus, data: Data, seed: int = 0) -> Density:
    """As `measure_density`, but of a few documents, whose tokens are counted and not made where that can be.

    Their seconds are those of reading, and what tokenizing took elsewhere.
    """
    found = plain_count(data.tokenizer)
    if found is None:
        return measure_density(source, data, seed, FEW_BYTES)
    return _density(source, data, seed, _Way(*found), FEW_BYTES, _SECONDS, _FEW_DOCUMENTS)


def _density(
    source: Corpus, data: Data, seed: int, way: _Way, sample_bytes: int, seconds: float, documents: int
) -> Density:
    """From a sample, or from the first `documents`."""
    if not source.endless and all(part.size is not None for part in source.parts):
        drawn = sample(source.parts, max(2, sample_bytes // BLOCK_BYTES), derive(seed, "density"))
        found = _of_sample(drawn, way, seconds)
        if found is not None:
            return found
    first, took = _sums(way, texts(source, documents))
    if first.documents == 0:
        raise DataError(f'data.source = "{data.source}": the corpus is empty')
    if source.endless and way.byte_seconds is None:  # most of the first time was what is loaded and compiled once
        _, took = _sums(way, texts(source, documents))
    return Density(**first._asdict(), seconds=took, total_documents=None)


def _of_sample(drawn: Sample, way: _Way, seconds: float) -> Density | None:
    """None where no document begins in any of the blocks."""
    order = list(range(len(drawn.blocks)))
    if not drawn.exact:
        random.Random(0).shuffle(order)  # so that those read before the time is up are as random as all
    sums: dict[int, _Sums] = {}
    times: list[float] = []
    for index in order:
        sums[index], took = _sums(way, _texts(drawn.blocks[index].documents(Skipped())))
        times.append(took)
        if not drawn.exact and len(sums) > 16 and sum(times) > seconds:
            break
    blocks = [drawn.blocks[index] for index in sums]
    if not any(found.documents for found in sums.values()):
        return None
    seen = Sample(tuple(blocks), drawn.size, drawn.exact)
    documents, text_bytes, tokens = (seen.total(column) for column in zip(*sums.values(), strict=True))
    # a block that is drawn because it is large counts for no more than a small one: totals, brought to what was read
    read = 1.0 if drawn.exact else sum(block.size for block in blocks) / drawn.size
    return Density(
        documents=max(1, round(documents.value * read)),
        text_bytes=max(1, round(text_bytes.value * read)),
        tokens=max(1, round(tokens.value * read)),
        seconds=_steady(times, [found.text_bytes for found in sums.values()]),
        total_documents=round(documents.value),
        total_documents_error=documents.error,
        tokens_per_gb_error=_ratio_error(seen, list(sums.values()), 2),
        entries_per_gb_error=_ratio_error(seen, list(sums.values()), 0),
    )


def _steady(times: list[float], sizes: list[int]) -> float:
    """Seconds of all blocks, the first as fast as the others by the byte: much of its own was compiled once.

    At the most what it really took: the others may be too small to tell.
    """
    others = sum(sizes[1:])
    return min(sum(times), sum(times[1:]) * sum(sizes) / others) if others else sum(times)


def _texts(documents: Iterable[Document]) -> Iterator[str]:
    return (document.text for document in documents)


def _sums(way: _Way, found: Iterable[str]) -> tuple[_Sums, float]:
    """Of the documents, some megabytes of text at a time, and the seconds that it takes to read and tokenize them."""
    documents = text_bytes = tokens = 0
    seconds, started = 0.0, time.perf_counter()
    for batch in in_batches(found, _BATCH_CHARACTERS):
        read = time.perf_counter()
        tokens += way.count(batch) + len(batch)
        size = len("".join(batch).encode())
        counted = time.perf_counter()
        seconds += read - started + (counted - read if way.byte_seconds is None else way.byte_seconds * size)
        documents += len(batch)
        text_bytes += size
        started = counted
    return _Sums(documents, text_bytes, tokens), seconds + time.perf_counter() - started


def _ratio_error(seen: Sample, sums: list[_Sums], column: int) -> float:
    """The standard error of a sum per 10⁹ bytes of text, from how much the blocks differ by the byte of source."""
    if seen.exact:
        return 0.0
    each = [(block.draws, s[column] / block.size, s.text_bytes / block.size) for block, s in zip(seen.blocks, sums)]
    draws = sum(times for times, _, _ in each)
    under = math.fsum(times * b for times, _, b in each)
    ratio = math.fsum(times * a for times, a, _ in each) / under
    spread = math.fsum(times * (a - ratio * b) ** 2 for times, a, b in each)
    return 1e9 * math.sqrt(spread * draws / (draws - 1)) / under
