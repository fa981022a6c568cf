"""Documents of user code: `data.source = "my_data.py:documents"`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoestring.core.environment import record_bytes
from shoestring.core.errors import DataError
from shoestring.core.specs import CodeSpec
from shoestring.core.user_code import code_fingerprint, load_code
from shoestring.data.read.documents import (
    Document,
    Reading,
    Records,
    Skipped,
    Values,
    documents,
    joined,
    short_enough,
    text_of,
)
from shoestring.data.read.lines import Broken

BLOCK_ITEMS = 64


@dataclass(frozen=True)
class CodePart:
    """User code, as in `data.source = "my_data.py:documents"`: a sequence, or a function that returns an iterable.

    Its items are texts, or mappings with a text in `data.column`, or two in `data.prompt` and `data.completion`. A
    function takes no arguments, is called once for every pass over the corpus, and must yield the same items each time.
    A sequence can be sampled at random and read by several processes.
    """

    spec: CodeSpec
    reading: Reading

    def _items(self) -> Iterable[Any]:
        items = load_code(self.spec, "data.source")
        if callable(items):
            try:
                items = items()
            except TypeError as cause:
                raise DataError(f'data.source = "{self.spec}": must be callable without arguments ({cause})') from cause
        if not isinstance(items, Iterable) or isinstance(items, str | bytes | Mapping):
            kind = type(items).__name__
            raise DataError(f'data.source = "{self.spec}": must give texts, one after the other, not {kind}')
        return items

    @property
    def size(self) -> int | None:
        items = load_code(self.spec, "data.source")
        return len(items) if isinstance(items, Sequence) else None

    @property
    def block(self) -> int | None:
        return None if self.size is None else BLOCK_ITEMS

    def identity(self) -> dict[str, Any]:
        return {"name": self.spec.name, "code": code_fingerprint(self.spec)}

    def documents(self, skipped: Skipped | None = None) -> Iterator[Document]:
        return self._documents(self._items(), 0, skipped)

    def between(self, begin: int, end: int, skipped: Skipped | None = None) -> Iterator[Document]:
        items = self._items()
        assert isinstance(items, Sequence), "only the whole of it can be read"
        return self._documents(items[begin:end], begin, skipped)

    def values(self, column: str) -> Values:
        for number, item in enumerate(self._items(), 1):
            yield number, item.get(column) if isinstance(item, Mapping) else None

    def _documents(self, items: Iterable[Any], first: int, skipped: Skipped | None) -> Iterator[Document]:
        reading, longest = self.reading, record_bytes()

        def records() -> Records:
            for number, item in enumerate(items, first + 1):
                try:
                    fields = [_text(item, column, reading) for column in reading.columns]
                    yield number, short_enough(joined(fields, reading), longest)
                except Broken as cause:
                    yield number, cause

        return documents(records(), f"{self.spec}, item", self.reading, skipped)


def _text(item: Any, column: str, reading: Reading) -> str:
    """A text of an item: of a mapping that of the column, else the item itself."""
    if not isinstance(item, Mapping) and reading.completion is not None:
        raise Broken(f'is {type(item).__name__}, not a mapping with "{reading.prompt}" and "{reading.completion}"')
    return text_of(item.get(column) if isinstance(item, Mapping) else item, column)
