"""The rows of an HMM: sentences of the most frequent words, joined and cut, made once and kept on disk.

A sentence ends with a mark (. ! ?), the marks that follow it (... or ?!) and a closing quote. Words and marks are those
of `WordTokenizer`, in lower case. Text without such an end is not a sentence.
"""

from __future__ import annotations

import json
import re
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoestring.core.errors import DataError, StorageError
from shoestring.core.files import locked
from shoestring.core.recipe import Data, Hmm, fingerprint
from shoestring.core.schema import encode
from shoestring.core.seeds import derive
from shoestring.data.pack.order import drawn_rows
from shoestring.data.read.corpora import drawn, open_source, texts
from shoestring.data.store.shards import dtype_for
from shoestring.data.store.work_units import is_heldout
from shoestring.data.tokenize.tokenizers import WordTokenizer, words_of
from shoestring.storage.tensor_file import read_tensors, write_tensors

_FORMAT = 4
_SENTENCE = re.compile(r"""([^.!?]*)([.!?]+["'”’]*)?""")
_PLAIN = re.compile(r"[a-zA-Z ,.]*")
_END_OF_TEXT = "<|endoftext|>"
"""Separates the stories of TinyStories, also in the middle of a line; it is not text."""

Rows = NDArray[np.unsignedinteger]
"""(rows, length) ids, in the smallest type that holds them."""


class SentenceStore(NamedTuple):
    """Training and held-out rows over one alphabet, that of the training documents."""

    train: Rows
    heldout: Rows
    alphabet: tuple[str, ...]
    ledger: dict[str, Any]
    """For each split: sentences seen and kept, tokens kept and dropped."""
    path: Path

    def scored(self, most: int | None = None) -> Rows:
        """Held-out rows drawn over all of them, the same in every run; `most` of them, or all."""
        return self.heldout[drawn_rows(len(self.heldout) if most is None else most, len(self.heldout))]

    @property
    def fingerprint(self) -> str:
        """Identifies everything that the rows are made from, and their content."""
        check = 0
        for rows in (self.train, self.heldout):
            check = zlib.crc32(np.ascontiguousarray(rows).data, check)
        return f"{self.path.parent.name}-{check:08x}"


def prepare_rows(data: Data, seed: int, hmm: Hmm) -> SentenceStore:
    """The rows of `data.documents` documents (default: all), made if they are not on disk yet."""
    source = open_source(data, seed)
    words = data.tokenizer.words
    assert words is not None, "checked when the recipe was read"
    options = [words, data.length, data.documents, data.heldout, hmm.unique, hmm.plain]
    identity = [_FORMAT, source.identity(), *options]
    path = Path(data.folder) / f"sentences-{words}-{fingerprint(encode(identity))[:8]}" / "rows.safetensors"
    if path.is_file():
        return _read(path)
    limit = None if data.documents is None else int(data.documents)
    held_out = is_heldout(derive(0, "heldout"), data.heldout)

    def documents(held: bool) -> Iterator[str]:
        numbered = drawn(source, enumerate(texts(source)), limit)
        return (text for index, text in numbered if held_out(index) is held)

    with locked(path.parent / ".lock", f"the rows {path.parent}"):
        alphabet = top_words(documents(False), words, hmm.plain)
        splits = {
            name: rows_of(documents(name == "heldout"), alphabet, data.length, hmm.unique, hmm.plain)
            for name in ("train", "heldout")
        }
        arrays = {name: np.ascontiguousarray(split.rows) for name, split in splits.items()}
        about = {"alphabet": list(alphabet), "ledger": {name: encode(split.ledger) for name, split in splits.items()}}
        write_tensors(path, arrays, json.dumps(about))
    return _read(path)


def _read(path: Path) -> SentenceStore:
    try:
        arrays, note = read_tensors(path)
        content = json.loads(note)
        return SentenceStore(arrays["train"], arrays["heldout"], tuple(content["alphabet"]), content["ledger"], path)
    except (StorageError, KeyError, TypeError, AttributeError, ValueError) as cause:
        raise DataError(f"{path}: damaged ({cause}); remove the file and run the same command again") from cause


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """How many sentences were used, and how many were not."""

    lines_left_out: int
    """Lines with a character that is not plain; 0 if any text is accepted."""
    sentences: int
    """Sentences in the accepted text."""
    unfinished: int
    """Pieces of text without a mark at their end; not used, and not among the sentences."""
    kept: int
    """Sentences whose words are all in the alphabet."""
    unique: int
    """Distinct sentences among those kept."""
    tokens: int
    """Tokens of the sentences that were joined: all kept, or the distinct ones."""
    dropped: int
    """Tokens at the end that do not fill a row."""


class SentenceRows(NamedTuple):
    rows: Rows
    """A sentence may continue in the next row."""
    alphabet: tuple[str, ...]
    """The word of each id, the most frequent first."""
    ledger: Ledger


def top_words(documents: Iterable[str], words: int, plain: bool = False) -> tuple[str, ...]:
    """The most frequent words and marks, at most `words` of them; ties in alphabetical order."""
    if words < 1:
        raise DataError(f"words = {words}: must be at least 1")
    return WordTokenizer.fit(words, (piece for text in documents for piece in _pieces(text, plain)[0])).words


def rows_of(
    documents: Iterable[str], alphabet: Sequence[str], length: int, unique: bool = False, plain: bool = False
) -> SentenceRows:
    """The rows over a given alphabet; for held-out text, use that of the training text."""
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
        for sentence, finished in (pair for piece in pieces for pair in _sentences(piece.lower())):
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
            f"{len(stream):,} tokens in all; use more text, more words or a smaller length"
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
    """The accepted pieces of a document, and how many of its lines are left out."""
    pieces = text.split(_END_OF_TEXT) if _END_OF_TEXT in text else [text]
    if not plain:
        return pieces, 0
    lines = [line.strip() for piece in pieces for line in piece.split("\n") if line.strip()]
    accepted = [line for line in lines if _PLAIN.fullmatch(line)]
    return accepted, len(lines) - len(accepted)


def _sentences(text: str) -> Iterator[tuple[str, bool]]:
    """Every sentence, and whether a mark ends it; marks alone are not a sentence."""
    for match in _SENTENCE.finditer(text):
        body, end = match.groups()
        if body and not body.isspace():
            yield match[0], end is not None
