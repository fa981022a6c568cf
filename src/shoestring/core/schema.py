"""Plain mappings to frozen dataclasses and back, strictly, with every problem found in one pass.

Recipes (TOML) and records (JSON) go through the same `decode`. It collects unknown fields, missing fields, wrong types
and values out of bounds, each as one line with the field, the value and what is allowed. All other fields are read, so
that a recipe is checked further. Limits are part of the type:
`width: Annotated[int, Between(1, 10**9), "channels of the residual stream"]`; a plain string there is the field's help.

A record is a versioned JSON file, written by one command for the next: a frozen dataclass with a `SCHEMA` such as
"shoestring.plan/1". Its quantities are plain numbers, with the unit in the field's name; None (null) is not measured.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, Union, get_args, get_origin, get_type_hints

from shoestring.core.errors import RecordError, VersionError, closest, nearest, shown_path
from shoestring.core.files import write_whole
from shoestring.core.reading import read_json
from shoestring.core.registry import registry
from shoestring.core.specs import Spec, is_code
from shoestring.core.text import control_in, one_line
from shoestring.core.units import Bytes, Count, Flops, Seconds

_UNITS = {Seconds: ("time", '"2h"'), Bytes: ("size", '"50GB"'), Count: ("count", '"200M"'), Flops: ("FLOPs", '"1e21"')}
"""The name of each quantity, and an example."""
_LONG = 10**13
"""Whole numbers from here on are shown as 1e+18."""
_INTEGERS = 1 << 63
_AUTO = Literal["auto"]
"""Beside another type: the value may be chosen for the user."""
_PLAIN = {int: "whole number", float: "number", str: "text", bool: "true, false"}


@dataclass(frozen=True)
class Between:
    """The value must lie in [low, high]; `open_low` and `open_high` exclude the ends, and `also` is allowed too."""

    low: float
    high: float
    open_low: bool = False
    open_high: bool = False
    also: float | None = None

    def problem(self, value: float) -> str | None:
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high else value <= self.high
        if (above and below) or value == self.also:
            return None
        low, high = self._ends(type(value))
        least = f"above {low}" if self.open_low else f"at least {low}"
        most = f"below {high}" if self.open_high else f"at most {high}"
        return f"must be {least} and {most}{self._other}"

    def describe(self, kind: type) -> str:
        """The range of a field of this type, as in "1 to 64"."""
        low, high = self._ends(kind)
        return f"{'above ' * self.open_low}{low} to {'below ' * self.open_high}{high}{self._other}"

    @property
    def _other(self) -> str:
        return "" if self.also is None else f", or {self.also:g}"

    def _ends(self, kind: type) -> list[str]:
        if kind in (Seconds, Bytes):  # their numbers need a unit
            return [str(kind(end)) for end in (self.low, self.high)]
        return [f"{end:,}" if isinstance(end, int) and end < _LONG else f"{end:g}" for end in (self.low, self.high)]


@dataclass(frozen=True)
class Text:
    """The text must have at most `most` bytes, and no control characters but those in `allowed`."""

    most: int
    allowed: str = ""

    def problem(self, value: str) -> str | None:
        return _text_problem(value, self.most, self.allowed)


def _text_problem(value: str, most: int, allowed: str = "") -> str | None:
    if (size := len(value.encode(errors="surrogatepass"))) > most:
        return f"must have at most {most:,} bytes, and has {size:,}"
    if (control := control_in(value, allowed)) is not None:
        return f"must have no control characters, and has {control}"
    return None


def _meant(value: str, choices: Sequence[str]) -> str:
    """The choice that a wrong value is close to, as a hint after all of them."""
    close = closest(value, choices)
    return "" if close is None else f"; did you mean {close!r}?"


@dataclass(frozen=True)
class Registered:
    """The text must be a name in a registry, or with `may_be_code` an object of the user's own."""

    kind: str
    may_be_code: bool = False

    def problem(self, value: str) -> str | None:
        known = list(registry(self.kind))
        if value in known or (self.may_be_code and is_code(value)):
            return None
        shown = ", ".join(f'"{name}"' for name in known)
        code = ', or "file.py:name"' if self.may_be_code else ""
        return f"must be one of {shown}{code}{_meant(value, known)}"


@dataclass(frozen=True)
class Each:
    """Every item of a list, or every name and value of a table, must satisfy the limits of its type."""

    limits: dict[type, Registered | Text | Between]

    def problem(self, value: tuple[Any, ...] | dict[str, Any]) -> str | None:
        items = [*value, *value.values()] if isinstance(value, dict) else value
        found = ((item, self.limits[type(item)].problem(item)) for item in items if type(item) in self.limits)
        return next((f"{show(item)} {text}" for item, text in found if text), None)


