"""How many tokens texts have, without their ids and without numpy: an estimate asks, and answers at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from shoestring.data.sizes import words_in

WORD = re.compile(r"\w+(?:'\w+)?|[^\w\s]")
"""A word, or a mark, of a text in lower case."""
COUNTED_SECONDS = {"words": 1 / 68e6, "bytes": 1 / 690e6}
"""Of the tokenizers themselves, for a byte of text: results/data-cpu.json."""

Count = Callable[[Sequence[str]], int]
"""From documents to their tokens, without those that end them."""


def plain_count(spec: str) -> tuple[Count, float] | None:
    """How to count tokens, and the seconds that its tokenizer takes for a byte; None: only the tokenizer itself can."""
    if words_in(spec) is not None:
        return _words, COUNTED_SECONDS["words"]
    return (_bytes, COUNTED_SECONDS["bytes"]) if spec == "bytes" else None


def _words(documents: Sequence[str]) -> int:
    return sum(len(WORD.findall(text.lower())) for text in documents)


def _bytes(documents: Sequence[str]) -> int:
    return sum(len(text.encode()) for text in documents)


def in_batches(documents: Iterable[str], characters: int) -> Iterator[list[str]]:
    """The documents in lists of about so many characters."""
    batch: list[str] = []
    held = 0
    for document in documents:
        batch.append(document)
        held += len(document)
        if held >= characters:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch
