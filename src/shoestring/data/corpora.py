"""Corpora that are read: files of any format, and data sets of the hub.

A corpus is a sequence of *parts*, each of which another process can read alone: a file, a range of a stored data set's
rows, or a shard of a streamed one.
"""

from __future__ import annotations

import codecs
import dataclasses
import glob
import io
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from shoestring.core.errors import DataError, MissingExtra, storage_error
from shoestring.core.recipe import fingerprint
from shoestring.data.formats import (
    FORMATS,
    Document,
    Reading,
    Records,
    Skipped,
    arrow_records,
    check_column,
    documents,
    ends_group,
)
from shoestring.data.lines import COMPRESSIONS, LONGEST, open_file

ROWS_OF_A_PART = 100_000
BLOCK_BYTES = 1 << 16
BLOCK_ROWS = 64
_BATCH_ROWS = 256


class Part(Protocol):
    """A piece of a corpus that can be sent to another process and read there alone."""

    def documents(self, skipped: Skipped | None = None) -> Iterator[Document]:
        """Every document in order; `skipped` counts what is left out."""
        ...

    def identity(self) -> dict[str, Any]:
        """What tells this part from any other, and from itself after a change."""
        ...

    @property
    def size(self) -> int | None:
        """Bytes of a file, rows of a data set; None where that is not known."""
        ...

    @property
    def block(self) -> int | None:
        """The size of a block that can be read alone; None where only the whole part can."""
        ...

    def between(self, begin: int, end: int, skipped: Skipped | None = None) -> Iterator[Document]:
        """The documents whose records begin at `begin` or later and before `end`, in units of `size`."""
        ...


class Corpus(Protocol):
    """What documents come from."""

    endless: bool
    parts: Sequence[Part]

    def documents(self, skipped: Skipped | None = None) -> Iterator[Document]:
        """The documents of all parts in order."""
        ...

    def identity(self) -> dict[str, Any]:
        """What tells this corpus from any other; part of the store's fingerprint."""
        ...


@dataclass
class ReadCorpus:
    """A corpus of files, or a data set of the hub."""

    spec: str
    reading: Reading
    parts: Sequence[Part]
    endless: bool = False

    def documents(self, skipped: Skipped | None = None) -> Iterator[Document]:
        return itertools.chain.from_iterable(part.documents(skipped) for part in self.parts)

    def identity(self) -> dict[str, Any]:
        parts = fingerprint([part.identity() for part in self.parts])
        return {"source": self.spec, **dataclasses.asdict(self.reading), "parts": len(self.parts), "fingerprint": parts}


def open_corpus(spec: str, reading: Reading | None = None) -> Corpus:
    """The corpus that "KIND:PATH" or "hf:NAME[:CONFIG]" names."""
    reading = reading or Reading()
    kind, _, path = spec.partition(":")
    if not path or kind not in (*FORMATS, "hf"):
        kinds = ", ".join(f"{name}:PATH" for name in FORMATS)
        raise DataError(f'data.source = "{spec}": must be one of {kinds}, hf:NAME or hf:NAME:CONFIG')
    _check_settings(spec, kind, reading)
    parts: Sequence[Part]
    if kind == "hf":
        parts = _hub_parts(spec, reading)
    else:
        parts = [FilePart(path, kind, reading) for path in find_files(kind, path)]
    return ReadCorpus(spec, reading, parts)


def _check_settings(spec: str, kind: str, reading: Reading) -> None:
    known = {"column", "split", "streaming"} if kind == "hf" else FORMATS[kind].settings
    for setting in dataclasses.fields(reading):
        value = getattr(reading, setting.name)
        if value != setting.default and setting.name not in (*known, "on_error"):
            raise DataError(f'data.{setting.name} says nothing about data.source = "{spec}"; leave it out')
    if len(reading.delimiter) != 1 or reading.delimiter in '"\r\n':
        raise DataError(f'data.delimiter = "{reading.delimiter}": must be one character, no quote and no line end')
    if reading.end_line is not None and not reading.end_line.strip():
        raise DataError('data.end_line is blank; documents between blank lines are data.source = "paragraphs:PATH"')


