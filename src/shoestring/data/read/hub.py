"""Data sets of the Hugging Face hub, or of a folder: read by rows if stored, by shards if streamed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoestring.core.errors import DataError, MissingExtra
from shoestring.core.hub import spare_the_wait
from shoestring.core.specs import SourceSpec
from shoestring.data.read.documents import COLUMNS, Document, Part, Reading, Records, Skipped, Values, documents
from shoestring.data.read.formats.parquet import arrow_records, check_columns, check_label

SETTINGS = COLUMNS | {"split", "streaming"}
"""Fields of `Reading` that apply to a data set."""
ROWS_OF_A_PART = 100_000
BLOCK_ROWS = 64
_BATCH_ROWS = 256


@dataclass(frozen=True)
class RowsPart:
    """Consecutive rows of a data set that is stored on disk."""

    spec: str
    dataset: Any
    version: str
    begin: int
    end: int
    reading: Reading

    def documents(self, skipped: Skipped | None = None) -> Iterator[Document]:
        return self.between(0, self.size, skipped)

    def identity(self) -> dict[str, Any]:
        return {"name": self.spec, "version": self.version, "rows": [self.begin, self.end]}

    @property
    def size(self) -> int:
        return self.end - self.begin

    @property
    def block(self) -> int:
        return BLOCK_ROWS

    def between(self, begin: int, end: int, skipped: Skipped | None = None) -> Iterator[Document]:
        first, last = self.begin + begin, min(self.begin + end, self.end)
        rows = self.dataset.select(range(first, last)).select_columns(list(self.reading.columns))
        return _row_documents(rows, first, self.spec, self.reading, skipped)

    def values(self, column: str) -> Values:
        return _row_values(self.dataset.select(range(self.begin, self.end)), self.begin, self.spec, column)


@dataclass(frozen=True)
class ShardPart:
    """One shard of a data set that is streamed."""

    spec: str
    dataset: Any
    version: str
    shard: int
    reading: Reading
    size: None = None
    block: None = None

    @property
    def _rows(self) -> Any:
        return self.dataset.shard(self.dataset.num_shards, self.shard)

    @property
    def _name(self) -> str:
        return f"{self.spec}, shard {self.shard + 1}"

    def documents(self, skipped: Skipped | None = None) -> Iterator[Document]:
        return _row_documents(self._rows, 0, self._name, self.reading, skipped)

    def identity(self) -> dict[str, Any]:
        return {"name": self.spec, "version": self.version, "shard": self.shard}

    def between(self, begin: int, end: int, skipped: Skipped | None = None) -> Iterator[Document]:
        return _row_documents(self._rows.skip(begin).take(end - begin), begin, self._name, self.reading, skipped)

    def values(self, column: str) -> Values:
        return _row_values(self._rows, 0, self.spec, column)


def _row_documents(rows: Any, first: int, name: str, reading: Reading, skipped: Skipped | None) -> Iterator[Document]:
    """The documents of rows of a data set, stored or streamed; `first` rows come before them."""

    def records() -> Records:
        number = first + 1
        batches = iter(rows.with_format("arrow").iter(batch_size=_BATCH_ROWS))
        while True:
            try:
                batch = next(batches, None)
            except Exception as cause:  # anything: from the network or from the code of the data set
                raise DataError(f"{name}, after row {number - 1}: {_reason(cause)}") from cause
            if batch is None:
                return
            check_columns(batch.schema, name, reading)
            yield from arrow_records(batch, number, reading)
            number += batch.num_rows

    return documents(records(), f"{name}, row", reading, skipped)


def _row_values(rows: Any, first: int, name: str, column: str) -> Values:
    def values() -> Iterator[Any]:
        for batch in rows.with_format("arrow").iter(batch_size=_BATCH_ROWS):
            check_label(batch.schema.names, name, column)
            yield from batch.column(column).to_pylist()

    return enumerate(values(), first + 1)


def hub_parts(spec: SourceSpec, reading: Reading) -> list[Part]:
    """The parts of a data set: ranges of rows if it is stored, shards if it is streamed."""
    try:
        import datasets  # type: ignore[import-untyped]
    except ImportError as cause:
        raise MissingExtra(f'data.source = "{spec}"', "datasets", "hf") from cause
    name, _, config = spec.place.partition(":")
    try:
        dataset, version = _load(name, config or None, reading)
    except Exception as cause:  # anything: from the library, the network or the code of the data set
        raise DataError(
            f'data.source = "{spec}", data.split = "{reading.split}": {_reason(cause)}; check the names and the '
            "network, or download the data set's files elsewhere and name their folder: hf:FOLDER"
        ) from cause
    if dataset.features is not None:
        check_columns(dataset.features.arrow_schema, spec, reading)
    if isinstance(dataset, datasets.IterableDataset):
        return [ShardPart(spec, dataset, version, shard, reading) for shard in range(dataset.num_shards)]
    rows = range(0, len(dataset), ROWS_OF_A_PART)
    return [RowsPart(spec, dataset, version, row, min(row + ROWS_OF_A_PART, len(dataset)), reading) for row in rows]


def _load(name: str, config: str | None, reading: Reading) -> tuple[Any, str]:
    """The data set, and an identifier of its version."""
    from datasets import load_dataset, load_dataset_builder, load_from_disk

    if name == "pandas":
        raise ValueError("this name reads pickles, which can run code")
    if any((Path(name) / file).is_file() for file in ("state.json", "dataset_dict.json")):  # made by save_to_disk
        saved = load_from_disk(name)
        splits = saved if isinstance(saved, dict) else {str(saved.split or "train"): saved}
        if reading.split not in splits:
            raise ValueError(f"the folder has no such split; it has: {', '.join(splits)}")
        return splits[reading.split], splits[reading.split]._fingerprint
    if not Path(name).exists():
        spare_the_wait()
    version = load_dataset_builder(name, config).hash
    return load_dataset(name, config, split=reading.split, streaming=reading.streaming), str(version)


def _reason(cause: Exception) -> str:
    """The type and the first line of another library's error."""
    return f"{type(cause).__name__}: {str(cause).strip().partition(chr(10))[0]}"
