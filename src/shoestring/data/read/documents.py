"""What a corpus is made of: parts, their records, and the documents made from these; and what a file format is.

A corpus is a sequence of *parts* that other processes can read alone: a file, a range of a stored data set's rows, a
shard of a streamed one, or what a user's function yields. A *record* is what one document is made from: a line,
a paragraph, a row. A format's `records` yields them in the order of the file, each as its number and its text, or the
reason why it has none. `documents` stops at a broken record or counts it, as `Reading.on_error` says. Damage that makes
the rest of a file unreadable, such as a broken gzip stream, always stops.
"""

from __future__ import annotations

import io
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from shoestring.core.environment import RECORD_BYTES
from shoestring.core.errors import DataError
from shoestring.data.read.lines import Broken, usable

_EXAMPLES = 5
_NAMES = 8


class Document(NamedTuple):
    """A text, and where it comes from."""

    text: str
    where: str
    number: int

    @property
    def place(self) -> str:
        """Such as "corpus.jsonl, line 12"."""
        return f"{self.where} {self.number}"


class Prompted(str):
    """A prompt and its completion as one text."""

    prompt: int
    """Characters of the prompt."""

    @classmethod
    def of(cls, prompt: str, completion: str) -> Prompted:
        both = cls(prompt + completion)
        both.prompt = len(prompt)
        return both

    @property
    def parts(self) -> tuple[str, str]:
        """The prompt and the completion."""
        return self[: self.prompt], self[self.prompt :]


def parts_of(texts: Iterable[str]) -> list[str]:
    """The texts that a tokenizer reads one by one: of a prompt and its completion each."""
    return [part for text in texts for part in (text.parts if isinstance(text, Prompted) else (text,))]


Records = Iterator[tuple[int, str | Broken]]
"""Number and text of each record; the number is that of its first line, or of its row."""
Values = Iterator[tuple[int, Any]]
"""Number of each record, and the value of one of its fields."""


@dataclass
class Skipped:
    """Counts of the records that were left out."""

    count: int = 0
    """Broken records."""
    empty: int = 0
    """Records of nothing but white space."""
    examples: list[str] = field(default_factory=list)
    """Place and reason of the first broken records."""

    def add(self, place: str, why: str) -> None:
        """Count one broken record."""
        self.count += 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append(f"{place}: {why}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """How records become documents."""

    column: str = "text"
    """Name of the column, or of the field, that holds the text."""
    prompt: str | None = None
    completion: str | None = None
    """Names of two columns, or fields, in place of `column`: a text and how it goes on."""
    delimiter: str = ","
    """Between the fields of CSV."""
    end_line: str | None = None
    """A line that ends a document of several lines; without it, each line of text is a document."""
    split: str = "train"
    """The split of a hub data set."""
    streaming: bool = False
    """Read a hub data set from the network during use, instead of storing it first."""
    on_error: Literal["stop", "skip"] = "stop"
    """What to do at a broken record."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that a document is made from."""
        return (self.column,) if self.prompt is None or self.completion is None else (self.prompt, self.completion)

    @property
    def setting(self) -> str:
        """The fields of a recipe that name them, for messages."""
        return "data.column" if self.prompt is None else "data.prompt and data.completion"

    def identity(self) -> dict[str, Any]:
        """What tells documents that are read so from others; as before there were prompts, where there are none."""
        return {name: value for name, value in asdict(self).items() if name not in PAIR or value is not None}


COLUMNS = frozenset({"column", "prompt", "completion"})
"""Fields of `Reading` that apply to all sources with columns."""
PAIR = ("prompt", "completion")


def joined(fields: Sequence[str], reading: Reading) -> str:
    """The text of a record from those of its columns; raises Broken where a prompt has no completion."""
    if len(fields) == 1:
        return fields[0]
    prompt, completion = fields
    if not completion or completion.isspace():
        raise Broken(f'the field "{reading.completion}" is empty, and a prompt needs a completion')
    return Prompted.of(prompt, completion)


def documents(records: Records, where: str, reading: Reading, skipped: Skipped | None) -> Iterator[Document]:
    """The documents of records; `where` is their place without the number. `skipped` counts what is left out."""
    skipped = Skipped() if skipped is None else skipped
    new = tuple.__new__  # the constructor of a named tuple would add a fifth to the time for short lines
    for number, text in records:
        if isinstance(text, Broken):
            if reading.on_error == "stop":
                hint = 'repair it, or skip broken records with data.on_error = "skip"'
                raise DataError(f"{where} {number}: {text}; {hint}") from text
            skipped.add(f"{where} {number}", str(text))
        elif not text or text.isspace():
            skipped.empty += 1
        else:
            yield new(Document, (text, where, number))


_KINDS = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "a table",
}


def text_of(value: object, column: str) -> str:
    """The value of the text column; raises Broken where it is not usable text."""
    if not isinstance(value, str):
        raise Broken(f'the field "{column}" holds {_KINDS.get(type(value), type(value).__name__)}, not text')
    return usable(value)


def short_enough(text: str, longest: int) -> str:
    """The text; raises Broken if it has more bytes than the longest record."""
    if len(text) > longest:
        raise Broken(f"a text of {len(text):,} characters; at most {longest:,} are read, or set {RECORD_BYTES}")
    return text


def some_names(names: Iterable[str]) -> str:
    """A few names for a message."""
    names = list(names)
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return ", ".join(f'"{name}"' for name in names[:_NAMES]) + more or "none"


class Format(NamedTuple):
    """A file format."""

    suffixes: tuple[str, ...]
    """Suffixes of the files that are read from a folder, without that of a compression."""
    records: Callable[[io.BufferedIOBase, str, Reading], Records]
    """Reads an open file; the text is its name for messages."""
    settings: frozenset[str] = frozenset()
    """Fields of `Reading` that apply to it."""
    unit: str = "line"
    """What the number of a record counts."""
    by_lines: bool = False
    """Every record starts at the start of a line, so that reading can begin anywhere in a plain file."""
    grouped: Callable[[Reading], bool] = lambda _: False
    """Whether a record has several lines."""
    values: Callable[[io.BufferedIOBase, str, Reading, str], Values] | None = None
    """For a format with columns: reads the column of the given name."""
    compressed: bool = False
    """The format has its own compression; its files cannot be read through another one."""

    @property
    def has_columns(self) -> bool:
        return self.values is not None


class Part(Protocol):
    """A piece of a corpus that can be sent to another process and read there alone."""

    def documents(self, skipped: Skipped | None = None) -> Iterator[Document]:
        """Every document in order."""
        ...

    def identity(self) -> dict[str, Any]:
        """What distinguishes this part from any other, and from itself after a change."""
        ...

    @property
    def size(self) -> int | None:
        """Bytes of a file, rows of a data set; None if unknown."""
        ...

    @property
    def block(self) -> int | None:
        """The size of a block that can be read alone; None if only the whole part can be read."""
        ...

    def between(self, begin: int, end: int, skipped: Skipped | None = None) -> Iterator[Document]:
        """The documents whose records start in [begin, end), in units of `size`."""
        ...

    def values(self, column: str) -> Values:
        """The values of another column, each with the number of its record."""
        ...


class Corpus(ABC):
    """A source of documents."""

    parts: Sequence[Part]
    endless = False

    def documents(self, skipped: Skipped | None = None) -> Iterator[Document]:
        """The documents of all parts in order."""
        return itertools.chain.from_iterable(part.documents(skipped) for part in self.parts)

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """What distinguishes this corpus from any other; part of the store's fingerprint."""