def find_files(kind: str, path: str) -> list[Path]:
    """The file `path`; or all that fit in that folder and below it, or match that pattern, in the order of paths."""
    here, suffixes = Path(path), FORMATS[kind].suffixes
    if here.is_dir():
        found = [file for file in here.rglob("*") if _fits(file.relative_to(here), suffixes) and file.is_file()]
        missing = f"no file in the folder {path} ends in {' or '.join(suffixes)}; name others by a pattern: {path}/*"
    elif here.exists():
        found, missing = [here], ""
    else:
        found = [file for file in map(Path, glob.glob(path, recursive=True)) if file.is_file()]
        missing = f"no file matches {path}" if glob.has_magic(path) else f"there is no file or folder {path}"
    if not found:
        raise DataError(f"data.source: {missing}")
    packed = [file for file in found if kind == "parquet" and file.suffix.lower() in COMPRESSIONS]
    if packed:
        raise DataError(f"data.source: {packed[0]} must be unpacked first; parquet files are compressed inside")
    return sorted(found, key=lambda file: file.parts)


def _fits(file: Path, suffixes: tuple[str, ...]) -> bool:
    """Whether a file of a folder, named from there, is of the format; hidden files and folders are passed over."""
    name = Path(file.stem if file.suffix.lower() in COMPRESSIONS else file.name)
    return name.suffix.lower() in suffixes and not any(part.startswith(".") for part in file.parts)


@dataclass(frozen=True)
class FilePart:
    """One file."""

    path: Path
    kind: str
    reading: Reading

    def documents(self, skipped: Skipped | None = None) -> Iterator[Document]:
        try:
            with open_file(self.path) as file:
                yield from self._documents(file, str(self.path), skipped)
        except OSError as cause:
            raise storage_error("read", self.path, cause) from cause

    def _documents(self, file: io.BufferedIOBase, name: str, skipped: Skipped | None) -> Iterator[Document]:
        form = FORMATS[self.kind]
        records = form.records(file, name, self.reading)
        return documents(records, f"{name}, {form.unit}", self.reading, Skipped() if skipped is None else skipped)

    def identity(self) -> dict[str, Any]:
        status = self._status()
        return {"name": str(self.path), "bytes": status.st_size, "modified": status.st_mtime_ns}

    def _status(self) -> os.stat_result:
        try:
            return self.path.stat()
        except OSError as cause:
            raise storage_error("read", self.path, cause) from cause

    @property
    def size(self) -> int:
        return self._status().st_size

    @property
    def block(self) -> int | None:
        """A line that begins a record can be found from anywhere in plain text; not so in CSV, with its quotes."""
        plain = self.path.suffix.lower() not in COMPRESSIONS
        return BLOCK_BYTES if plain and self.kind in ("text", "paragraphs", "jsonl") else None

    def between(self, begin: int, end: int, skipped: Skipped | None = None) -> Iterator[Document]:
        if begin == 0 and end >= self.size:
            yield from self.documents(skipped)
            return
        assert self.block is not None, "only the whole of it can be read"
        try:
            with open(self.path, "rb") as file:
                start, raw = self._cut(file, begin, end)
        except OSError as cause:
            raise storage_error("read", self.path, cause) from cause
        if start and raw.startswith(codecs.BOM_UTF8):  # only one that begins the file is none of its text
            raw = codecs.BOM_UTF8 + raw
        yield from self._documents(io.BytesIO(raw), f"{self.path} from byte {start}", skipped)

    def _cut(self, file: BinaryIO, begin: int, end: int) -> tuple[int, bytes]:
        """Where the first record of a block begins, and the bytes of all that do, the last one to its end."""
        start = 0
        if begin > 0:
            file.seek(begin - 1)
            start = begin - 1 + len(self._line(file))
        if self.kind == "paragraphs" or self.reading.end_line is not None:
            return self._cut_groups(file, start, end)
        raw = file.read(max(end - start, 0))
        return start, raw if raw.endswith(b"\n") or not raw else raw + self._line(file)

    def _line(self, file: BinaryIO) -> bytes:
        line = file.readline(LONGEST)
        if len(line) == LONGEST:
            raise DataError(f"{self.path}: no end of line within {LONGEST:,} bytes; is it another format?")
        return line

    def _cut_groups(self, file: BinaryIO, start: int, end: int) -> tuple[int, bytes]:
        """The same for documents of several lines: one belongs to the block in which the line in front of it begins."""
        lines: list[bytes] = []
        inside, at = start == 0, start
        while (inside or at < end) and (line := self._line(file)):
            ends = ends_group(line.decode(errors="replace"), self.reading.end_line)
            if inside:
                lines.append(line)
            elif ends:
                inside, start = True, at + len(line)
            if ends and at >= end:
                break
            at += len(line)
        return start, b"".join(lines)


