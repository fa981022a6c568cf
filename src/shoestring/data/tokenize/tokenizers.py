"""Tokenizers: text to token ids and back. Each has an end-of-document token and a fingerprint."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shoestring.core.errors import DataError
from shoestring.core.reading import read_text, reading
from shoestring.core.recipe import fingerprint
from shoestring.core.specs import TokenizerSpec
from shoestring.data.tokenize.vocabulary import (
    BYTE_SPECIALS,
    COMPILED_CHARACTERS,
    PIECES_END,
    WORD,
    WORD_SPECIALS,
    tokenizer_spec,
)

if TYPE_CHECKING:
    from shoestring.data.tokenize.fast_words import WordEncoder

Tokens = NDArray[np.uint32]
FITTED_ENDS = {"words": WORD_SPECIALS[0], "bpe": PIECES_END}
"""What ends a document, by the kind of a tokenizer that is fitted to a corpus."""


class Tokenizer(Protocol):
    """Text to ids and back."""

    spec: str
    vocab_size: int

    @property
    def end(self) -> int | None:
        """The id that ends a document, or None."""
        ...

    def encode(self, text: str) -> Tokens:
        """The ids of a document, without the end token."""
        ...

    def encode_batch(self, documents: Sequence[str]) -> tuple[NDArray[np.unsignedinteger], NDArray[np.int64]]:
        """The ids of all documents, concatenated, and how many each has."""
        ...

    def decode(self, ids: Iterable[int]) -> str: ...

    def to_dict(self) -> dict[str, Any]:
        """Everything `from_dict` needs."""
        ...


class ByteTokenizer:
    """One token per byte, after six special ones: the 262 ids of the Perceiver language models."""

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
    """The N most frequent words and marks of a corpus, in lower case; every other word is <unk>.

    The vocabulary has N + 2 entries even if the corpus has fewer words, so that its size is known beforehand.
    """

    SPECIALS = WORD_SPECIALS
    end = 0
    unknown = 1

    def __init__(self, size: int, words: Iterable[str]):
        self.spec = f"words:{size}"
        self.words = tuple(words)
        self.vocab_size = size + len(self.SPECIALS)
        self._ids = {word: index for index, word in enumerate(self.words, start=len(self.SPECIALS))}
        self._characters = 0
        """How many were encoded without compiled loops."""
        self._encoder: WordEncoder | None = None

    @classmethod
    def fit(cls, size: int, documents: Iterable[str]) -> WordTokenizer:
        """Count a corpus; words of equal frequency are ranked in alphabetical order."""
        return cls.of_counts(size, Counter(itertools.chain.from_iterable(map(words_of, documents))))

    @classmethod
    def of_counts(cls, size: int, counts: Mapping[str, int]) -> WordTokenizer:
        """The tokenizer of the most frequent words."""
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(size, ranked[:size])

    def encode(self, text: str) -> Tokens:
        get, unknown = self._ids.get, self.unknown
        return np.array([get(word, unknown) for word in words_of(text)], dtype=np.uint32)

    def encode_batch(self, documents: Sequence[str]) -> tuple[NDArray[np.unsignedinteger], NDArray[np.int64]]:
        """As `encode` for each document; by compiled loops once there was enough text to load them."""
        if self._encoder is None:
            self._characters += sum(map(len, documents))
            if self._characters < COMPILED_CHARACTERS:
                return _one_by_one(self, documents)
            self.loaded()
        assert self._encoder is not None, "it was made"
        return self._encoder.encode_batch(documents)

    def loaded(self) -> WordTokenizer:
        """Itself, with the compiled loops, however little text there was."""
        from shoestring.data.tokenize.fast_words import WordEncoder  # imports Numba

        self._encoder = WordEncoder(self.words, len(self.SPECIALS), self.unknown)
        return self

    def decode(self, ids: Iterable[int]) -> str:
        names = (*self.SPECIALS, *self.words)
        return " ".join(names[i] if i < len(names) else self.SPECIALS[1] for i in map(int, ids))

    def to_dict(self) -> dict[str, Any]:
        return {"spec": self.spec, "words": list(self.words)}


class SymbolTokenizer:
    """The symbols of computed rows: named by words if the model has them, else by their numbers."""

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
            raise DataError(f'"{unknown[0]}" is not one of the {self.vocab_size} symbols')
        return np.array([self._ids[word] for word in text.split()], dtype=np.uint32)

    def encode_batch(self, documents: Sequence[str]) -> tuple[NDArray[np.unsignedinteger], NDArray[np.int64]]:
        return _one_by_one(self, documents)

    def decode(self, ids: Iterable[int]) -> str:
        return " ".join(self.names[i] if self.names else str(i) for i in map(int, ids))

    def to_dict(self) -> dict[str, Any]:
        return {"spec": self.spec, "names": None if self.names is None else list(self.names)}


def _one_by_one(tokenizer: Tokenizer, documents: Sequence[str]) -> tuple[Tokens, NDArray[np.int64]]:
    """The result of `encode_batch`, from `encode`."""
    parts = [tokenizer.encode(text) for text in documents]
    sizes = np.fromiter(map(len, parts), dtype=np.int64, count=len(parts))
    return np.concatenate([np.zeros(0, np.uint32), *parts]), sizes


def spelled_bytes(tokenizer: Tokenizer, ids: NDArray[np.integer]) -> int:
    """Bytes of the text that the ids of one row spell, without the end tokens."""
    if isinstance(tokenizer, ByteTokenizer):
        return int((ids >= len(ByteTokenizer.SPECIALS)).sum())
    documents = np.split(ids, np.flatnonzero(ids == (-1 if tokenizer.end is None else tokenizer.end)))
    return sum(len(tokenizer.decode(part[part != tokenizer.end]).encode()) for part in documents if len(part))


def words_of(text: str) -> list[str]:
    """The words and marks of a text, in lower case."""
    return WORD.findall(text.lower())


_OWN = b'{\n "spec":'
"""How the tokenizer.json of a run or a store begins."""


def open_tokenizer(spec: str, end: str | None = None) -> Tokenizer:
    """A tokenizer that needs no fitting: bytes, or one made elsewhere."""
    known = tokenizer_spec(spec)
    assert known.fitted is None, "it is fitted first"
    return _opened(spec, end, _versions(Path(known.place).expanduser()) if known.place else ())


def fit_tokenizer(spec: TokenizerSpec, documents: Iterable[str]) -> Tokenizer:
    """A tokenizer that is fitted to documents; without any, one with as many ids."""
    if spec.words is not None:
        return WordTokenizer.fit(spec.words, documents)
    from shoestring.data.tokenize.pieces import fit_pieces

    assert spec.pieces is not None, "others are opened"
    return fit_pieces(spec.pieces, documents)


def _versions(path: Path) -> tuple[tuple[str, int, int], ...]:
    """Names, sizes and times of files, which show a change."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return tuple((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.is_file())


