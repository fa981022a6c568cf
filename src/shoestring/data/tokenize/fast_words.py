r"""Words of many documents at once, by compiled loops over their joined UTF-8.

The words are exactly those of `\w+(?:'\w+)?|[^\w\s]` in the lower-case text: Python converts to lower case, and the
regular expression itself gives the class of every character, once. A word is looked up by a 64-bit hash and then by its
bytes, so words of equal hash are kept apart.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

Text = NDArray[np.uint8]
"""The UTF-8 of all documents, concatenated."""
Sizes = NDArray[np.int64]
Numbers = NDArray[np.int32]

_SPACE, _MARK, _LETTER, _REST = 0, 1, 2, 3
"""Classes of characters. All bytes of a character have its class, except that the later bytes of a mark are _REST."""
_APOSTROPHE = ord("'")


class _Spans(NamedTuple):
    """Where words start and end in a text."""

    begins: Sizes
    ends: Sizes


class WordCounter:
    """Exact counts of all words and marks of a corpus.

    Memory grows with the distinct words only: 32 to 64 bytes and the word itself for each. No word is dropped.
    """

    def __init__(self) -> None:
        self._table = _Table()
        self._counts = np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        """How many distinct words there are so far."""
        return self._table.size

    def add(self, documents: Sequence[str]) -> None:
        """Count more documents; a few megabytes per call work well."""
        text, words, _ = _words(documents)
        numbers = self._table.place(text, words)
        if len(self) > len(self._counts):
            self._counts = _longer(self._counts, len(self._table.keys))
        np.add.at(self._counts, numbers, 1)

    def counted(self) -> tuple[list[str], list[int]]:
        """All words, and how often each occurred."""
        words = [self._table.word(number).decode() for number in range(len(self))]
        return words, self._counts[: len(self)].tolist()


class WordEncoder:
    """Words to ids: the given words from `first_id`, `unknown` for every other word."""

    def __init__(self, words: Iterable[str], first_id: int, unknown: int):
        self._table = _Table()
        numbers = self._table.place(*_join([word.encode() for word in words]))
        self._ids = np.full(
            self._table.size + 1, unknown, dtype=np.uint32
        )  # the last is for -1: a word that is not in the table
        self._ids[numbers] = np.arange(first_id, first_id + len(numbers))

    def encode_batch(self, documents: Sequence[str]) -> tuple[NDArray[np.uint32], Sizes]:
        """The ids of all documents, concatenated, and how many each has; safe to call from several threads."""
        text, words, sizes = _words(documents)
        return self._ids[self._table.find(text, words)], sizes


def _words(documents: Sequence[str]) -> tuple[Text, _Spans, Sizes]:
    """The text of all documents in lower case, its words and marks, and how many each document has."""
    text, spans = _join([document.lower().encode() for document in documents])
    begins, ends, sizes = _scan(text, _kinds(text, _classes()), spans.ends)
    return text, _Spans(begins, ends), sizes


def _join(documents: Sequence[bytes]) -> tuple[Text, _Spans]:
    """All bytes, and where each document starts and ends."""
    sizes = np.fromiter(map(len, documents), dtype=np.int64, count=len(documents))
    ends = np.cumsum(sizes)
    return np.frombuffer(b"".join(documents), dtype=np.uint8), _Spans(ends - sizes, ends)


@cache
def _classes() -> Text:
    """The class of every Unicode character: space, mark or letter."""
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    classes = np.full(len(every), _MARK, dtype=np.uint8)
    for pattern, kind in ((r"\s+", _SPACE), (r"\w+", _LETTER)):
        for run in re.finditer(pattern, every):
            classes[run.start() : run.end()] = kind
    return classes


class _Table:
    """Distinct words, numbered in order of occurrence; word *i* is pool[bounds[i] : bounds[i + 1]]."""

    def __init__(self) -> None:
        self.size = 0
        self.keys = np.zeros(1 << 10, dtype=np.uint64)
        self.bounds = np.zeros((1 << 10) + 1, dtype=np.int64)
        self.pool = np.zeros(1 << 13, dtype=np.uint8)
        self.slots = np.full(1 << 11, -1, dtype=np.int32)
        """Hash table of word numbers, -1 if empty; its size is a power of two, at least twice the words."""

    def word(self, number: int) -> bytes:
        return self.pool[self.bounds[number] : self.bounds[number + 1]].tobytes()

    def find(self, text: Text, words: _Spans) -> Numbers:
        """The number of every word, -1 for unknown words."""
        numbers = np.empty(len(words.begins), dtype=np.int32)
        _number(text, *words, numbers, 0, self.keys, self.bounds, self.pool, self.slots, -1)
        return numbers

    def place(self, text: Text, words: _Spans) -> Numbers:
        """The number of every word; unknown words get a new one."""
        numbers = np.empty(len(words.begins), dtype=np.int32)
        done = 0
        while True:
            done, self.size = _number(
                text, *words, numbers, done, self.keys, self.bounds, self.pool, self.slots, self.size
            )
            if done == len(numbers):
                return numbers
            self._grow(int(words.ends[done] - words.begins[done]))

    def _grow(self, letters: int) -> None:
        """Double the room for words, or make room for one word of so many bytes."""
        if self.size == len(self.keys):
            self.keys = _longer(self.keys, 2 * self.size)
            self.bounds = _longer(self.bounds, 2 * self.size + 1)
            self.slots = np.full(4 * self.size, -1, dtype=np.int32)
            _spread(self.keys[: self.size], self.slots)
        else:
            self.pool = _longer(self.pool, 2 * len(self.pool) + letters)


def _longer(values: NDArray[Any], length: int) -> NDArray[Any]:
    grown = np.zeros(length, dtype=values.dtype)
    grown[: len(values)] = values
    return grown


# The loops below are not split up: to pass an array to another compiled function costs more than a word does.


@njit(cache=True, nogil=True)
def _kinds(text: Text, classes: Text) -> Text:
    """The class of every byte."""
    kinds = np.empty(len(text), dtype=np.uint8)
    at = 0
    while at < len(text):
        lead = np.int64(text[at])
        if lead < 0x80:
            kinds[at] = classes[lead]
            at += 1
            continue
        if lead < 0xE0:
            code, width = lead & 0x1F, 2
        elif lead < 0xF0:
            code, width = lead & 0x0F, 3
        else:
            code, width = lead & 0x07, 4
        for rest in range(at + 1, at + width):
            code = code << 6 | text[rest] & 0x3F
        kind = classes[code]
        kinds[at] = kind
        for rest in range(at + 1, at + width):
            kinds[rest] = _REST if kind == _MARK else kind
        at += width
    return kinds


@njit(cache=True, nogil=True)
def _scan(text: Text, kinds: Text, documents: Sizes) -> tuple[Sizes, Sizes, Sizes]:
    """Starts and ends of all words and marks, and how many each document has; `documents` has the documents' ends."""
    begins, ends = np.empty(len(text), dtype=np.int64), np.empty(len(text), dtype=np.int64)
    sizes = np.empty(len(documents), dtype=np.int64)
    filled = at = 0
    for document in range(len(documents)):
        before, stop = filled, documents[document]
        while at < stop:
            begin, kind = at, kinds[at]
            at += 1
            if kind == _SPACE:
                continue
            if kind == _LETTER:
                while at < stop and kinds[at] == _LETTER:
                    at += 1
                if at + 1 < stop and text[at] == _APOSTROPHE and kinds[at + 1] == _LETTER:
                    at += 2
                    while at < stop and kinds[at] == _LETTER:
                        at += 1
            else:
                while at < stop and kinds[at] == _REST:
                    at += 1
            begins[filled], ends[filled] = begin, at
            filled += 1
        sizes[document] = filled - before
    return begins[:filled], ends[:filled], sizes


