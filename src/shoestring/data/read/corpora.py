"""The corpora that a recipe can name: the built-in stories, files of any format, a data set of the hub, user code."""

from __future__ import annotations

import codecs
import dataclasses
import glob
import io
import itertools
import os
import stat
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from shoestring.core.environment import record_bytes
from shoestring.core.errors import DataError, storage_error
from shoestring.core.files import check_readable
from shoestring.core.recipe import fingerprint
from shoestring.core.sections import Data
from shoestring.core.seeds import derive
from shoestring.core.specs import CodeSpec, SourceSpec
from shoestring.data.read.code import CodePart
from shoestring.data.read.documents import (
    COLUMNS,
    Corpus,
    Document,
    Format,
    Part,
    Reading,
    Skipped,
    Values,
    documents,
)
from shoestring.data.read.formats import FORMATS
from shoestring.data.read.formats.text import ends_group
from shoestring.data.read.lines import COMPRESSIONS, open_file, without_end

Item = TypeVar("Item")

BLOCK_BYTES = 1 << 16


def open_source(data: Data, seed: int) -> Corpus:
    """The corpus that `data.source` names; the seed matters to the stories alone."""
    reading = Reading(**{field.name: getattr(data, field.name) for field in dataclasses.fields(Reading)})
    if data.source != "stories":
        return open_corpus(data.source, reading)
    if reading != Reading():
        names = ", ".join(field.name for field in dataclasses.fields(Reading) if field.name != "on_error")
        raise DataError(f'data.source = "stories" is read without any of {names}')
    return Stories(seed)


def texts(corpus: Corpus, documents: int | None = None) -> Iterator[str]:
    """The texts of the first `documents` documents; of all where that is None."""
    return (document.text for document in itertools.islice(corpus.documents(), documents))


def drawn(corpus: Corpus, items: Iterator[Item], wanted: int | None) -> Iterator[Item]:
    """Of items, one for each document of the corpus in order: `wanted` drawn over all of it, or all if that is None.

    The same are drawn each time, and fewer are some of more. The documents are counted first; a corpus that cannot be
    counted, because it is endless, streamed or the function of a user, is read from its start.
    """
    if wanted is None:
        return items
    if corpus.endless or any(part.size is None for part in corpus.parts):
        return itertools.islice(items, wanted)
    from shoestring.data.pack.order import drawn_rows  # imports numpy

    chosen = set(drawn_rows(wanted, sum(1 for _ in corpus.documents())).tolist())
    return (item for number, item in enumerate(items) if number in chosen)


def open_corpus(source: str, reading: Reading | None = None) -> Corpus:
    """The corpus that "FORMAT:PATH", "hf:NAME[:CONFIG]" or "file.py:name" names."""
    spec, reading = SourceSpec(source), reading or Reading()
    problem = spec.problem()
    if problem is None and spec.kind in ("stories", "store"):
        problem = "is not read from files"
    if problem is not None:
        raise DataError(f'data.source = "{spec}": {problem}')
    parts: Sequence[Part]
    if spec.kind == "hf":
        from shoestring.data.read.hub import SETTINGS, hub_parts

        _check_settings(spec, SETTINGS, reading)
        parts = hub_parts(spec, reading)
    elif spec.kind == "code":
        _check_settings(spec, COLUMNS, reading)
        parts = [CodePart(CodeSpec(spec), reading)]
    else:
        _check_settings(spec, FORMATS[spec.kind].settings, reading)
        parts = [FilePart(path, spec.kind, reading) for path in find_files(spec.kind, spec.place)]
    return ReadCorpus(spec, reading, parts)


def _check_settings(spec: str, known: Collection[str], reading: Reading) -> None:
    for setting in dataclasses.fields(reading):
        value = getattr(reading, setting.name)
        if value != setting.default and setting.name not in (*known, "on_error"):
            raise DataError(f'data.{setting.name} does not apply to data.source = "{spec}"; leave it out')
    if len(reading.delimiter) != 1 or reading.delimiter in '"\r\n':
        raise DataError(f'data.delimiter = "{reading.delimiter}": must be one character, no quote and no line end')
    if reading.end_line is not None and not reading.end_line.strip():
        raise DataError('data.end_line is blank; for documents between blank lines use data.source = "paragraphs:PATH"')


@dataclass
class ReadCorpus(Corpus):
    """A corpus of files, of a data set, or of user code."""

    spec: str
    reading: Reading
    parts: Sequence[Part]

    def identity(self) -> dict[str, Any]:
        parts = fingerprint([part.identity() for part in self.parts])
        source = CodeSpec(self.spec).name if SourceSpec(self.spec).kind == "code" else self.spec
        return {"source": source, **self.reading.identity(), "parts": len(self.parts), "fingerprint": parts}


class Stories(Corpus):
    """The built-in corpus, which has no end."""

    endless = True

    def __init__(self, seed: int):
        self.parts = (StoriesPart(derive(seed, "stories")),)

    def identity(self) -> dict[str, Any]:
        return self.parts[0].identity()


