"""How much a corpus holds: documents and tokens per gigabyte, from blocks drawn at random, with standard errors."""

from __future__ import annotations

import bisect
import itertools
import math
import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from shoestring.core.errors import DataError
from shoestring.core.records import Density
from shoestring.core.sections import Data
from shoestring.core.seeds import derive
from shoestring.data.read.corpora import BLOCK_BYTES, texts
from shoestring.data.read.documents import Corpus, Document, Part, Prompted, Skipped, parts_of
from shoestring.data.tokenize.vocabulary import COMPILED_CHARACTERS, Count, in_batches, plain_count

if TYPE_CHECKING:
    from shoestring.data.tokenize.tokenizers import Tokenizer

SAMPLE_BYTES = 1 << 26
FEW_BYTES = 1 << 19
"""Size of the sample for a quick estimate."""
FITTED_SAMPLE, SAMPLED_WORDS = 1 << 20, 1 << 18
"""Characters of text, or bytes of different words, that pieces are fitted to for an estimate."""
COUNTED = 1 << 17
"""Bytes of a batch whose pieces are counted; the others have as many per byte."""
_FIRST_DOCUMENTS, _FEW_DOCUMENTS = 1000, 200
"""Read from the start of a corpus that cannot be sampled: an endless or a streamed one."""
_SECONDS = 10.0
_BATCH_CHARACTERS = 1 << 21
_UNPACKED = 4
"""Characters of text that are expected per byte of a part that cannot be cut; it is usually compressed."""


class Block(NamedTuple):
    """A piece of a part, drawn at random."""

    part: Part
    begin: int
    end: int
    draws: int
    """How many times it was drawn."""

    @property
    def size(self) -> int:
        """In the source; the last of its documents may reach beyond."""
        return self.end - self.begin

    def documents(self, skipped: Skipped | None = None) -> Iterator[Document]:
        """The documents that start in it, each to its end."""
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
    """Size of the whole corpus, in the unit of its parts."""
    exact: bool
    """The blocks are the whole corpus."""

    def total(self, sums: Sequence[float]) -> Total:
        """The sum over all documents, from the sums over those of each block.

        A block is drawn with a probability in proportion to its size, so the mean of sum / size over the draws has the
        expected value of the corpus, whatever the lengths of the documents. A 95 % interval is the value ± 1.96
        errors, or Student's t with draws − 1 degrees of freedom if the draws are few.
        """
        if self.exact:
            return Total(math.fsum(sums), 0.0)
        draws = sum(block.draws for block in self.blocks)
        densities = [(value / block.size, block.draws) for value, block in zip(sums, self.blocks, strict=True)]
        mean = math.fsum(density * times for density, times in densities) / draws
        variance = math.fsum((density - mean) ** 2 * times for density, times in densities) / (draws - 1)
        return Total(mean * self.size, math.sqrt(variance / draws) * self.size)

    def per_gb_error(self, sums: Sequence[float], text_bytes: Sequence[int]) -> float:
        """The standard error of a sum per 10⁹ bytes of text, from the sums over the documents of each block."""
        if self.exact:
            return 0.0
        each = [(block.draws, a / block.size, b / block.size) for block, a, b in zip(self.blocks, sums, text_bytes)]
        draws = sum(times for times, _, _ in each)
        under = math.fsum(times * b for times, _, b in each)
        ratio = math.fsum(times * a for times, a, _ in each) / under
        spread = math.fsum(times * (a - ratio * b) ** 2 for times, a, b in each)
        return 1e9 * math.sqrt(spread * draws / (draws - 1)) / under


