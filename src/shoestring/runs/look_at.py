"""What a text is that a user names to `shoestring best`: its format, its documents, and about how much there is."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from shoestring.core.errors import UserError
from shoestring.core.registry import registry
from shoestring.core.schema import show
from shoestring.core.specs import SourceSpec
from shoestring.core.units import Bytes, counted
from shoestring.data.read.columns import text_fields
from shoestring.data.read.corpora import files_below
from shoestring.data.read.lines import COMPRESSIONS, read_start

PACKED = 3.5
"""Bytes of text per byte of a compressed file, about."""
END_LINE = "<|endoftext|>"
PEEKED = 1 << 18
"""Bytes of a text that are looked at."""
PARAGRAPHS_SHARE = 0.02
"""Blank lines of a text whose documents are paragraphs."""
FEWEST_LINES = 3
"""Of a text whose documents are lines: of fewer none may be held out."""
LONGEST_NAME = 64
"""Characters of a column's name."""
_HUB_NAME = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"


@dataclass(frozen=True)
class Corpus:
    """What a text is, as fields of `[data]` with their reasons."""

    name: str
    fields: dict[str, tuple[Any, str]] = field(default_factory=dict)
    bytes: float | None = None
    """Of text, about; None: unknown."""
    said: tuple[str, ...] = ()
    """What a user may not expect."""
    changed: float | None = None
    """When its newest file was written, in seconds since 1970; None: unknown."""


def look_at(text: str) -> Corpus:
    """The corpus that a user names: a file, a folder, a hub name, or a source as in a recipe."""
    spec = SourceSpec(text)
    path = Path(text).expanduser()
    if text and not os.path.exists(path) and ":" in text and spec.problem() is None:
        name = re.sub(r"[^\w-]+", "-", spec.place.rpartition("/")[2] or spec).strip("-")
        return Corpus(name or "best", {"source": (str(spec), "as given")})
    if text and os.path.isfile(path):
        return _of_files(path.name.partition(".")[0], path, [path])
    if text and os.path.isdir(path):
        return _of_folder(text, path)
    if re.fullmatch(_HUB_NAME, text):
        return Corpus(text.rpartition("/")[2], {"source": (f"hf:{text}", "a hub data set: there is no such file")})
    raise UserError(f"TEXT {show(text)}: there is no such file or folder; a hub data set is OWNER/NAME")


def _of_folder(text: str, path: Path) -> Corpus:
    """The files of the format that has the most bytes; the others are named."""
    every = sorted(file for file in files_below(path) if file.is_file())
    known = [file for file in every if _suffix(file) in _suffixes()]
    if not known:
        raise UserError(f"TEXT {text}: no file in this folder ends in {', '.join(_suffixes())}")
    sizes = Counter[str]()
    for file in known:
        sizes[_suffixes()[_suffix(file)]] += 1 + int(_text_bytes([file]))
    (kind, _), *_ = sizes.most_common(1)
    files = [file for file in known if _suffixes()[_suffix(file)] == kind]
    left = Counter(_suffix(file) or "without a suffix" for file in every if file not in set(files))
    read = f"{text}: {counted(len(files), 'file')} read, {', '.join(sorted({_suffix(file) for file in files}))}"
    others = ", ".join(f"{count} {suffix}" for suffix, count in left.most_common(5))
    return _of_files(path.resolve().name, path, files, (f"{read}; left out: {others}",) if left else ())


def _of_files(name: str, path: Path, files: Sequence[Path], said: tuple[str, ...] = ()) -> Corpus:
    kind, why = _kind_of(files[0])
    fields = _fields(kind, str(path), files, why)
    if "column" in fields:
        column, rule = fields["column"]
        said += (f'the column "{column}" is read: {rule}',)
    changed = max(file.stat().st_mtime for file in files)
    return Corpus(name or "best", fields, _text_bytes(files), said, changed)


def _suffixes() -> dict[str, str]:
    """Format by suffix; paragraphs are told from lines by what is in a file."""
    found: dict[str, str] = {}
    for name, form in registry("format").items():
        for suffix in form.suffixes:
            found.setdefault(suffix, name)
    return found


def _suffix(file: Path) -> str:
    name = Path(file.stem) if file.suffix.lower() in COMPRESSIONS else file
    return name.suffix.lower()


def _kind_of(file: Path) -> tuple[str, str]:
    """The format of a file, and why."""
    suffix = _suffix(file)
    if suffix == ".json":
        return _kind_of_json(file)
    return _suffixes().get(suffix, "text"), f"by its name, {suffix or 'without a suffix'}"


def _kind_of_json(file: Path) -> tuple[str, str]:
    """Records of one line each; what goes over several lines is no text to learn."""
    try:
        first = [json.loads(line) for line in _begin(file).lines[:2] if line.strip()]
    except ValueError:
        first = []
    if first and all(isinstance(record, dict) for record in first):
        return "jsonl", "its lines are records"
    raise UserError(f"TEXT {file}: write one record of JSON per line, and name it .jsonl")


class _Begin(NamedTuple):
    """How a file begins."""

    lines: list[str]
    whole: bool
    """Whether there is no more of it."""


def _begin(file: Path) -> _Begin:
    """Its first lines, as those that read it know them: "\\n" ends one, and nothing else does."""
    raw = read_start(file, PEEKED + 1)
    lines = raw[:PEEKED].decode("utf-8-sig", "replace").removesuffix("\n").split("\n")
    return _Begin(lines, len(raw) <= PEEKED)


def _fields(kind: str, place: str, files: Sequence[Path], why: str) -> dict[str, tuple[Any, str]]:
    if kind != "text":
        found = text_fields(kind, files[0])
        column = found.get("column", ("", ""))[0]
        if len(column) > LONGEST_NAME or "\n" in column:
            raise UserError(f"TEXT {files[0]}: its first line is no header; name the columns in it")
        return {"source": (f"{kind}:{place}", why), **found}
    lines, whole = _begin(files[0])
    if any(line.strip() == END_LINE for line in lines):
        return {
            "source": (f"text:{place}", "plain text"),
            "end_line": (END_LINE, "this line ends a document there"),
        }
    blank = sum(not line.strip() for line in lines)
    if len(files) == 1 and whole and len(lines) - blank < FEWEST_LINES:
        size, count = Bytes(int(_text_bytes(files))).short(), counted(len(lines) - blank, "line")
        raise UserError(
            f"TEXT {files[0]}: it has {count}, about {size}; every line is a document, and some are held out, so "
            f"break it into more lines"
        )
    if lines and blank > PARAGRAPHS_SHARE * len(lines):
        return {"source": (f"paragraphs:{place}", "plain text with blank lines between documents")}
    return {"source": (f"text:{place}", "plain text, one document per line")}


def _text_bytes(files: Sequence[Path]) -> float:
    return sum(file.stat().st_size * (PACKED if file.suffix.lower() in COMPRESSIONS else 1.0) for file in files)
