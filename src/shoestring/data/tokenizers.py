"""Tokenizers: text to token ids and back. Each has an end-of-document token and a fingerprint."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shoestring.core.errors import DataError, storage_error
from shoestring.core.recipe import fingerprint

Tokens = NDArray[np.uint32]

_WORD = re.compile(r"\w+(?:'\w+)?|[^\w\s]")


class Tokenizer(Protocol):
    """Text to ids and back."""

    spec: str
    vocab_size: int
    end: int
    """The id that ends a document."""

    def encode(self, text: str) -> Tokens:
        """The ids of a document, without the end token."""
        ...

    def decode(self, ids: Iterable[int]) -> str: ...

    def to_dict(self) -> dict[str, Any]:
        """Everything `from_dict` needs."""
        ...


class ByteTokenizer:
    """One token a byte, after six special ones: the 262 ids of the Perceiver language models."""

    spec = "bytes"
    SPECIALS = ("[PAD]", "[BOS]", "[EOS]", "[MASK]", "[CLS]", "[SEP]")
    vocab_size = len(SPECIALS) + 256
    end = SPECIALS.index("[EOS]")

    def encode(self, text: str) -> Tokens:
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint32) + np.uint32(len(self.SPECIALS))

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

    SPECIALS = ("<end>", "<unk>")
    end = 0
    unknown = 1

    def __init__(self, size: int, words: Iterable[str]):
        self.spec = f"words:{size}"
        self.words = tuple(words)
        self.vocab_size = size + len(self.SPECIALS)
        self._ids = {word: index for index, word in enumerate(self.words, start=len(self.SPECIALS))}

    @classmethod
    def fit(cls, size: int, documents: Iterable[str]) -> WordTokenizer:
        """Count a corpus; words of equal frequency are taken in alphabetical order."""
        counts: Counter[str] = Counter()
        for text in documents:
            counts.update(_WORD.findall(text.lower()))
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(size, ranked[:size])

    def encode(self, text: str) -> Tokens:
        get, unknown = self._ids.get, self.unknown
        return np.array([get(word, unknown) for word in _WORD.findall(text.lower())], dtype=np.uint32)

    def decode(self, ids: Iterable[int]) -> str:
        names = (*self.SPECIALS, *self.words)
        return " ".join(names[i] if i < len(names) else self.SPECIALS[1] for i in map(int, ids))

    def to_dict(self) -> dict[str, Any]:
        return {"spec": self.spec, "words": list(self.words)}


def words_of(text: str) -> list[str]:
    """The words and marks of a text, in lower case."""
    return _WORD.findall(text.lower())


def words_in(spec: str) -> int | None:
    """N of "words:N", None of "bytes"; any other tokenizer is an error."""
    if spec == "bytes":
        return None
    kind, _, number = spec.partition(":")
    if kind == "words" and number.isdecimal() and int(number) > 0:
        return int(number)
    raise DataError(f'data.tokenizer = "{spec}": must be "bytes" or "words:N" with N at least 1')


def vocabulary_size(spec: str) -> int:
    """How many ids the tokenizer will have; known without reading the corpus."""
    words = words_in(spec)
    return ByteTokenizer.vocab_size if words is None else words + len(WordTokenizer.SPECIALS)


def fit_tokenizer(spec: str, documents: Iterable[str]) -> Tokenizer:
    """The tokenizer that `spec` names, fitted to the documents where it needs them."""
    words = words_in(spec)
    return ByteTokenizer() if words is None else WordTokenizer.fit(words, documents)


def tokenizer_fingerprint(tokenizer: Tokenizer) -> str:
    """Equal for two tokenizers exactly when they give the same ids."""
    return fingerprint(tokenizer.to_dict())


def read_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer that lies beside a store."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        words = words_in(values["spec"])
        return ByteTokenizer() if words is None else WordTokenizer(words, values["words"])
    except OSError as cause:
        raise storage_error("read", path, cause) from cause
    except (ValueError, KeyError, TypeError, AttributeError) as cause:
        raise DataError(f"{path}: not a tokenizer file") from cause
