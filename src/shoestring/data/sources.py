"""Sources of documents: anything that can be iterated from its beginning, any number of times, with the same result."""

from __future__ import annotations

import gzip
import itertools
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from shoestring.core.errors import DataError, storage_error
from shoestring.core.seeds import derive
from shoestring.data import stories


class Source(Protocol):
    """A corpus."""

    endless: bool

    def documents(self) -> Iterator[str]:
        """Every document in order, each as its text."""
        ...

    def identity(self) -> dict[str, Any]:
        """What tells this corpus from any other; part of the store's fingerprint."""
        ...


class Stories:
    """The built-in corpus: story *i* is computed from (seed, i), so there is always another one."""

    endless = True

    def __init__(self, seed: int):
        self.seed = derive(seed, "stories")

    def documents(self) -> Iterator[str]:
        return (stories.story(self.seed, index) for index in itertools.count())

    def identity(self) -> dict[str, Any]:
        return {"source": "stories", "version": stories.CORPUS_VERSION, "seed": self.seed}


class TextFile:
    """A text file, one document a line; blank lines are skipped. A name that ends in .gz is read through gzip."""

    endless = False

    def __init__(self, path: str):
        self.path = Path(path)
        if not self.path.is_file():
            raise DataError(f"data.source: there is no file {path}")

    def documents(self) -> Iterator[str]:
        number = 0
        try:
            with gzip.open(self.path) if self.path.suffix == ".gz" else open(self.path, "rb") as file:
                for number, raw in enumerate(file, start=1):
                    if text := raw.decode().strip():
                        yield text
        except UnicodeDecodeError as cause:
            raise DataError(f"{self.path}, line {number}: not UTF-8 text ({cause.reason})") from cause
        except (gzip.BadGzipFile, EOFError, zlib.error) as cause:
            raise DataError(f"{self.path}, after line {number}: broken gzip file ({cause})") from cause
        except OSError as cause:
            raise storage_error("read", self.path, cause) from cause

    def identity(self) -> dict[str, Any]:
        status = self.path.stat()
        return {"source": f"text:{self.path}", "bytes": status.st_size, "modified": status.st_mtime_ns}


def open_source(spec: str, seed: int) -> Source:
    """The corpus that a recipe's `data.source` names."""
    kind, colon, path = spec.partition(":")
    if spec == "stories":
        return Stories(seed)
    if kind == "text" and colon and path:
        return TextFile(path)
    raise DataError(f'data.source = "{spec}": must be "stories" or "text:PATH"')
