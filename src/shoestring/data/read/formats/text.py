"""Plain text: one document per line, per group of lines with an end line, or per paragraph between blank lines."""

from __future__ import annotations

import io

from shoestring.core.environment import record_bytes
from shoestring.core.errors import DataError
from shoestring.data.read.documents import Format, Reading, Records
from shoestring.data.read.lines import Broken, read_lines, without_end

_SUFFIXES = (".txt", ".text")


def _text_records(file: io.BufferedIOBase, name: str, reading: Reading) -> Records:
    """One document per line; with `end_line`, per group of lines up to that line."""
    if reading.end_line is not None:
        yield from _groups(file, name, reading.end_line)
        return
    for first, texts, broken in read_lines(file, name):
        for number, line in enumerate(texts, first):
            yield number, broken[number] if number in broken else line.strip()


def _paragraph_records(file: io.BufferedIOBase, name: str, _reading: Reading) -> Records:
    """Documents separated by blank lines."""
    return _groups(file, name, None)


def _groups(file: io.BufferedIOBase, name: str, end_line: str | None) -> Records:
    """Documents of several lines; a broken line breaks its document, which then has the number of that line."""
    group: list[str] = []
    first, size, longest = 0, 0, record_bytes()
    bad: tuple[int, Broken] | None = None
    for start, texts, broken in read_lines(file, name):
        for number, line in enumerate(texts, start):
            if number in broken:
                bad = bad or (number, broken[number])
            elif not ends_group(line, end_line):
                if group or line.strip():
                    first = first if group else number
                    group.append(line.removesuffix("\r"))
                    size += len(line) + 1
                    if size > longest:
                        raise DataError(f"{name}, line {first}: {without_end('document', longest)}")
            elif bad or group or end_line is not None:
                yield bad or (first if group else number, "\n".join(group).strip())
                group, size, bad = [], 0, None
    if bad or group:
        yield bad or (first, "\n".join(group).strip())


def ends_group(line: str, end_line: str | None) -> bool:
    """Whether a line ends a document of several lines: it is `end_line`, or blank if that is None."""
    return line.strip() == (end_line or "").strip()


TEXT = Format(
    _SUFFIXES,
    _text_records,
    settings=frozenset({"end_line"}),
    by_lines=True,
    grouped=lambda reading: reading.end_line is not None,
)
PARAGRAPHS = Format(_SUFFIXES, _paragraph_records, by_lines=True, grouped=lambda _: True)
