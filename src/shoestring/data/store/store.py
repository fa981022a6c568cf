"""The token store: a folder of shards with a manifest, opened as rows.

    manifest.json     content, source and tokenizer, with the checksum of every shard; written last
    tokenizer.json    the tokenizer itself
    train-00000.tok, …, heldout-00000.tok, …

A folder without a manifest is not a store. Packing is `concat`: the documents of a split, each followed by the end
token, form one stream, and row *i* is the window of `length + 1` tokens from i · length, so every token is predicted
once. The rest, fewer than `length` predictions, is not used. A store of fixed rows is different: its row *i* is the
i-th of equal pieces, as it was made.
"""

from __future__ import annotations

import itertools
import json
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shoestring.core.consistency import differs, negatives
from shoestring.core.errors import DataError, RecordError, VersionError
from shoestring.core.files import sweep, write_whole
from shoestring.core.recipe import fingerprint
from shoestring.core.schema import Record, encode
from shoestring.core.units import counted
from shoestring.data.pack.order import Index, Pool, RowIndex, epoch_offset, step_rows
from shoestring.data.store.shards import Shard
from shoestring.data.store.sizes import stored_ids, token_bytes
from shoestring.data.tokenize.tokenizers import Tokenizer, read_tokenizer, tokenizer_fingerprint

Rows = NDArray[np.int64]
"""(rows, length + 1) token ids."""

_ORDERED_ROWS = 1 << 16
EAGER_BYTES = 1 << 30
"""Stores up to this size are checked when opened, in about a second; larger ones block by block when read."""


@dataclass(frozen=True, kw_only=True)
class ShardEntry:
    """A shard in the manifest."""

    name: str
    tokens: int
    documents: int
    bytes: int
    seal: int


@dataclass(frozen=True, kw_only=True)
class ExtentEntry:
    """What an extent adds to a split."""

    shards: int
    text_bytes: int
    share: float
    """Of the corpus that is read with this extent and all before it."""


@dataclass(frozen=True, kw_only=True)
class SplitEntry:
    """A split in the manifest."""

    tokens: int
    documents: int
    text_bytes: int
    shards: tuple[ShardEntry, ...]
    extents: tuple[ExtentEntry, ...] = ()
    """Empty where the split is not divided into extents."""

    @classmethod
    def of(cls, shards: Sequence[ShardEntry], text_bytes: int, extents: Sequence[ExtentEntry] = ()) -> SplitEntry:
        """The split that these shards make up."""
        tokens, documents = (sum(getattr(shard, name) for shard in shards) for name in ("tokens", "documents"))
        return cls(
            tokens=tokens, documents=documents, text_bytes=text_bytes, shards=tuple(shards), extents=tuple(extents)
        )

    @property
    def bytes(self) -> int:
        return sum(shard.bytes for shard in self.shards)

    def first(self, extents: int) -> SplitEntry:
        """The split of the first `extents` extents."""
        if extents >= len(self.extents):
            return self
        kept = self.extents[:extents]
        shards = self.shards[: sum(extent.shards for extent in kept)]
        return SplitEntry.of(shards, sum(extent.text_bytes for extent in kept), kept)

    def with_share(self, share: float | None) -> SplitEntry:
        """The split of as few extents as hold this share of the corpus; all if that is None."""
        wanted = math.inf if share is None else share
        return self.first(1 + sum(extent.share < wanted for extent in self.extents))

    def with_tokens(self, tokens: int) -> SplitEntry:
        """The split of as few extents as hold this many tokens; all if they have fewer."""
        held = itertools.accumulate(self.first(n + 1).tokens - self.first(n).tokens for n in range(len(self.extents)))
        return self.first(1 + sum(count < tokens for count in held))


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
    """The token that ends a document; None if rows are not documents."""
    splits: dict[str, SplitEntry]
    row: int | None = None
    """Tokens per row, in a store of fixed rows."""
    prompts: bool = False
    """Whether documents are prompts with completions, and tokens of prompts marked (`tokenize/prompts.py`)."""
    ledger: dict[str, Any] = field(default_factory=dict)
    """For text: numbers of broken records (with examples), empty records and repeated documents."""
    check: int = 0
    """CRC-32 of all the other fields."""

    def contradictions(self) -> list[str]:
        lines = negatives(self, signed=("source", "ledger"))
        ids = stored_ids(self.vocab_size, self.prompts)
        if self.itemsize != (size := token_bytes(ids)):
            lines.append(f"itemsize = {self.itemsize!r}: {ids:,} ids take {size} bytes")
        for name, split in self.splits.items():
            of_shards = SplitEntry.of(split.shards, split.text_bytes)
            for what in ("tokens", "documents"):
                given, total = getattr(split, what), getattr(of_shards, what)
                if what == "documents" and self.row is not None:  # rows are its documents, and shards do not count them
                    total = split.tokens // max(1, self.row)
                lines += differs(f"splits.{name}.{what}", given, total, "the sum of its shards")
            if split.extents:
                shards, text_bytes = (sum(getattr(e, what) for e in split.extents) for what in ("shards", "text_bytes"))
                lines += differs(f"splits.{name}.extents", shards, len(split.shards), "the number of shards")
                lines += differs(f"splits.{name}.text_bytes", split.text_bytes, text_bytes, "the sum of its extents")
        return lines

    @property
    def fingerprint(self) -> str:
        """Equal for two stores exactly when they hold the same tokens."""
        return fingerprint([self.tokenizer_fingerprint, _without_extents(encode(self.splits))])

    @property
    def bytes(self) -> int:
        return sum(split.bytes for split in self.splits.values())

    def expected_check(self) -> int:
        values = {key: value for key, value in encode(self).items() if key != "check"}
        if not any(split.extents for split in self.splits.values()):  # as they were written before there were extents
            values["splits"] = _without_extents(values["splits"])
        if not self.prompts:  # nor prompts
            del values["prompts"]
        return zlib.crc32(json.dumps(values, sort_keys=True).encode())


