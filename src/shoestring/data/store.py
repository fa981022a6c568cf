"""The token store: a folder of shards with a manifest, opened as rows.

    manifest.json     what it holds, from which source and tokenizer, with the seal of every shard; written last
    tokenizer.json    the tokenizer itself
    train-00000.tok, …, heldout-00000.tok, …

A store without its manifest is not a store. Packing is `concat`: the documents of a split, each closed by the end
token, form one stream, and row *i* is the window of `length + 1` tokens from i · length, so every token is predicted
once. What is left at the end, fewer than `length` predictions, is not used. A store of fixed rows has none of this: its
row *i* is the i-th of equal pieces, as it was made.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shoestring.core.errors import DataError, RecordError
from shoestring.core.files import is_locked, write_whole
from shoestring.core.recipe import fingerprint
from shoestring.core.records import Record
from shoestring.core.schema import encode
from shoestring.data.order import Index, step_rows
from shoestring.data.shards import Shard
from shoestring.data.tokenizers import Tokenizer, read_tokenizer, tokenizer_fingerprint
from shoestring.data.windows import row_count, row_start, shifted_starts

Rows = NDArray[np.int64]
"""(rows, length + 1) token ids."""

_ORDERED_ROWS = 1 << 16
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
    end: int | None
    """The token that ends a document; None where rows are no documents."""
    splits: dict[str, SplitEntry]
    row: int | None = None
    """Tokens of every row, in a store of fixed rows."""
    ledger: dict[str, Any] = field(default_factory=dict)
    """Of a text: records that were broken (with examples) or empty, and documents that had occurred before."""
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

    def lock(self, part: tuple[int, int]) -> Path:
        """Held by whoever makes part i of n."""
        return self.folder / (".lock" if part == (0, 1) else f".lock-{part[0]}-of-{part[1]}")

    def remove_leftovers(self, own: Path | None = None) -> None:
        """Remove what killed processes left, unless someone is writing, with another lock than one's own."""
        if not any(is_locked(path) for path in self.folder.glob(".lock*") if path != own):
            for leftover in self.folder.glob(".*.tmp"):
                leftover.unlink(missing_ok=True)

    def shard(self, split: str, *numbers: int) -> Path:
        """A shard by its number, or by its unit and its number there."""
        name = "-".join([split, *(f"{number:05d}" for number in numbers)])
        return self.folder / f"{name}.tok"


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

    def verify(self) -> None:
        """Check every byte of every shard."""
        for split in self.manifest.splits.values():
            for entry in split.shards:
                self._shard(entry).verify()

    def split(self, name: str, length: int, shift_seed: int | None = None) -> StoreRows:
        """The rows of the split "train" or "heldout", joined and cut; `shift_seed` shifts them by epoch."""
        entry = self.manifest.splits.get(name)
        if entry is None:
            raise DataError(f"{self.paths.folder} has no {name} rows; it has: {', '.join(self.manifest.splits)}")
        row = self.manifest.row
        if row is not None and length + 1 > row:
            raise DataError(
                f"{self.paths.folder} holds rows of {row:,} tokens, and data.length = {length:,} needs {length + 1:,}; "
                f"a row of {row:,} makes at most {row - 1:,} predictions"
            )
        if entry.tokens < length + 1:
            raise DataError(
                f"{self.paths.folder}: its {name} part holds {entry.tokens:,} tokens in {entry.documents:,} documents, "
                f"and one row needs {length + 1:,}; give more text, a smaller data.length, or another data.heldout"
            )
        if row is not None and shift_seed is not None:
            raise DataError(f"{self.paths.folder} holds rows of a fixed length, which cannot be shifted")
        return StoreRows([self._shard(shard) for shard in entry.shards], length, entry, row, shift_seed)

    def _shard(self, entry: ShardEntry) -> Shard:
        shard = Shard(self.paths.folder / entry.name)
        if (shard.tokens, shard.documents, shard.seal) != (entry.tokens, entry.documents, entry.seal):
            raise DataError(f"{shard.path} does not belong to this store: its content is not what the manifest says")
        if self.manifest.bytes <= EAGER_BYTES:
            shard.verify()
        return shard


