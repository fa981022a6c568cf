"""The rows of an HMM: sentences of the most frequent words, joined and cut, made once and kept on disk.

A sentence ends with a mark (. ! ?), the marks that follow it (... or ?!) and a closing quote. Words and marks are those
of `WordTokenizer`, in lower case. Text without such an end is not a sentence.
"""

from __future__ import annotations

import json
import re
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoestring.core.errors import DataError, StorageError
from shoestring.core.files import drop_lock, locked, sweep
from shoestring.core.hmm_sections import Hmm
from shoestring.core.reading import reading
from shoestring.core.recipe import fingerprint
from shoestring.core.schema import decode, encode
from shoestring.core.sections import Data
from shoestring.core.seeds import derive
from shoestring.core.units import counted
from shoestring.data.pack.order import drawn_rows
from shoestring.data.read.corpora import drawn, open_source, texts
from shoestring.data.store.shards import dtype_for
from shoestring.data.store.work_units import is_heldout
from shoestring.data.tokenize.tokenizers import WordTokenizer, words_of
from shoestring.storage.tensor_file import read_tensors, write_tensors

_FORMAT = 4
FILE = "rows.safetensors"
LARGER = (2, 4, 8)
"""The larger alphabets whose rows are counted too, as multiples of the one that is used."""
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
    def reason(self) -> str:
        """Why there are as many training rows as there are, and how many other alphabets would leave."""
        ledger, words = self.ledger["train"], len(self.alphabet)
        if not ledger["sentences"]:
            return f"of {self.train.shape[1]} tokens"
        share = ledger["kept"] / ledger["sentences"]
        text = f"{share:.1%} of {counted(ledger['sentences'], 'sentence')} use only the {words:,} most frequent words"
        if others := ledger.get("rows_by_words"):
            text += "; " + ", ".join(f"{int(size):,} words leave {count:,} rows" for size, count in others.items())
        return text

    @property
    def fingerprint(self) -> str:
        """Identifies everything that the rows are made from, and their content."""
        check = 0
        for rows in (self.train, self.heldout):
            check = zlib.crc32(np.ascontiguousarray(rows).data, check)
        return f"{self.path.parent.name}-{check:08x}"


def rows_file(data: Data, seed: int, hmm: Hmm) -> Path:
    """Where the rows are, or will be."""
    words = data.tokenizer.words
    options = [words, data.length, data.documents, data.heldout, hmm.unique, hmm.plain]
    identity = [_FORMAT, open_source(data, seed).identity(), *options]
    return Path(data.folder) / f"sentences-{words}-{fingerprint(encode(identity))[:8]}" / FILE


def prepare_rows(data: Data, seed: int, hmm: Hmm) -> SentenceStore:
    """The rows of `data.documents` documents (default: all), made if they are not on disk yet."""
    words = data.tokenizer.words
    assert words is not None, "checked when the recipe was read"
    source, path = open_source(data, seed), rows_file(data, seed, hmm)
    if path.is_file():
        drop_lock(path.parent / ".lock")
        return read_rows(path)
    limit = None if data.documents is None else int(data.documents)
    held_out = is_heldout(derive(0, "heldout"), data.heldout)

    def documents(held: bool) -> Iterator[str]:
        numbered = drawn(source, enumerate(texts(source)), limit)
        return (text for index, text in numbered if held_out(index) is held)

    with locked(path.parent / ".lock", f"the rows {path.parent}"):
        sweep(path.parent, own=True)
        ranked = ranked_words(documents(False), hmm.plain)
        alphabet = ranked[:words]
        splits = {
            name: rows_of(documents(name == "heldout"), alphabet, data.length, hmm.unique, hmm.plain, others)
            for name, others in (("train", ranked[words:]), ("heldout", ()))
        }
        arrays = {name: np.ascontiguousarray(split.rows) for name, split in splits.items()}
        about = {"alphabet": list(alphabet), "ledger": {name: encode(split.ledger) for name, split in splits.items()}}
        write_tensors(path, arrays, json.dumps(about))
    return read_rows(path)


def find_rows(path: Path) -> Path | None:
    """The file of a store of sentences, where `path` is one or its folder; None where it is neither."""
    file = path / FILE if path.is_dir() else path
    return file if file.name == FILE and file.is_file() else None


