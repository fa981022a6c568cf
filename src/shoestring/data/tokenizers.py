"""Tokenizers: text to token ids and back. Each has an end-of-document token and a fingerprint."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shoestring.core.errors import DataError, storage_error
from shoestring.core.recipe import fingerprint
from shoestring.data.counting import WORD
from shoestring.data.sizes import BYTE_SPECIALS, WORD_SPECIALS
from shoestring.data.sizes import vocabulary_size as vocabulary_size
from shoestring.data.sizes import words_in as words_in

if TYPE_CHECKING:
    from shoestring.data.fast_words import WordEncoder

Tokens = NDArray[np.uint32]

_COMPILED_CHARACTERS = 1 << 18


class Tokenizer(Protocol):
    """Text to ids and back."""

    spec: str
    vocab_size: int

    @property
    def end(self) -> int | None:
        """The id that ends a document; None where nothing does."""
        ...

    def encode(self, text: str) -> Tokens:
        """The ids of a document, without the end token."""
        ...

    def encode_batch(self, documents: Sequence[str]) -> tuple[NDArray[np.unsignedinteger], NDArray[np.int64]]:
        """The ids of all documents, one behind the other, and how many each has."""
        ...

    def decode(self, ids: Iterable[int]) -> str: ...

    def to_dict(self) -> dict[str, Any]:
        """Everything `from_dict` needs."""
        ...


class ByteTokenizer:
    """One token a byte, after six special ones: the 262 ids of the Perceiver language models."""

    spec = "bytes"
    SPECIALS = BYTE_SPECIALS
    vocab_size = len(SPECIALS) + 256
    end = SPECIALS.index("[EOS]")

    def encode(self, text: str) -> Tokens:
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint32) + np.uint32(len(self.SPECIALS))

    def encode_batch(self, documents: Sequence[str]) -> tuple[NDArray[np.unsignedinteger], NDArray[np.int64]]:
        parts = [document.encode() for document in documents]
        ids = np.frombuffer(b"".join(parts), dtype=np.uint8).astype(np.uint16)
        ids += np.uint16(len(self.SPECIALS))
        return ids, np.fromiter(map(len, parts), dtype=np.int64, count=len(parts))

    def decode(self, ids: Iterable[int]) -> str:
        shift = len(self.SPECIALS)
        pieces = (bytes([i - shift]) if i >= shift else self.SPECIALS[i].encode() for i in map(int, ids))
        return b"".join(pieces).decode(errors="replace")

    def to_dict(self) -> dict[str, Any]:
        return {"spec": self.spec}


class WordTokenizer:
    """The N most frequent words and marks of a corpus, in lower case; every other is <unk>.

    The vocabulary has N + 2 entries even where the corpus has fewer words, so that its size is known beforehand.
    """

    SPECIALS = WORD_SPECIALS
    end = 0
    unknown = 1

    def __init__(self, size: int, words: Iterable[str]):
        self.spec = f"words:{size}"
        self.words = tuple(words)
        self.vocab_size = size + len(self.SPECIALS)
        self._ids = {word: index for index, word in enumerate(self.words, start=len(self.SPECIALS))}
        self._encoder: WordEncoder | None = None

    @classmethod
    def fit(cls, size: int, documents: Iterable[str]) -> WordTokenizer:
        """Count a corpus; words of equal frequency are taken in alphabetical order."""
        counts: Counter[str] = Counter()
        for text in documents:
            counts.update(WORD.findall(text.lower()))
        return cls.of_counts(size, counts)

    @classmethod
    def of_counts(cls, size: int, counts: Mapping[str, int]) -> WordTokenizer:
        """The most frequent words of counts."""
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(size, ranked[:size])

    def encode(self, text: str) -> Tokens:
        get, unknown = self._ids.get, self.unknown
        return np.array([get(word, unknown) for word in WORD.findall(text.lower())], dtype=np.uint32)

    def encode_batch(self, documents: Sequence[str]) -> tuple[NDArray[np.unsignedinteger], NDArray[np.int64]]:
        """As `encode` of each, by compiled loops where that is worth loading them."""
        if self._encoder is None:
            if sum(map(len, documents)) < _COMPILED_CHARACTERS:
                found = [self.encode(text) for text in documents]
                sizes = np.fromiter(map(len, found), dtype=np.int64, count=len(found))
                return np.concatenate(found) if found else np.zeros(0, np.uint32), sizes
            from shoestring.data.fast_words import WordEncoder  # imports Numba

            self._encoder = WordEncoder(self.words, len(self.SPECIALS), self.unknown)
        return self._encoder.encode_batch(documents)

    def decode(self, ids: Iterable[int]) -> str:
        names = (*self.SPECIALS, *self.words)
        return " ".join(names[i] if i < len(names) else self.SPECIALS[1] for i in map(int, ids))

    def to_dict(self) -> dict[str, Any]:
        return {"spec": self.spec, "words": list(self.words)}


class SymbolTokenizer:
    """The symbols of rows that were computed: named by words where a model has them, or else by their numbers."""

    end: int | None = None

    def __init__(self, size: int, names: Iterable[str] | None = None):
        self.spec = f"symbols:{size}"
        self.vocab_size = size
        self.names = None if names is None else tuple(names)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.names or map(str, range(self.vocab_size)))}

    def encode(self, text: str) -> Tokens:
        unknown = [word for word in text.split() if word not in self._ids]
        if unknown:
            raise DataError(f'"{unknown[0]}" is none of the {self.vocab_size} symbols')
        return np.array([self._ids[word] for word in text.split()], dtype=np.uint32)

    def encode_batch(self, documents: Sequence[str]) -> tuple[NDArray[np.unsignedinteger], NDArray[np.int64]]:
        found = [np.zeros(0, dtype=np.uint32), *(self.encode(text) for text in documents)]
        return np.concatenate(found), np.array([len(ids) for ids in found[1:]], dtype=np.int64)

    def decode(self, ids: Iterable[int]) -> str:
        return " ".join(self.names[i] if self.names else str(i) for i in map(int, ids))

    def to_dict(self) -> dict[str, Any]:
        return {"spec": self.spec, "names": None if self.names is None else list(self.names)}


def spelled_bytes(tokenizer: Tokenizer, ids: NDArray[np.integer]) -> int:
    """Bytes of the text that ids of one row spell, without the ends of documents."""
    if isinstance(tokenizer, ByteTokenizer):
        return int((ids >= len(ByteTokenizer.SPECIALS)).sum())
    documents = np.split(ids, np.flatnonzero(ids == (-1 if tokenizer.end is None else tokenizer.end)))
    return sum(len(tokenizer.decode(part[part != tokenizer.end]).encode()) for part in documents if len(part))


def words_of(text: str) -> list[str]:
    """The words and marks of a text, in lower case."""
    return WORD.findall(text.lower())


def open_tokenizer(spec: str, end: str | None = None) -> Tokenizer:
    """A tokenizer that needs no corpus to fit it: bytes, or one that was made elsewhere."""
    assert words_in(spec) is None, "words are counted first"
    place = spec.partition(":")[2]
    return _opened(spec, end, _seen(Path(place).expanduser()) if place else ())


def _seen(path: Path) -> tuple[tuple[str, int, int], ...]:
    """What tells files from themselves after a change."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return tuple((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.is_file())


