"""Rows that keep documents whole: the packing of a split, computed once and kept beside it, and read as rows.

A shard is packed by itself, so that memory does not grow with the store; its index is three arrays on disk, mapped into
memory.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoestring.core.errors import DataError
from shoestring.core.files import whole_file, write_whole
from shoestring.core.schema import encode
from shoestring.data.order import Index, step_rows
from shoestring.data.shards import Shard
from shoestring.data.store import Store

if TYPE_CHECKING:
    from shoestring.data.packing import Packing

Pack = Callable[[NDArray[np.int64], int], "Packing"]

PAD = 0
"""What stands in places that hold no token; its segment is 0, so it is never predicted, whatever it means."""


class PackedRows(NamedTuple):
    """Rows of tokens, and the document of each."""

    ids: NDArray[np.int64]
    segments: NDArray[np.int64]
    """1 and on for the documents of a row, 0 where there is no token."""


class _Index(NamedTuple):
    """The packing of a shard."""

    row_starts: NDArray[np.int64]
    piece_at: NDArray[np.int64]
    piece_size: NDArray[np.int32]

    @property
    def rows(self) -> int:
        return len(self.row_starts) - 1


class PackedSource:
    """The token source over a split whose documents are packed into rows of `length + 1` tokens."""

    def __init__(self, store: Store, split: str, length: int, packing: str):
        from shoestring.data import packing as packings  # imports Numba

        rows = store.split(split, length)
        if store.manifest.row is not None:
            raise DataError(f"{store.paths.folder} holds rows of a fixed length, which cannot be packed")
        self.length, self._shards = length, rows.shards
        pack = {"best_fit": packings.best_fit, "pad": packings.pad}[packing]
        folder = store.paths.folder / f"{packing}-{length + 1}"
        self._indices: list[_Index] = []
        ledger: dict[str, int] = {}
        for number, shard in enumerate(rows.shards):
            name = store.manifest.splits[split].shards[number].name.removesuffix(".tok")
            index, own = _load(folder / name, shard, length + 1, pack)
            self._indices.append(index)
            ledger = {key: ledger.get(key, 0) + value for key, value in own.items()}
        self.ledger = ledger
        """Tokens, and how many are used, cropped, padded and repeated."""
        self._firsts = np.cumsum([0, *(index.rows for index in self._indices)])
        if self._firsts[-1] == 0:
            raise DataError(f"{store.paths.folder}: no document of its {split} part makes a prediction")

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def order(self, seed: int, step: int, batch: int) -> Index:
        return step_rows(seed, len(self), step, batch)

    def rows(self, indices: Index) -> PackedRows:
        """Rows by number, (n, length + 1)."""
        if len(indices) and (indices.min() < 0 or indices.max() >= len(self)):
            raise IndexError(f"rows are numbered 0 to {len(self) - 1}")
        ids = np.full((len(indices), self.length + 1), PAD, dtype=np.int64)
        segments = np.zeros_like(ids)
        shards = np.searchsorted(self._firsts, indices, side="right") - 1
        for place, (row, number) in enumerate(zip(indices.tolist(), shards.tolist())):
            index, shard = self._indices[number], self._shards[number]
            row -= int(self._firsts[number])
            at = 0
            for segment, piece in enumerate(range(index.row_starts[row], index.row_starts[row + 1]), start=1):
                start, size = int(index.piece_at[piece]), int(index.piece_size[piece])
                ids[place, at : at + size] = shard.ids(start, start + size)
                segments[place, at : at + size] = segment
                at += size
        return PackedRows(ids, segments)


def _load(base: Path, shard: Shard, capacity: int, pack: Pack) -> tuple[_Index, dict[str, int]]:
    """The index of a shard, made again if it is not there, of another shard, or not as it was written."""
    paths = [base.with_name(f"{base.name}.{part}.npy") for part in ("rows", "at", "size")]
    about = base.with_name(f"{base.name}.json")
    known = _read(about, paths, shard.seal)
    if known is not None:
        return known
    ends = shard.document_ends().astype(np.int64)
    made = pack(np.diff(ends, prepend=0), capacity)
    index = _Index(made.row_starts, made.piece_at, made.piece_size)
    arrays: list[NDArray[Any]] = list(index)
    for path, values in zip(paths, arrays, strict=True):
        with whole_file(path) as file:
            np.save(file, values)
    ledger: dict[str, int] = encode(dataclasses.asdict(made.ledger))
    content = json.dumps({"seal": shard.seal, "ledger": ledger, "checks": [_check(path) for path in paths]})
    write_whole(about, json.dumps([content, zlib.crc32(content.encode())]))
    return index, ledger


def _read(about: Path, paths: list[Path], seal: int) -> tuple[_Index, dict[str, int]] | None:
    try:
        content, check = json.loads(about.read_bytes())
        known = json.loads(content)
        if zlib.crc32(content.encode()) != check or known["seal"] != seal:
            return None
        if known["checks"] != [_check(path) for path in paths]:
            return None
        return _Index(*(np.load(path, mmap_mode="r") for path in paths)), known["ledger"]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _check(path: Path) -> int:
    """CRC-32 of a file."""
    check = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            check = zlib.crc32(block, check)
    return check