def _without_extents(splits: dict[str, Any]) -> dict[str, Any]:
    return {name: {key: value for key, value in split.items() if key != "extents"} for name, split in splits.items()}


class StorePaths:
    """The names of the files in a store's folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.manifest = folder / "manifest.json"
        self.tokenizer = folder / "tokenizer.json"
        self.work = folder / ".work"
        """Results of passes; removed when the store is complete."""

    def lock(self, part: tuple[int, int]) -> Path:
        """The lock of the process that makes part i of n."""
        return self.folder / (".lock" if part == (0, 1) else f".lock-{part[0]}-of-{part[1]}")

    def sweep(self) -> None:
        """Remove what killed processes were writing."""
        for folder in (self.folder, self.work):
            sweep(folder, own=True)

    def shard(self, split: str, *numbers: int) -> Path:
        """A shard by its number, or by its work unit and its number there."""
        name = "-".join([split, *(f"{number:05d}" for number in numbers)])
        return self.folder / f"{name}.tok"


def write_tokenizer(path: Path, tokenizer: Tokenizer) -> None:
    """Write the file that `read_tokenizer` reads."""
    write_whole(path, tokenizer_text(tokenizer))


def tokenizer_text(tokenizer: Tokenizer) -> str:
    """The content of that file."""
    return json.dumps(tokenizer.to_dict(), ensure_ascii=False, indent=1) + "\n"


class Store:
    """A store on disk, checked against its manifest; `split(name, length)` returns its rows."""

    def __init__(self, folder: Path, tokenizer: str | None = None):
        self.paths = StorePaths(folder)
        if not self.paths.manifest.is_file():
            raise DataError(f"{folder} is not a token store: it has no manifest; run `shoestring prepare` first")
        try:
            self.manifest = Manifest.read(self.paths.manifest)
        except VersionError:
            raise
        except RecordError as cause:
            raise DataError(f"{folder}: damaged manifest; remove the folder and prepare it again\n{cause}") from cause
        if self.manifest.check != self.manifest.expected_check():
            raise DataError(f"{folder}: damaged manifest (wrong checksum); remove the folder and prepare it again")
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

    def split(
        self, name: str, length: int, offset_seed: int | None = None, entry: SplitEntry | None = None
    ) -> StoreRows:
        """The rows of the split "train" or "heldout"; with `offset_seed`, each epoch shifts them.

        `entry` is what is read of the split; default: all.
        """
        entry = entry or self.manifest.splits.get(name)
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
                f"{self.paths.folder}: its {name} part holds {counted(entry.tokens, 'token')} "
                f"in {counted(entry.documents, 'document')}, "
                f"and one row needs {length + 1:,}; give more text, a smaller data.length, or another data.heldout"
            )
        if row is not None and offset_seed is not None:
            raise DataError(f"{self.paths.folder} holds rows of a fixed length, which cannot be shifted")
        return StoreRows([self._shard(shard) for shard in entry.shards], length, entry, row, offset_seed)

    def _shard(self, entry: ShardEntry) -> Shard:
        shard = Shard(self.paths.folder / entry.name)
        if (shard.tokens, shard.documents, shard.seal) != (entry.tokens, entry.documents, entry.seal):
            raise DataError(f"{shard.path} does not belong to this store: its content differs from the manifest")
        if self.manifest.bytes <= EAGER_BYTES and not shard.trusted:
            shard.verify()
        return shard


class StoreRows:
    """The rows of a split, from its shards.

    With `offset_seed` each epoch cuts the stream at another random place (see `epoch_offset`).
    """

    def __init__(
        self,
        shards: list[Shard],
        length: int,
        entry: SplitEntry,
        row: int | None = None,
        offset_seed: int | None = None,
    ):
        self.length = length
        self.tokens = entry.tokens
        self.bytes_per_token = entry.text_bytes / entry.tokens
        self.shards, self._row, self._stride, self._offset_seed = shards, row, row or length, offset_seed
        self._starts = np.cumsum([0, *(shard.tokens for shard in shards)])
        self._documents = np.cumsum([0, *(shard.documents for shard in shards)])
        self._count = entry.tokens // row if row else (entry.tokens - 1) // length
        self._block, self._blocks = (-1, -1, -1), RowIndex.first(np.zeros(0, dtype=np.int64))
        if offset_seed is not None:
            self._count = max(1, (entry.tokens - length) // length)  # as many as remain at any offset
        self.pools: Sequence[Pool] = (Pool(0, self._count),)
        """What the run had of these rows, from where on."""

    def __len__(self) -> int:
        return self._count

    def order(self, seed: int, step: int, batch: int) -> RowIndex:
        """The rows that a step reads, as `step_rows`; computed for many steps at once, which costs little more."""
        steps = max(1, min(_ORDERED_ROWS, 4 * self._count) // batch)
        block = (seed, batch, step // steps)
        if self._block != block:
            self._block, self._blocks = block, step_rows(seed, self.pools, step // steps, steps * batch)
            for part in self._blocks:
                part.flags.writeable = False
        at = step % steps * batch
        return RowIndex(*(part[at : at + batch] for part in self._blocks))

    def starts(self, index: RowIndex) -> Index:
        """The place in the stream at which each row starts."""
        epochs, rows = index
        if len(rows) and (rows.min() < 0 or rows.max() >= self._count):
            raise IndexError(f"rows are numbered 0 to {self._count - 1}")
        starts = rows * self._stride
        if self._offset_seed is None:
            return starts
        seen, which = np.unique(epochs, return_inverse=True)
        offsets = [epoch_offset(self.tokens, self.length, self._offset_seed, int(epoch)) for epoch in seen]
        return starts + np.array(offsets, dtype=np.int64)[which]

    def rows(self, rows: Index) -> Rows:
        """Rows by number, as (len(rows), length + 1) ids; those of the first epoch if epochs differ."""
        return self.windows(self.starts(RowIndex.first(rows)), self.length + 1)

    def windows(self, starts: Index, width: int) -> Rows:
        """The `width` tokens that start at each place of the stream."""
        if len(self.shards) == 1:
            return self.shards[0].gather(starts, width).astype(np.int64)
        shards = np.searchsorted(self._starts, starts, side="right") - 1
        inside = starts + width <= self._starts[shards + 1]
        tokens = np.empty((len(starts), width), dtype=np.int64)
        for shard in np.unique(shards[inside]).tolist():
            here = np.flatnonzero(inside & (shards == shard))
            tokens[here] = self.shards[shard].gather(starts[here] - self._starts[shard], width)
        for row in np.flatnonzero(~inside).tolist():  # it continues in the next shard
            tokens[row] = np.concatenate(list(self._pieces(int(starts[row]), width)))
        return tokens

    def _pieces(self, start: int, width: int) -> Iterator[NDArray[np.unsignedinteger]]:
        shard = int(np.searchsorted(self._starts, start, side="right")) - 1
        while width:
            local = start - int(self._starts[shard])
            piece = self.shards[shard].ids(local, min(local + width, self.shards[shard].tokens))
            yield piece
            start, width, shard = start + len(piece), width - len(piece), shard + 1

    def segments(self, starts: Index, width: int) -> NDArray[np.int64]:
        """The documents of the `width` tokens from each place, numbered from 1 within a row, (n, width)."""
        places = starts[:, None] + np.arange(width)
        shards = np.searchsorted(self._starts, places, side="right") - 1
        numbers = np.empty_like(places)
        for shard in np.unique(shards).tolist():  # no document continues in the next one
            here = shards == shard
            ends, local = self.shards[shard].document_ends(), places[here] - self._starts[shard]
            numbers[here] = self._documents[shard] + np.searchsorted(ends, local, side="right")
        return numbers - numbers[:, :1] + 1

    def stream(self) -> Iterator[NDArray[np.unsignedinteger]]:
        """All tokens of the split, shard by shard, for counting; (rows, tokens) in a store of fixed rows."""
        for shard in self.shards:
            ids = shard.ids(0, shard.tokens)
            yield ids if self._row is None else ids.reshape(-1, self._row)
