"""Rows that keep documents whole: the packing of a split, computed once and stored with it, and read as rows.

Every shard is packed alone, so that memory does not grow with the store. Its packing is three arrays on disk, mapped
into memory.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoestring.core.errors import DataError
from shoestring.core.files import whole_file, write_whole
from shoestring.data.pack.order import Index, Pool, RowIndex, step_rows
from shoestring.data.pack.pieces import Ledger, Packing
from shoestring.data.store.shards import Shard
from shoestring.data.store.store import SplitEntry, Store
from shoestring.data.tokenize.prompts import without_long_prompts

Pack = Callable[[NDArray[np.int64], int], Packing]

PAD = 0
"""The id in places without a token; its segment is 0, so it is never predicted, whatever it means."""


class PackedRows(NamedTuple):
    """Rows of tokens, and the document of each token."""

    ids: NDArray[np.int64]
    segments: NDArray[np.int64]
    """Documents of a row, numbered from 1; 0 where there is no token."""


class PackedSource:
    """The token source over a split whose documents are packed into rows of `length + 1` tokens."""

    def __init__(self, store: Store, split: str, length: int, packing: str, entry: SplitEntry | None = None):
        """`entry` is what is read of the split; default: all."""
        rows = store.split(split, length, entry=entry)
        if store.manifest.row is not None:
            raise DataError(f"{store.paths.folder} holds rows of a fixed length, which cannot be packed")
        self.length, self._shards = length, rows.shards
        folder = store.paths.folder / f"{packing}-{length + 1}"
        marked = store.manifest.vocab_size if store.manifest.prompts else None
        self._packings = [_load(folder / shard.path.stem, shard, length + 1, packing, marked) for shard in rows.shards]
        ledgers = [dataclasses.asdict(packing.ledger) for packing in self._packings]
        self.ledger: dict[str, int] = {name: sum(ledger[name] for ledger in ledgers) for name in ledgers[0]}
        """Tokens, and how many are used, cropped, padded and repeated."""
        self._firsts = np.cumsum([0, *(packing.rows for packing in self._packings)])
        if self._firsts[-1] == 0:
            raise DataError(f"{store.paths.folder}: no document of its {split} part makes a prediction")
        self.pools: Sequence[Pool] = (Pool(0, len(self)),)
        """What the run had of these rows, from where on."""

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def order(self, seed: int, step: int, batch: int) -> RowIndex:
        return step_rows(seed, self.pools, step, batch)

    def rows(self, indices: Index) -> PackedRows:
        """Rows by number, (n, length + 1)."""
        if len(indices) and (indices.min() < 0 or indices.max() >= len(self)):
            raise IndexError(f"rows are numbered 0 to {len(self) - 1}")
        ids = np.full((len(indices), self.length + 1), PAD, dtype=np.int64)
        segments = np.zeros_like(ids)
        shards = np.searchsorted(self._firsts, indices, side="right") - 1
        for place, (row, number) in enumerate(zip(indices.tolist(), shards.tolist())):
            packing, shard = self._packings[number], self._shards[number]
            row -= int(self._firsts[number])
            at = 0
            for segment, piece in enumerate(range(packing.row_starts[row], packing.row_starts[row + 1]), start=1):
                start, size = int(packing.piece_at[piece]), int(packing.piece_size[piece])
                ids[place, at : at + size] = shard.ids(start, start + size)
                segments[place, at : at + size] = segment
                at += size
        return PackedRows(ids, segments)


def _load(base: Path, shard: Shard, capacity: int, packing: str, marked: int | None) -> Packing:
    """The packing of a shard; made if its files are missing, damaged or of another shard.

    `marked`: the first of the ids that mark prompts; None if there are none.
    """
    paths = [base.with_name(f"{base.name}.{part}.npy") for part in ("rows", "at", "size")]
    about = base.with_name(f"{base.name}.json")
    known = _read(about, paths, shard.seal)
    if known is not None:
        return known
    from shoestring.data.pack import packing as packings  # imports Numba

    pack: Pack = {"best_fit": packings.best_fit, "pad": packings.pad}[packing]
    ends = shard.document_ends().astype(np.int64)
    lengths = np.diff(ends, prepend=0)
    if marked is not None:
        lengths = without_long_prompts(shard.ids(0, shard.tokens), lengths, marked, capacity)
    made = pack(lengths, capacity)
    arrays: list[NDArray[Any]] = [made.row_starts, made.piece_at, made.piece_size]
    for path, values in zip(paths, arrays, strict=True):
        with whole_file(path) as file:
            np.save(file, values)
    ledger = dataclasses.asdict(made.ledger)
    content = json.dumps({"seal": shard.seal, "ledger": ledger, "checks": [_check(path) for path in paths]})
    write_whole(about, json.dumps([content, zlib.crc32(content.encode())]))
    return made


def _read(about: Path, paths: list[Path], seal: int) -> Packing | None:
    try:
        content, check = json.loads(about.read_bytes())
        known = json.loads(content)
        if zlib.crc32(content.encode()) != check or known["seal"] != seal:
            return None
        if known["checks"] != [_check(path) for path in paths]:
            return None
        row_starts, piece_at, piece_size = (np.load(path, mmap_mode="r") for path in paths)
        return Packing(row_starts, piece_at, piece_size, Ledger(**known["ledger"]))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _check(path: Path) -> int:
    """CRC-32 of a file."""
    check = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            check = zlib.crc32(block, check)
    return check
