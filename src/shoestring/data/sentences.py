"""Sentences that use only the most frequent words of a corpus, joined and cut into rows: text at word level for HMMs.

A sentence runs up to a mark that ends it (. ! ?), the marks that follow (... or ?!) and a closing quote right behind
them; words and marks are those of `WordTokenizer`, in lower case. What ends without a mark is no sentence.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoestring.core.errors import DataError
from shoestring.data.shards import dtype_for
from shoestring.data.tokenizers import WordTokenizer, words_of

_SENTENCE = re.compile(r"""([^.!?]*)([.!?]+["'”’]*)?""")
_PLAIN = re.compile(r"[a-zA-Z ,.]*")
_END_OF_TEXT = "<|endoftext|>"
"""Stands between the stories of TinyStories, also in the middle of a line; it is no text."""


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """Where the sentences went."""

    lines_left_out: int
    """For a character that plain text does not have; 0 where any text is taken."""
    sentences: int
    """All in the text that was taken."""
    unfinished: int
    """Pieces of text without a mark at their end; never used, and not among the sentences."""
    kept: int
    """Sentences all of whose words are in the alphabet."""
    unique: int
    """Different ones among those kept."""
    tokens: int
    """In the sentences that were joined: all kept, or the unique ones."""
    dropped: int
    """Of these tokens, at the end: fewer than a row."""


class SentenceRows(NamedTuple):
    rows: NDArray[np.unsignedinteger]
    """(n, L) ids, in the smallest type that holds them. A sentence may go on in the next row."""
    alphabet: tuple[str, ...]
    """The word of each id, the most frequent first."""
    ledger: Ledger


def sentence_rows(
    documents: Callable[[], Iterable[str]], words: int, length: int, unique: bool = False, plain: bool = False
) -> SentenceRows:
    """Rows of exactly `length` tokens over the `words` most frequent words of the documents, which are read twice.

    `documents` gives them from the beginning at every call, such as `source.documents`. With `unique`, only the first
    of equal sentences is used. With `plain`, lines that hold anything but letters a to z, spaces, commas and full stops
    are left out before words are counted: quoted speech, exclamations, names with accents, numbers. (So were made the
    data of in-context language learning: TinyStories, 100 to 500 words, plain.)
    """
    return rows_of(documents(), top_words(documents(), words, plain), length, unique, plain)


def top_words(documents: Iterable[str], words: int, plain: bool = False) -> tuple[str, ...]:
    """The most frequent words and marks, fewer than `words` where there are not so many; ties in alphabetical order."""
    if words < 1:
        raise DataError(f"words = {words}: must be at least 1")
    return WordTokenizer.fit(words, (piece for text in documents for piece in _pieces(text, plain)[0])).words


def rows_of(
    documents: Iterable[str], alphabet: Sequence[str], length: int, unique: bool = False, plain: bool = False
) -> SentenceRows:
    """The rows over a given alphabet: for held-out text, that of the training text."""
    if length < 1:
        raise DataError(f"length = {length}: must be at least 1")
    ids = {word: index for index, word in enumerate(alphabet)}
    dtype = dtype_for(len(ids))
    stream = array(dtype.char)
    different: set[bytes] = set()
    left_out = sentences = unfinished = kept = 0
    for text in documents:
        pieces, others = _pieces(text, plain)
        left_out += others
        for sentence, finished in (found for piece in pieces for found in _sentences(piece.lower())):
            if not finished:
                unfinished += 1
                continue
            sentences += 1
            try:
                tokens = array(dtype.char, [ids[word] for word in words_of(sentence)])
            except KeyError:  # a word that is not in the alphabet; most sentences have one
                continue
            kept += 1
            before = len(different)
            different.add(tokens.tobytes())
            if not unique or len(different) > before:
                stream.extend(tokens)
    count = len(stream) // length
    if not count:
        raise DataError(
            f"no row of {length:,} tokens: of {sentences:,} sentences, {kept:,} use only the {len(ids):,} words, "
            f"{len(stream):,} tokens in all; give more text, more words or a smaller length"
        )
    ledger = Ledger(
        lines_left_out=left_out,
        sentences=sentences,
        unfinished=unfinished,
        kept=kept,
        unique=len(different),
        tokens=len(stream),
        dropped=len(stream) - count * length,
    )
    rows = np.frombuffer(stream, dtype=dtype)[: count * length].reshape(count, length).copy()
    return SentenceRows(rows, tuple(alphabet), ledger)


def _pieces(text: str, plain: bool) -> tuple[list[str], int]:
    """The parts of a document that are taken, and how many of its lines are not."""
    pieces = text.split(_END_OF_TEXT) if _END_OF_TEXT in text else [text]
    if not plain:
        return pieces, 0
    lines = [line.strip() for piece in pieces for line in piece.split("\n") if line.strip()]
    taken = [line for line in lines if _PLAIN.fullmatch(line)]
    return taken, len(lines) - len(taken)


def _sentences(text: str) -> Iterator[tuple[str, bool]]:
    """Every sentence, and whether a mark ends it; marks with nothing before them are none."""
    for found in _SENTENCE.finditer(text):
        body, end = found.groups()
        if body and not body.isspace():
            yield found[0], end is not None