def read_rows(path: Path) -> SentenceStore:
    """The store in the file `path`; every byte is checked."""
    try:
        arrays, note = read_tensors(path)
        with reading(path, StorageError):
            content = json.loads(note)
            rows, ledgers = (arrays["train"], arrays["heldout"]), content["ledger"]
            alphabet = tuple(map(str, content["alphabet"]))
            problems: list[str] = []
            for name in ("train", "heldout"):
                decode(Ledger, ledgers[name], f"ledger.{name}", problems)
            if any(split.max(initial=0) >= len(alphabet) for split in rows):
                problems.append(f"a token beyond the {len(alphabet):,} words of the alphabet")
            if problems:
                raise ValueError("; ".join(problems))
            return SentenceStore(*rows, alphabet, ledgers, path)
    except StorageError as cause:
        raise DataError(f"{cause}; remove the file and run the same command again") from cause


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
    rows_by_words: dict[str, int] = field(default_factory=dict)
    """Rows that alphabets of other sizes would leave, by the number of words; of the training text only."""


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
    return ranked_words(documents, plain)[:words]


def ranked_words(documents: Iterable[str], plain: bool = False) -> tuple[str, ...]:
    """All words and marks, the most frequent first; ties in alphabetical order."""
    return WordTokenizer.fit(sys.maxsize, (piece for text in documents for piece in _pieces(text, plain)[0])).words


def rows_of(
    documents: Iterable[str],
    alphabet: Sequence[str],
    length: int,
    unique: bool = False,
    plain: bool = False,
    others: Sequence[str] = (),
) -> SentenceRows:
    """The rows over a given alphabet; for held-out text, use that of the training text.

    `others` are the words that follow the alphabet in frequency: with them, the rows of larger alphabets are counted.
    """
    if length < 1:
        raise DataError(f"length = {length}: must be at least 1")
    joined = join_sentences(documents, alphabet, unique, plain, others)
    stream, ledger = joined.stream, joined.ledger
    count = len(stream) // length
    if not count:
        raise DataError(
            f"no row of {length:,} tokens: of {counted(ledger.sentences, 'sentence')}, {ledger.kept:,} use only the "
            f"{counted(len(alphabet), 'word')}, {counted(len(stream), 'token')} in all; use more text, "
            "more words or a smaller length"
        )
    by_words = {str(size): tokens // length for size, tokens in joined.tokens_by_words.items()}
    ledger = replace(ledger, dropped=len(stream) - count * length, rows_by_words=by_words)
    rows = np.frombuffer(stream, dtype=dtype_for(len(alphabet)))[: count * length].reshape(count, length).copy()
    return SentenceRows(rows, tuple(alphabet), ledger)


class Joined(NamedTuple):
    """The sentences over an alphabet, one after another."""

    stream: array[int]
    ledger: Ledger
    tokens_by_words: dict[int, int]
    """Tokens that larger alphabets would leave."""


def join_sentences(
    documents: Iterable[str],
    alphabet: Sequence[str],
    unique: bool = False,
    plain: bool = False,
    others: Sequence[str] = (),
    most: int | None = None,
) -> Joined:
    """Join the sentences whose words are all in the alphabet, until there are at least `most` tokens."""
    ids = {word: index for index, word in enumerate((*alphabet, *others))}
    size = len(alphabet)
    larger = {size * factor: 0 for factor in LARGER if size < size * factor < len(ids)}
    elsewhere: set[int] = set()
    dtype = dtype_for(size)
    stream = array(dtype.char)
    different: set[bytes] = set()
    left_out = sentences = unfinished = kept = 0
    for text in documents:
        if most is not None and len(stream) >= most:
            break
        pieces, refused = _pieces(text, plain)
        left_out += refused
        for sentence, finished in (pair for piece in pieces for pair in _sentences(piece.lower())):
            if not finished:
                unfinished += 1
                continue
            sentences += 1
            ranks = [ids.get(word, sys.maxsize) for word in words_of(sentence)]
            rarest = max(ranks)
            if larger and (not unique or hash(tuple(ranks)) not in elsewhere):
                elsewhere.update([hash(tuple(ranks))] if unique else [])
                for words in larger:
                    larger[words] += len(ranks) if rarest < words else 0
            if rarest >= size:
                continue
            tokens = array(dtype.char, ranks)
            kept += 1
            before = len(different)
            different.add(tokens.tobytes())
            if not unique or len(different) > before:
                stream.extend(tokens)
    ledger = Ledger(
        lines_left_out=left_out,
        sentences=sentences,
        unfinished=unfinished,
        kept=kept,
        unique=len(different),
        tokens=len(stream),
        dropped=0,
    )
    return Joined(stream, ledger, larger)


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