@njit(cache=True, nogil=True)
def _first_slot(key: np.uint64, last: int) -> np.int64:
    """The first slot for a hash; its high bits depend on more of the word than its low bits."""
    mixed = (key ^ (key >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64(mixed >> np.uint64(32)) & last


@njit(cache=True, nogil=True)
def _number(
    text: Text,
    begins: Sizes,
    ends: Sizes,
    numbers: Numbers,
    done: int,
    keys: NDArray[np.uint64],
    bounds: Sizes,
    pool: Text,
    slots: Numbers,
    size: int,
) -> tuple[int, int]:
    """Number the words from `done` on, up to the first without room; returns its index and the number of words.

    With `size` -1 no word is added: unknown words have the number -1.
    """
    last = len(slots) - 1
    for index in range(done, len(begins)):
        begin, letters = begins[index], ends[index] - begins[index]
        key = np.uint64(0)
        for offset in range(letters):
            key = key * np.uint64(0x100000001B3) + np.uint64(text[begin + offset])
        slot = _first_slot(key, last)
        word = slots[slot]
        while word >= 0:
            same = keys[word] == key and bounds[word + 1] - bounds[word] == letters
            offset = 0
            while same and offset < letters:
                same = pool[bounds[word] + offset] == text[begin + offset]
                offset += 1
            if same:
                break
            slot = (slot + 1) & last
            word = slots[slot]
        if word < 0 and size >= 0:
            if size == len(keys) or bounds[size] + letters > len(pool):
                return index, size
            for offset in range(letters):
                pool[bounds[size] + offset] = text[begin + offset]
            keys[size], bounds[size + 1], slots[slot] = key, bounds[size] + letters, size
            word = np.int32(size)
            size += 1
        numbers[index] = word
    return len(begins), size


@njit(cache=True, nogil=True)
def _spread(keys: NDArray[np.uint64], slots: Numbers) -> None:
    """Give every word a slot."""
    last = len(slots) - 1
    for word in range(len(keys)):
        slot = _first_slot(keys[word], last)
        while slots[slot] >= 0:
            slot = (slot + 1) & last
        slots[slot] = word