def sample(parts: Sequence[Part], draws: int, seed: int) -> Sample:
    """Blocks of parts of known size, drawn at random places; the whole corpus if it has at most `draws` blocks.

    Every record starts in exactly one block, so a long record is no more likely to be read than a short one. A part
    that cannot be cut (a compressed, CSV or Parquet file) is one block, however large.
    """
    assert draws > 1, "the spread of one draw is unknown"
    sizes = [part.size for part in parts if part.size is not None]
    assert len(sizes) == len(parts), "streamed parts cannot be sampled"
    ends = list(itertools.accumulate(sizes, initial=0))
    if sum(-(-size // (part.block or size or 1)) for part, size in zip(parts, sizes)) <= draws:
        return Sample(tuple(Block(part, 0, size, 1) for part, size in zip(parts, sizes)), ends[-1], exact=True)
    generator = random.Random(derive(seed, "sample"))
    drawn: Counter[tuple[int, int, int]] = Counter()
    for _ in range(draws):
        place = generator.randrange(ends[-1])
        index = bisect.bisect_right(ends, place) - 1
        block = parts[index].block or sizes[index]
        begin = (place - ends[index]) // block * block
        drawn[index, begin, min(begin + block, sizes[index])] += 1
    blocks = [Block(parts[index], begin, end, times) for (index, begin, end), times in sorted(drawn.items())]
    return Sample(tuple(blocks), ends[-1], exact=False)


class _Sums(NamedTuple):
    """Sums over the documents of a block."""

    documents: int
    text_bytes: int
    tokens: int
    prompt_tokens: int


class _Counting(NamedTuple):
    """How the tokens of a sample are counted."""

    count: Count
    byte_seconds: float | None = None
    """Seconds per byte of text that tokenizing would take; None: as long as counting takes."""
    most: int | None = None
    """Bytes of a batch that are counted, about; the others have as many tokens per byte."""

    def of(self, texts: Sequence[str]) -> tuple[int, float]:
        """The tokens of texts, and the seconds that tokenizing them takes."""
        size, started = _size(texts), time.perf_counter()
        some = texts if self.most is None else texts[:: max(1, size // self.most)]
        share = 1.0 if len(some) == len(texts) else size / max(1, _size(some))
        found = round(share * self.count(some))
        each = self.byte_seconds
        return found, share * (time.perf_counter() - started) if each is None else each * size


def measure_density(
    source: Corpus, data: Data, seed: int = 0, sample_bytes: int = SAMPLE_BYTES, seconds: float = _SECONDS
) -> Density:
    """The density of blocks at random places; of the whole corpus if it is small, of fewer if tokenizing is slow.

    Words beyond the tokenizer's N are one token each in any case, so the sample needs no fitted vocabulary. Those of a
    small sample are only counted, as by `estimate_density`: compiled loops take longer to load.
    """
    if data.tokenizer.words and not _is_large(source) and (known := plain_count(data.tokenizer)) is not None:
        return _density(source, data, seed, _Counting(*known), sample_bytes, seconds, _FIRST_DOCUMENTS)
    from shoestring.data.tokenize.tokenizers import WordTokenizer, open_tokenizer  # imports numpy

    tokenizer: Tokenizer
    if data.tokenizer.pieces is not None:
        tokenizer = _fitted_to_sample(source, data.tokenizer.pieces, seed)
    elif data.tokenizer.words is not None:
        tokenizer = WordTokenizer(1, ()).loaded()
    else:
        tokenizer = open_tokenizer(data.tokenizer, data.end)

    def count(documents: Sequence[str]) -> int:
        return int(tokenizer.encode_batch(documents)[1].sum())

    counting = _Counting(count, most=None if data.tokenizer.pieces is None else COUNTED)
    return _density(source, data, seed, counting, sample_bytes, seconds, _FIRST_DOCUMENTS)


def _fitted_to_sample(source: Corpus, pieces: int, seed: int) -> Tokenizer:
    """A tokenizer of pieces by some blocks of a corpus, which needs about as many tokens as that of the corpus."""
    from shoestring.data.tokenize.pieces import first_of, fit_pieces

    found: Iterable[str] = texts(source, _FEW_DOCUMENTS)
    if not source.endless and all(part.size is not None for part in source.parts):
        blocks = sample(source.parts, max(2, FITTED_SAMPLE // BLOCK_BYTES), derive(seed, "pieces")).blocks
        found = (document.text for block in blocks for document in block.documents())
    return fit_pieces(pieces, parts_of(list(first_of(found, FITTED_SAMPLE, SAMPLED_WORDS))))


def _is_large(source: Corpus) -> bool:
    """Whether much is sampled of a corpus: not its first documents alone, nor all of a small one."""
    if source.endless or any(part.size is None for part in source.parts):
        return False
    sizes = ((part.size or 0) * (_UNPACKED if part.block is None else 1) for part in source.parts)
    return sum(sizes) >= COMPILED_CHARACTERS


def estimate_density(source: Corpus, data: Data, seed: int = 0) -> Density:
    """As `measure_density`, from fewer documents, whose tokens are only counted where the tokenizer allows it.

    The seconds then are those of reading, plus a stored estimate for tokenizing.
    """
    known = plain_count(data.tokenizer)
    if known is None:
        return measure_density(source, data, seed, FEW_BYTES)
    return _density(source, data, seed, _Counting(*known), FEW_BYTES, _SECONDS, _FEW_DOCUMENTS)


def _density(
    source: Corpus, data: Data, seed: int, counting: _Counting, sample_bytes: int, seconds: float, documents: int
) -> Density:
    """The density of a sample, or of the first `documents`."""
    if not source.endless and all(part.size is not None for part in source.parts):
        drawn = sample(source.parts, max(2, sample_bytes // BLOCK_BYTES), derive(seed, "density"))
        density = _of_sample(drawn, counting, seconds)
        if density is not None:
            return density
    first, took = _sums(counting, texts(source, documents))
    if first.documents == 0:
        raise DataError(f'data.source = "{data.source}": the corpus is empty')
    if source.endless and counting.byte_seconds is None:  # most of the first time was loading
        _, took = _sums(counting, texts(source, documents))
    whole = first.documents if not source.endless and first.documents < documents else None  # read to its end
    return Density(**first._asdict(), seconds=took, total_documents=whole, total_documents_error=whole and 0.0)


def _of_sample(drawn: Sample, counting: _Counting, seconds: float) -> Density | None:
    """The density of a sample; None if no document starts in any of its blocks."""
    order = list(range(len(drawn.blocks)))
    if not drawn.exact:
        random.Random(0).shuffle(order)  # so that the blocks read before the time is up are as random as all
    sums: dict[int, _Sums] = {}
    times: list[float] = []
    for index in order:
        sums[index], took = _sums(counting, (document.text for document in drawn.blocks[index].documents()))
        times.append(took)
        if not drawn.exact and len(sums) > 16 and sum(times) > seconds:
            break
    blocks = tuple(drawn.blocks[index] for index in sums)
    columns = list(zip(*sums.values(), strict=True))
    if not columns or not any(columns[0]):
        return None
    seen = Sample(blocks, drawn.size, drawn.exact)
    documents, text_bytes, tokens, prompt_tokens = map(seen.total, columns)
    # totals, scaled to the part that was read: a large block was more likely to be drawn, and must not count for more
    share = 1.0 if drawn.exact else sum(block.size for block in blocks) / drawn.size
    return Density(
        documents=max(1, round(documents.value * share)),
        text_bytes=max(1, round(text_bytes.value * share)),
        tokens=max(1, round(tokens.value * share)),
        prompt_tokens=round(prompt_tokens.value * share),
        seconds=_steady(times, columns[1]),
        total_documents=round(documents.value),
        total_documents_error=documents.error,
        tokens_per_gb_error=seen.per_gb_error(columns[2], columns[1]),
        entries_per_gb_error=seen.per_gb_error(columns[0], columns[1]),
    )


def _steady(times: list[float], sizes: Sequence[int]) -> float:
    """Seconds of all blocks if the first, which includes compiling, had been as fast per byte as the others.

    Never more than was measured: the other blocks may be too small to tell.
    """
    others = sum(sizes[1:])
    return min(sum(times), sum(times[1:]) * sum(sizes) / others) if others else sum(times)


def _size(texts: Iterable[str]) -> int:
    return len("".join(texts).encode())


def _sums(counting: _Counting, documents: Iterable[str]) -> tuple[_Sums, float]:
    """The sums over documents, some megabytes of text at a time, and the seconds to read and tokenize them."""
    number = text_bytes = tokens = prompt_tokens = 0
    seconds, started = 0.0, time.perf_counter()
    for batch in in_batches(documents, _BATCH_CHARACTERS):
        read = time.perf_counter()
        pairs = [text.parts for text in batch if isinstance(text, Prompted)]
        prompts, completions = [prompt for prompt, _ in pairs], [completion for _, completion in pairs] or batch
        (of_prompts, first), (others, second) = counting.of(prompts) if prompts else (0, 0.0), counting.of(completions)
        tokens += of_prompts + others + len(batch)
        prompt_tokens += of_prompts
        seconds += read - started + first + second
        number += len(batch)
        text_bytes += _size(batch)
        started = time.perf_counter()
    return _Sums(number, text_bytes, tokens, prompt_tokens), seconds + time.perf_counter() - started
