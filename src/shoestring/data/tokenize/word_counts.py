"""Exact counts of the words of a corpus."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from shoestring.data.tokenize.tokenizers import words_of
from shoestring.data.tokenize.vocabulary import COMPILED_CHARACTERS

if TYPE_CHECKING:
    from shoestring.data.tokenize.fast_words import WordCounter


class WordCounts:
    """Counts of all words and marks: by Python at first, then by compiled loops, which take a second to load."""

    def __init__(self) -> None:
        self._first: Counter[str] = Counter()
        self._characters = 0
        self._later: WordCounter | None = None

    def add(self, documents: Sequence[str]) -> None:
        """Count more documents; a few megabytes per call work well."""
        if self._later is None:
            self._characters += sum(map(len, documents))
            if self._characters < COMPILED_CHARACTERS:
                self._first.update(itertools.chain.from_iterable(map(words_of, documents)))
                return
            from shoestring.data.tokenize.fast_words import WordCounter  # imports Numba

            self._later = WordCounter()
        self._later.add(documents)

    def counted(self) -> tuple[list[str], list[int]]:
        """All words in the order of their first occurrence, and how often each occurred."""
        counts = Counter(self._first)
        if self._later is not None:
            counts.update(dict(zip(*self._later.counted(), strict=True)))
        return list(counts), list(counts.values())
