"""The token store: a folder of shards with a manifest, opened as rows.

    manifest.json     what it holds, from which source and tokenizer, with the seal of every shard; written last
    tokenizer.json    the tokenizer itself
    train-00000.tok, …, heldout-00000.tok, …

A store without its manifest is not a store. Packing is `concat`: the documents of a split, each closed by the end
token, form one stream, and row *i* is the window of `length + 1` tokens from i · length, so every token is predicted
once. What is left at the end, fewer than `length` predictions, is not used.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shoestring.core.errors import DataError, RecordError
from shoestring.core.files import write_whole
from shoestring.core.recipe import fingerprint
from shoestring.core.records import Record
from shoestring.core.schema import encode
from shoestring.data.order import Index
from shoestring.data.shards import Shard
from shoestring.data.tokenizers import Tokenizer, read_tokenizer, tokenizer_fingerprint

Rows = NDArray[np.int64]
"""(rows, length + 1) token ids."""

EAGER_BYTES = 1 << 30
"""Stores up to this size are checked whole when they are opened, about a second; larger ones block by block as read."""


@dataclass(frozen=True, kw_only=True)
class ShardEntry:
    """A shard as the manifest knows it."""

    name: str
    tokens: int
    documents: int
    bytes: int
    seal: int


@dataclass(frozen=True, kw_only=True)
class SplitEntry:
    """One split as the manifest knows it."""

    tokens: int
    documents: int
    text_bytes: int
    shards: tuple[ShardEntry, ...]


@dataclass(frozen=True, kw_only=True)
class Manifest(Record):
    """What a store holds."""

    SCHEMA: ClassVar[str] = "shoestring.store/1"

    source: dict[str, Any]
    tokenizer: str
    tokenizer_fingerprint: str
    vocab_size: int
    itemsize: int
    end: int
    splits: dict[str, SplitEntry]
    check: int = 0
    """CRC-32 of all the other fields."""

    @property
    def fingerprint(self) -> str:
        """Equal for two stores exactly when they hold the same tokens."""
        return fingerprint([self.tokenizer_fingerprint, encode(self.splits)])

    @property
    def bytes(self) -> int:
        return sum(shard.bytes for split in self.splits.values() for shard in split.shards)

    def expected_check(self) -> int:
        values = {key: value for key, value in encode(self).items() if key != "check"}
        return zlib.crc32(json.dumps(values, sort_keys=True).encode())


class StorePaths:
    """The names in a store's folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.manifest = folder / "manifest.json"
        self.tokenizer = folder / "tokenizer.json"
        self.lock = folder / ".lock"

    def shard(self, split: str, number: int) -> Path:
        return self.folder / f"{split}-{number:05d}.tok"


def write_tokenizer(paths: StorePaths, tokenizer: Tokenizer) -> None:
    write_whole(paths.tokenizer, json.dumps(tokenizer.to_dict(), ensure_ascii=False, indent=1) + "\n")


class Store:
    """A store on disk, checked against its manifest; `split(name, length)` gives its rows."""

    def __init__(self, folder: Path, tokenizer: str | None = None):
        self.paths = StorePaths(folder)
        if not self.paths.manifest.is_file():
            raise DataError(f"{folder} is not a token store: it has no manifest; run `shoestring prepare` first")
        try:
            self.manifest = Manifest.read(self.paths.manifest)
        except RecordError as cause:
            raise DataError(f"{folder}: damaged manifest; remove the folder and prepare it again\n{cause}") from cause
        if self.manifest.check != self.manifest.expected_check():
            raise DataError(
                f"{folder}: damaged, its manifest does not match itself; remove the folder and prepare it again"
            )
        if tokenizer is not None and tokenizer != self.manifest.tokenizer:
            raise DataError(f'{folder} was made with the tokenizer "{self.manifest.tokenizer}", not "{tokenizer}"')
        self.tokenizer = read_tokenizer(self.paths.tokenizer)
        if tokenizer_fingerprint(self.tokenizer) != self.manifest.tokenizer_fingerprint:
            raise DataError(f"{self.paths.tokenizer} is not the tokenizer that {folder} was made with")

    def split(self, name: str, length: int) -> StoreRows:
        """The rows of the split "train" or "heldout"."""
        entry = self.manifest.splits[name]
        if entry.tokens < length + 1:
            raise DataError(
                f"{self.paths.folder}: its {name} part holds {entry.tokens:,} tokens in {entry.documents:,} documents, "
                f"and one row needs {length + 1:,}; give more text, a smaller data.length, or another data.heldout"
            )
        return StoreRows([self._shard(shard) for shard in entry.shards], length, entry)

    def _shard(self, entry: ShardEntry) -> Shard:
        shard = Shard(self.paths.folder / entry.name)
        if (shard.tokens, shard.documents, shard.seal) != (entry.tokens, entry.documents, entry.seal):
            raise DataError(f"{shard.path} does not belong to this store: its content is not what the manifest says")
        if self.manifest.bytes <= EAGER_BYTES:
            shard.verify()
        return shard


class StoreRows:
    """The token source over a split's shards. `source[i]` is row i; `rows(indices)` is many at once."""

    def __init__(self, shards: list[Shard], length: int, entry: SplitEntry):
        self.length = length
        self.tokens = entry.tokens
        self.bytes_per_token = entry.text_bytes / entry.tokens
        self._shards = shards
        self._starts = np.cumsum([0, *(shard.tokens for shard in shards)])
        self._count = (entry.tokens - 1) // length

    def __len__(self) -> int:
        return self._count

    def rows(self, indices: Index) -> Rows:
        """Rows by number, as (len(indices), length + 1) ids."""
        if len(indices) and (indices.min() < 0 or indices.max() >= self._count):
            raise IndexError(f"rows are numbered 0 to {self._count - 1}")
        width = self.length + 1
        starts = indices * self.length
        found = np.empty((len(indices), width), dtype=np.int64)
        shards = np.searchsorted(self._starts, starts, side="right") - 1
        for row, (start, shard) in enumerate(zip(starts.tolist(), shards.tolist())):
            filled = 0
            while filled < width:  # a row that crosses the end of a shard goes on in the next
                local = start + filled - self._starts[shard]
                piece = self._shards[shard].ids(local, min(local + width - filled, self._shards[shard].tokens))
                found[row, filled : filled + len(piece)] = piece
                filled += len(piece)
                shard += 1
        return found

    def stream(self) -> list[NDArray[np.unsignedinteger]]:
        """All tokens of the split, shard by shard, for counting."""
        return [shard.ids(0, shard.tokens) for shard in self._shards]