@dataclass(frozen=True)
class StoriesPart:
    """All stories: story *i* is computed from (seed, i), so any range of them can be read alone."""

    seed: int
    size: int | None = None
    block: int | None = 1

    def documents(self, skipped: Skipped | None = None) -> Iterator[Document]:  # noqa: ARG002
        return map(self._story, itertools.count())

    def between(self, begin: int, end: int, skipped: Skipped | None = None) -> Iterator[Document]:  # noqa: ARG002
        return map(self._story, range(begin, end))

    def _story(self, index: int) -> Document:
        from shoestring.data.stories import story  # not loaded for other corpora

        return Document(story(self.seed, index), "stories, number", index)

    def values(self, column: str) -> Values:
        raise AssertionError(f"stories have no column {column}")

    def identity(self) -> dict[str, Any]:
        from shoestring.data.stories import CORPUS_VERSION

        return {"source": "stories", "version": CORPUS_VERSION, "seed": self.seed}


def find_files(kind: str, path: str) -> list[Path]:
    """The file `path`; or all files of the format in that folder and below, or that match that pattern, sorted."""
    here, suffixes = Path(path), FORMATS[kind].suffixes
    if os.path.isdir(path):
        files = [file for file in files_below(here) if _fits(file, suffixes) and _usable(file)]
        missing = f"no file in the folder {path} ends in {' or '.join(suffixes)}; name others by a pattern: {path}/*"
    elif os.path.exists(path):
        check_readable(here)
        files, missing = [here], ""
    else:
        _check_folders(path)
        files = [file for file in map(Path, glob.glob(path, recursive=True)) if _usable(file)]
        missing = f"no file matches {path}" if glob.has_magic(path) else f"there is no file or folder {path}"
    if not files:
        raise DataError(f"data.source: {missing}")
    packed = [file for file in files if FORMATS[kind].compressed and file.suffix.lower() in COMPRESSIONS]
    if packed:
        raise DataError(f"data.source: {packed[0]} must be decompressed first; {kind} has a compression of its own")
    return sorted(files, key=lambda file: file.parts)


def files_below(folder: Path) -> Iterator[Path]:
    """The files in a folder and below it, except hidden ones; a folder that cannot be read is an error."""

    def refuse(cause: OSError) -> None:
        raise storage_error("read the folder", cause.filename or folder, cause) from cause

    for path, below, names in os.walk(folder, onerror=refuse):
        below[:] = [name for name in below if not name.startswith(".")]
        yield from (Path(path, name) for name in names if not name.startswith("."))


def _check_folders(pattern: str) -> None:
    """Raise StorageError where a folder that a path or pattern leads into cannot be read: `glob` would leave it out."""
    parts = Path(pattern).parts
    plain = list(itertools.takewhile(lambda part: not glob.has_magic(part), parts))
    try:
        os.stat(Path(*plain))
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as cause:
        raise storage_error("read", Path(*plain), cause) from cause
    for number, part in enumerate(parts):
        if glob.has_magic(part):
            above = str(Path(*parts[:number]))
            several = glob.has_magic(above) or part == "**"
            looked_into = f"{above}/**/" if part == "**" else above
            for folder in glob.glob(looked_into, recursive=True) if several else [above]:
                try:
                    os.scandir(folder).close()
                except (FileNotFoundError, NotADirectoryError):
                    continue
                except OSError as cause:
                    raise storage_error("read the folder", folder, cause) from cause


def _usable(file: Path) -> bool:
    """Whether this is a file to read; a folder is not. A link to nothing, a pipe or a device is an error."""
    try:
        if stat.S_ISDIR(file.stat().st_mode):
            return False
    except OSError as cause:
        raise storage_error("read", file, cause) from cause
    check_readable(file)
    return True


def _fits(file: Path, suffixes: tuple[str, ...]) -> bool:
    """Whether a file is of the format, by its name."""
    name = Path(file.stem if file.suffix.lower() in COMPRESSIONS else file.name)
    return name.suffix.lower() in suffixes


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
        records = self._format.records(file, name, self.reading)
        return documents(records, f"{name}, {self._format.unit}", self.reading, skipped)

    @property
    def _format(self) -> Format:
        return FORMATS[self.kind]

    def values(self, column: str) -> Values:
        assert self._format.values is not None, "checked when the recipe was read"
        with open_file(self.path) as file:
            yield from self._format.values(file, str(self.path), self.reading, column)

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
        """The start of a record can be found from anywhere in plain text, but not in CSV, with its quotes."""
        plain = self.path.suffix.lower() not in COMPRESSIONS
        return BLOCK_BYTES if plain and self._format.by_lines else None

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
        if start and raw.startswith(codecs.BOM_UTF8):  # it is text here; the reader drops the first one
            raw = codecs.BOM_UTF8 + raw
        yield from self._documents(io.BytesIO(raw), f"{self.path} from byte {start}", skipped)

    def _cut(self, file: BinaryIO, begin: int, end: int) -> tuple[int, bytes]:
        """Where the first record that starts in the block begins, and the bytes from there to the end of the last."""
        start = 0
        if begin > 0:
            file.seek(begin - 1)
            start = begin - 1 + len(self._line(file))
        if self._format.grouped(self.reading):
            return self._cut_groups(file, start, end)
        raw = file.read(max(end - start, 0))
        return start, raw if raw.endswith(b"\n") or not raw else raw + self._line(file)

    def _line(self, file: BinaryIO) -> bytes:
        longest = record_bytes()
        line = file.readline(longest)
        if len(line) == longest:
            raise DataError(f"{self.path}: {without_end('line', longest)}; is it another format?")
        return line

    def _cut_groups(self, file: BinaryIO, start: int, end: int) -> tuple[int, bytes]:
        """`_cut` for documents of several lines: each belongs to the block in which the line before it starts."""
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