@dataclass(frozen=True)
class RowsPart:
    """Consecutive rows of a data set that lies on the disk."""

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
        rows = self.dataset.select(range(first, last)).select_columns([self.reading.column])
        return _row_documents(rows, first, self.spec, self.reading, skipped)


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

    def documents(self, skipped: Skipped | None = None) -> Iterator[Document]:
        return self._documents(self._rows, 0, skipped)

    @property
    def _rows(self) -> Any:
        return self.dataset.shard(self.dataset.num_shards, self.shard)

    def _documents(self, rows: Any, first: int, skipped: Skipped | None) -> Iterator[Document]:
        return _row_documents(rows, first, f"{self.spec}, shard {self.shard + 1}", self.reading, skipped)

    def identity(self) -> dict[str, Any]:
        return {"name": self.spec, "version": self.version, "shard": self.shard}

    def between(self, begin: int, end: int, skipped: Skipped | None = None) -> Iterator[Document]:
        return self._documents(self._rows.skip(begin).take(end - begin), begin, skipped)


def _row_documents(rows: Any, first: int, name: str, reading: Reading, skipped: Skipped | None) -> Iterator[Document]:
    """The documents of the rows of a data set of either kind; the rows before it are `first`."""

    def records() -> Records:
        number = first + 1
        batches = iter(rows.with_format("arrow").iter(batch_size=_BATCH_ROWS))
        while True:
            try:
                batch = next(batches, None)
            except Exception as cause:  # whatever the network or the data set's own files raise
                raise DataError(f"{name}, after row {number - 1}: {_reason(cause)}") from cause
            if batch is None:
                return
            check_column(batch.schema, name, reading.column)
            yield from arrow_records(batch.column(reading.column), number, reading.column)
            number += batch.num_rows

    return documents(records(), f"{name}, row", reading, Skipped() if skipped is None else skipped)


def _hub_parts(spec: str, reading: Reading) -> list[Part]:
    """A data set of the hub, or of a folder, cut into rows where it is stored and into shards where it is streamed."""
    try:
        import datasets  # type: ignore[import-untyped]
    except ImportError as cause:
        raise MissingExtra(f'data.source = "{spec}"', "datasets", "hf") from cause
    name, _, config = spec.removeprefix("hf:").partition(":")
    try:
        dataset, version = _load(name, config or None, reading)
    except Exception as cause:  # whatever the library, the network or the data set's own files raise
        raise DataError(
            f'data.source = "{spec}", data.split = "{reading.split}": {_reason(cause)}; check the names and the '
            "network, or fetch the data set's files elsewhere and name their folder: hf:FOLDER"
        ) from cause
    if dataset.features is not None:
        check_column(dataset.features.arrow_schema, spec, reading.column)
    if isinstance(dataset, datasets.IterableDataset):
        return [ShardPart(spec, dataset, version, shard, reading) for shard in range(dataset.num_shards)]
    rows = range(0, len(dataset), ROWS_OF_A_PART)
    return [RowsPart(spec, dataset, version, row, min(row + ROWS_OF_A_PART, len(dataset)), reading) for row in rows]


def _load(name: str, config: str | None, reading: Reading) -> tuple[Any, str]:
    """The data set, and what tells this version of it from others."""
    from datasets import load_dataset, load_dataset_builder, load_from_disk

    if any((Path(name) / file).is_file() for file in ("state.json", "dataset_dict.json")):  # made by save_to_disk
        saved = load_from_disk(name)
        splits = saved if isinstance(saved, dict) else {str(saved.split or "train"): saved}
        if reading.split not in splits:
            raise ValueError(f"the folder has no such split, but {', '.join(splits)}")
        return splits[reading.split], splits[reading.split]._fingerprint
    version = load_dataset_builder(name, config).hash
    return load_dataset(name, config, split=reading.split, streaming=reading.streaming), str(version)


def _reason(cause: Exception) -> str:
    """The first line of a foreign error."""
    return f"{type(cause).__name__}: {str(cause).strip().partition(chr(10))[0]}"