class Problem(str):
    """A line for people about a field that could not be read."""

    field: str
    """The path of the field; for a misspelt name, that of the field it resembles."""

    def __new__(cls, text: str, field: str) -> Self:
        line = super().__new__(cls, text)
        line.field = field
        return line


@cache
def hints(cls: type) -> dict[str, Any]:
    """The resolved types of a dataclass's fields, with `Annotated`."""
    return get_type_hints(cls, include_extras=True)


def decode(cls: type, values: Mapping[str, Any], where: str, problems: list[str]) -> Any:
    """An instance of the dataclass `cls`, with lines added to `problems`; `where` is the path ("" at top).

    A field with a problem has its default; None if it has none.
    """
    fields = {field.name: field for field in dataclasses.fields(cls)}
    kind = "section" if not where else "field"
    for name in (name for name in values if name not in fields):
        meant = closest(name, list(fields)) or name
        text = f"{_join(where, name)}: unknown {kind}; {nearest(name, list(fields))}"
        problems.append(Problem(text, _join(where, meant)))
    decoded, is_whole = {}, True
    for name, field in fields.items():
        path, before = _join(where, name), len(problems)
        value = decode_value(hints(cls)[name], values[name], path, problems) if name in values else None
        if name in values and (len(problems) == before or dataclasses.is_dataclass(value)):
            decoded[name] = value
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            is_whole = False
            if name not in values:
                problems.append(Problem(f"{path}: missing; it must be given", path))
    return cls(**decoded) if is_whole else None


def decode_value(kind: Any, value: Any, path: str, problems: list[str]) -> Any:
    """`value` as the type `kind`, with lines added to `problems` on a mismatch; then None, or what a dataclass has."""
    limits: list[Any] = []
    if get_origin(kind) is Annotated:
        kind, *limits = get_args(kind)
    choices = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    if value is None and type(None) in choices:
        return None
    choices = tuple(choice for choice in choices if choice is not type(None))
    may_be_auto = _AUTO in choices and len(choices) > 1
    if may_be_auto and value == "auto":
        return value
    choices = tuple(choice for choice in choices if choice != _AUTO or not may_be_auto)
    alike = tuple(choice for choice in choices if (get_origin(choice) is dict) == isinstance(value, Mapping))
    attempt: list[str] = []
    for choice in alike or choices:  # a table that is wrong is compared with tables only
        attempt = []
        result = _decode_plain(choice, value, path, attempt)
        if not attempt:
            break
    if attempt:
        or_auto = ', or "auto"' if may_be_auto else ""
        problems.extend(Problem(f"{line}{or_auto}", getattr(line, "field", path)) for line in attempt)
        return result if dataclasses.is_dataclass(result) else None
    for limit in limits:
        if not isinstance(limit, str) and (text := limit.problem(result)):
            problems.append(Problem(f"{path} = {show(value)}: {text}", path))
            return None
    return result


def _decode_plain(kind: Any, value: Any, path: str, problems: list[str]) -> Any:
    def wrong(expected: str) -> None:
        problems.append(Problem(f"{path} = {show(value)}: must be {expected}", path))

    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(value, Mapping):
            return wrong("a table of fields")
        return decode(kind, value, path, problems)
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        if value in args and type(value) in {type(arg) for arg in args}:
            return value
        hint = _meant(value, list(args)) if isinstance(value, str) and len(args) > 3 else ""
        return wrong(f"{'one of ' if len(args) > 1 else ''}{', '.join(show(arg) for arg in args)}{hint}")
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            return wrong("a list")
        items = args[:1] * len(value) if args[-1] is Ellipsis else args
        if len(items) != len(value):
            return wrong(f"a list of {len(items)} values")
        return tuple(decode_value(k, v, f"{path}[{i}]", problems) for i, (k, v) in enumerate(zip(items, value)))
    if origin is dict:
        if not isinstance(value, Mapping):
            return wrong("a table")
        return {key: decode_value(args[1], item, _join(path, key), problems) for key, item in value.items()}
    if kind in _UNITS:
        return _decode_unit(kind, value, path, problems)
    if isinstance(kind, type) and issubclass(kind, Spec):
        if not isinstance(value, str):
            return wrong("a text in quotes")
        if problem := _text_problem(value, kind.most) or kind(value).problem():
            problems.append(Problem(f"{path} = {show(value)}: {problem}", path))
        return kind(value)
    if kind is Any:
        return value if _is_finite(value) else wrong("without numbers that are not finite")
    if kind is bool:
        return value if isinstance(value, bool) else wrong("true or false")
    if kind is int:
        if isinstance(value, bool) or not isinstance(value, int):
            return wrong("a whole number")
        return value if abs(value) < _INTEGERS else wrong("a whole number below 2^63")
    if kind is float:
        try:
            number = math.nan if isinstance(value, bool) or not isinstance(value, (int, float)) else float(value)
        except OverflowError:  # a whole number beyond 1e308
            number = math.inf
        return number if math.isfinite(number) else wrong("a finite number")
    if kind is str:
        return value if isinstance(value, str) else wrong("a text in quotes")
    raise TypeError(f"{path}: fields of type {kind} are not supported")