@lru_cache(maxsize=4)
def _opened(spec: str, end: str | None, _files: tuple[tuple[str, int, int], ...]) -> Tokenizer:
    """The tokenizer, read again only if its files have changed."""
    if end is not None and spec == "bytes":
        raise DataError(f'data.end = "{end}": bytes end a document with {ByteTokenizer.SPECIALS[ByteTokenizer.end]}')
    if spec == "bytes":
        return ByteTokenizer()
    known = tokenizer_spec(spec)
    if known.kind == "file" and _is_own(own := Path(known.place).expanduser()):
        if end is not None:
            raise DataError(f'data.end = "{end}": {own} has its own token for the end of a document')
        return read_tokenizer(own)
    from shoestring.data.tokenize.subwords import load_subwords

    return load_subwords(spec, end)


def _is_own(path: Path) -> bool:
    """Whether it is the tokenizer.json of a run or a store."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_OWN)) == _OWN


def tokenizer_identity(spec: str, end: str | None) -> str:
    """What distinguishes a tokenizer from any other before it is fitted; for a file, its content."""
    if (kind := tokenizer_spec(spec).kind) in FITTED_ENDS:
        if end is not None:
            raise DataError(f'data.end = "{end}": a tokenizer "{kind}:N" ends a document with {FITTED_ENDS[kind]}')
        return spec
    if spec == "bytes" and end is None:
        return spec
    return tokenizer_fingerprint(open_tokenizer(spec, end))


def tokenizer_fingerprint(tokenizer: Tokenizer) -> str:
    """Equal for two tokenizers exactly when they give the same ids."""
    return fingerprint(tokenizer.to_dict())


def read_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a store, from its tokenizer.json."""
    with reading(path, DataError, "a tokenizer file"):
        values = json.loads(read_text(path, DataError))
        kind, _, size = values["spec"].partition(":")
        if kind == "bytes":
            return ByteTokenizer()
        if kind == "subwords":
            from shoestring.data.tokenize.subwords import SubwordTokenizer

            return SubwordTokenizer.from_dict(values)
        if kind == "symbols":
            return SymbolTokenizer(int(size), values["names"])
        return WordTokenizer(int(size), values["words"])