@lru_cache(maxsize=4)
def _opened(spec: str, end: str | None, _files: tuple[tuple[str, int, int], ...]) -> Tokenizer:
    """Read once, as long as its files stay as they are."""
    if end is not None and spec == "bytes":
        raise DataError(f'data.end = "{end}": bytes end a document with {ByteTokenizer.SPECIALS[ByteTokenizer.end]}')
    if spec == "bytes":
        return ByteTokenizer()
    from shoestring.data.subwords import load_subwords

    return load_subwords(spec, end)


def tokenizer_identity(spec: str, end: str | None) -> str:
    """What tells a tokenizer from any other before it has seen a corpus: a file by what it holds."""
    if words_in(spec) is not None:
        if end is not None:
            own = WordTokenizer.SPECIALS[WordTokenizer.end]
            raise DataError(f'data.end = "{end}": a tokenizer of words ends a document with {own}')
        return spec
    if spec == "bytes" and end is None:
        return spec
    return tokenizer_fingerprint(open_tokenizer(spec, end))


def tokenizer_fingerprint(tokenizer: Tokenizer) -> str:
    """Equal for two tokenizers exactly when they give the same ids."""
    return fingerprint(tokenizer.to_dict())


def read_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer that lies beside a store."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        spec = values["spec"]
        if spec == "bytes":
            return ByteTokenizer()
        if spec == "subwords":
            from shoestring.data.subwords import SubwordTokenizer

            return SubwordTokenizer.from_dict(values)
        if spec.startswith("symbols:"):
            return SymbolTokenizer(int(spec.removeprefix("symbols:")), values["names"])
        return WordTokenizer(int(spec.removeprefix("words:")), values["words"])
    except OSError as cause:
        raise storage_error("read", path, cause) from cause
    except (ValueError, KeyError, TypeError, AttributeError) as cause:
        raise DataError(f"{path}: not a tokenizer file") from cause