def _decode_unit(kind: Any, value: Any, path: str, problems: list[str]) -> Any:
    """A quantity from its text, or from a bare number, which only counts and FLOPs accept."""
    if isinstance(value, kind):
        return value
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        problems.append(Problem(f"{path} = {show(value)}: must be a text such as {_UNITS[kind][1]}", path))
        return None
    try:
        return kind.parse(value if isinstance(value, str) else repr(value).removesuffix(".0"))
    except ValueError as cause:
        problems.append(Problem(f"{path} = {show(value)}: {cause}", path))
        return None


def _is_finite(value: Any) -> bool:
    if isinstance(value, (Mapping, list, tuple)):
        return all(map(_is_finite, value.values() if isinstance(value, Mapping) else value))
    return not isinstance(value, float) or math.isfinite(value)


def encode(value: Any) -> Any:
    """A dataclass as plain mappings, lists and scalars that `decode` reads back to an equal value."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, (*_UNITS, Spec)):
        return str(value)
    if isinstance(value, Mapping):
        return {key: encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    return value


def describe(kind: Any) -> tuple[str, str]:
    """(name for people, help text) of a field's type."""
    help_text, limit = "", None
    if get_origin(kind) is Annotated:
        kind, *limits = get_args(kind)
        help_text = next((limit for limit in limits if isinstance(limit, str)), "")
        limit = next((limit for limit in limits if isinstance(limit, Between)), None)
    if get_origin(kind) in (Union, types.UnionType):
        choices = [choice for choice in get_args(kind) if choice is not type(None)]
        or_auto = ', or "auto"' if _AUTO in choices[1:] else ""
        shown = " or ".join(describe(choice)[0] for choice in choices if choice != _AUTO or not or_auto)
        return _with_range(shown, choices[0], limit) + or_auto, help_text
    if get_origin(kind) is Literal:
        return ", ".join(map(show, get_args(kind))), help_text
    if isinstance(kind, type) and issubclass(kind, Spec):
        return "text", help_text
    names_of = {tuple: "list", dict: "table", **_PLAIN, **{unit: name for unit, (name, _) in _UNITS.items()}}
    return _with_range(names_of.get(get_origin(kind) or kind, str(kind)), kind, limit), help_text


def _with_range(name: str, kind: type, limit: Between | None) -> str:
    return name if limit is None else f"{name}, {limit.describe(kind)}"


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def show(value: Any) -> str:
    """A value for a message: its beginning, without control characters."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{one_line(value)}"'
    try:
        return one_line(repr(value))
    except ValueError:
        return "a number of thousands of digits"
    except RecursionError:
        return "values nested too deep to show"


@dataclass(frozen=True, kw_only=True)
class Record:
    """Base of all records."""

    SCHEMA: ClassVar[str]

    def contradictions(self) -> list[str]:
        """A line for each field that cannot be true beside the others; it is asked when a record is read."""
        return []

    def to_dict(self) -> dict[str, Any]:
        return {"schema": self.SCHEMA, **encode(self)}

    def to_text(self) -> str:
        return json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n"

    def write(self, path: Path) -> None:
        write_whole(path, self.to_text())

    @classmethod
    def from_dict(cls, values: dict[str, Any], where: str) -> Self:
        """The record in `values`; `where` names their origin in errors."""
        schema = values.get("schema") if isinstance(values, dict) else None
        if schema != cls.SCHEMA:
            is_other_version = str(schema).partition("/")[0] == cls.SCHEMA.partition("/")[0]
            kind = VersionError if is_other_version else RecordError
            raise kind(f"{where}: expected a record {cls.SCHEMA}, found {schema or 'none'}")
        problems: list[str] = []
        body = {key: value for key, value in values.items() if key != "schema"}
        record: Self | None = decode(cls, body, "", problems)
        if record is None or problems:
            raise RecordError("\n  ".join([f"{where}: not a whole record {cls.SCHEMA}", *problems]))
        if contradictions := record.contradictions():
            raise RecordError("\n  ".join([f"{where}: its values contradict each other", *contradictions]))
        return record

    @classmethod
    def read_if_there(cls, path: Path) -> Self | None:
        """The record in a file; None where nothing has that name."""
        return cls.read(path) if os.path.lexists(path) else None

    @classmethod
    def read(cls, path: Path) -> Self:
        return cls.from_dict(read_json(path), shown_path(path))