class StoreRows:
    """The token source over a split's shards. `rows(indices)` gives rows by number.

    With `shift` each epoch cuts the stream at another random place (see `windows`); a row's number then says its epoch
    too, as epoch · n + row.
    """

    def __init__(
        self, shards: list[Shard], length: int, entry: SplitEntry, row: int | None = None, shift_seed: int | None = None
    ):
        self.length = length
        self.tokens = entry.tokens
        self.bytes_per_token = entry.text_bytes / entry.tokens
        self.shards, self._row, self._stride, self._shift_seed = shards, row, row or length, shift_seed
        self._starts = np.cumsum([0, *(shard.tokens for shard in shards)])
        self._documents = np.cumsum([0, *(shard.documents for shard in shards)])
        self._count = entry.tokens // row if row else (entry.tokens - 1) // length
        self._block, self._blocks = (-1, -1, -1), np.zeros(0, dtype=np.int64)
        if shift_seed is not None:
            self._count = max(1, row_count(entry.tokens, length, length - 1))  # as many as any offset leaves

    def __len__(self) -> int:
        return self._count

    def order(self, seed: int, step: int, batch: int) -> Index:
        """The numbers of the rows that a step reads."""
        found = self._ordered(seed, step, batch)
        if self._shift_seed is None:
            return found
        return found + np.arange(step * batch, (step + 1) * batch, dtype=np.int64) // self._count * self._count

    def _ordered(self, seed: int, step: int, batch: int) -> Index:
        """As `step_rows`, for many steps at a time: a permutation costs little more for thousands than for hundreds."""
        steps = max(1, min(_ORDERED_ROWS, 4 * self._count) // batch)
        block = (seed, batch, step // steps)
        if self._block != block:
            self._block, self._blocks = block, step_rows(seed, self._count, step // steps, steps * batch)
            self._blocks.flags.writeable = False
        at = step % steps * batch
        return self._blocks[at : at + batch]

    def starts(self, indices: Index) -> Index:
        """Where in the stream each row starts."""
        if len(indices) and (indices.min() < 0 or (self._shift_seed is None and indices.max() >= self._count)):
            raise IndexError(f"rows are numbered 0 to {self._count - 1}")
        if self._shift_seed is None:
            return indices * self._stride
        epochs, rows = np.divmod(indices, self._count)
        seen, which = np.unique(epochs, return_inverse=True)
        offsets = [shifted_starts(self.tokens, self.length, self._shift_seed, int(epoch)) for epoch in seen]
        return row_start(rows, self.length, 0) + np.array(offsets, dtype=np.int64)[which]

    def rows(self, indices: Index) -> Rows:
        """Rows by number, as (len(indices), length + 1) ids."""
        return self.windows(self.starts(indices), self.length + 1)

    def windows(self, starts: Index, width: int) -> Rows:
        """The `width` tokens from each place of the stream on."""
        if len(self.shards) == 1:
            return self.shards[0].gather(starts, width).astype(np.int64)
        shards = np.searchsorted(self._starts, starts, side="right") - 1
        inside = starts + width <= self._starts[shards + 1]
        found = np.empty((len(starts), width), dtype=np.int64)
        for shard in np.unique(shards[inside]).tolist():
            here = np.flatnonzero(inside & (shards == shard))
            found[here] = self.shards[shard].gather(starts[here] - self._starts[shard], width)
        for row in np.flatnonzero(~inside).tolist():  # it crosses the end of a shard and goes on in the next
            found[row] = np.concatenate(list(self._pieces(int(starts[row]), width)))
        return found

    def _pieces(self, start: int, width: int) -> Iterator[NDArray[np.unsignedinteger]]:
        shard = int(np.searchsorted(self._starts, start, side="right")) - 1
        while width:
            local = start - int(self._starts[shard])
            piece = self.shards[shard].ids(local, min(local + width, self.shards[shard].tokens))
            yield piece
            start, width, shard = start + len(piece), width - len(piece), shard + 1

    def segments(self, starts: Index, width: int) -> NDArray[np.int64]:
        """Which document each of the `width` tokens from each place on belongs to: 1 and on in each row, (n, width)."""
        places = starts[:, None] + np.arange(width)
        shards = np.searchsorted(self._starts, places, side="right") - 1
        numbers = np.empty_like(places)
        for shard in np.unique(shards).tolist():  # no document goes on in the next one
            here = shards == shard
            within = np.searchsorted(
                self.shards[shard].document_ends(), places[here] - self._starts[shard], side="right"
            )
            numbers[here] = self._documents[shard] + within
        return numbers - numbers[:, :1] + 1

    def stream(self) -> Iterator[NDArray[np.unsignedinteger]]:
        """All tokens of the split, shard by shard, for counting; fixed rows as such, (rows, tokens)."""
        for shard in self.shards:
            ids = shard.ids(0, shard.tokens)
            yield ids if self._row is None else ids.reshape(-1, self._row)
