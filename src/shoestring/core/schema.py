"""Plain mappings to frozen dataclasses and back, strictly, with every problem found in one pass.

Recipes (TOML) and records (JSON) go through the same `decode`: unknown fields, missing fields, wrong types and values
out of bounds are all collected, each as one line that names the field, the value and what is allowed. Limits sit in the
type: `width: Annotated[int, AtLeast(1), "channels of the residual stream"]`; a plain string there is the field's help.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import types
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from shoestring.core.units import Bytes, Count, Flops, Seconds

UNITS = (Seconds, Bytes, Count, Flops)


@dataclass(frozen=True)
class AtLeast:
    """The value must not be below `low`."""

    low: float

    def problem(self, value: float) -> str | None:
        return None if value >= self.low else f"must be at least {self.low:g}"


@dataclass(frozen=True)
class Between:
    """The value must lie in [low, high]; `open_low` and `open_high` take the ends out."""

    low: float
    high: float
    open_low: bool = False
    open_high: bool = False

    def problem(self, value: float) -> str | None:
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high else value <= self.high
        if above and below:
            return None
        low = f"above {self.low:g}" if self.open_low else f"at least {self.low:g}"
        high = f"below {self.high:g}" if self.open_high else f"at most {self.high:g}"
        return f"must be {low} and {high}"


@dataclass(frozen=True)
class MoreThan:
    """The value must be above `low`."""

    low: float

    def problem(self, value: float) -> str | None:
        return None if value > self.low else f"must be above {self.low:g}"


@dataclass(frozen=True)
class Matches:
    """The whole text must match `pattern`; `allowed` says so for people."""

    pattern: str
    allowed: str

    def problem(self, value: str) -> str | None:
        return None if re.fullmatch(self.pattern, value) else f"must be {self.allowed}"


@cache
def hints(cls: type) -> dict[str, Any]:
    """The resolved types of a dataclass' fields, `Annotated` kept."""
    return get_type_hints(cls, include_extras=True)


def nearest(name: str, known: list[str]) -> str:
    """A hint with the closest known name, or with all of them."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"


def decode(cls: type, values: Mapping[str, Any], where: str, problems: list[str]) -> Any:
    """An instance of the dataclass `cls`, or None after adding to `problems`; `where` is the path ("" at top)."""
    fields = {field.name: field for field in dataclasses.fields(cls)}
    kind = "section" if not where else "field"
    unknown = [name for name in values if name not in fields]
    problems += [f"{_join(where, name)}: unknown {kind}; {nearest(name, list(fields))}" for name in unknown]
    before, found = len(problems), {}
    for name, field in fields.items():
        path = _join(where, name)
        if name in values:
            found[name] = decode_value(hints(cls)[name], values[name], path, problems)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            problems.append(f"{path}: missing; it must be given")
    return cls(**found) if len(problems) == before else None


def decode_value(kind: Any, value: Any, path: str, problems: list[str]) -> Any:
    """`value` as the type `kind`; on a mismatch adds a line to `problems` and returns None."""
    limits: list[Any] = []
    if get_origin(kind) is Annotated:
        kind, *limits = get_args(kind)
    if get_origin(kind) in (Union, types.UnionType):
        choices = get_args(kind)
        if value is None and type(None) in choices:
            return None
        choices = tuple(choice for choice in choices if choice is not type(None))
        attempts: list[list[str]] = []
        for choice in choices:
            attempts.append([])
            result = decode_value(choice, value, path, attempts[-1])
            if not attempts[-1]:
                break
        else:
            problems.extend(attempts[-1])
            return None
    else:
        before = len(problems)
        result = _decode_plain(kind, value, path, problems)
        if len(problems) > before:
            return None
    for limit in limits:
        if not isinstance(limit, str) and (text := limit.problem(result)):
            problems.append(f"{path} = {_show(value)}: {text}")
            return None
    return result


def _decode_plain(kind: Any, value: Any, path: str, problems: list[str]) -> Any:
    def wrong(expected: str) -> None:
        problems.append(f"{path} = {_show(value)}: must be {expected}")

    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(value, Mapping):
            return wrong("a table of fields")
        return decode(kind, value, path, problems)
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        if value in args and type(value) in {type(arg) for arg in args}:
            return value
        hint = f"; {nearest(value, list(args))}" if isinstance(value, str) and len(args) > 3 else ""
        return wrong(f"{'one of ' if len(args) > 1 else ''}{', '.join(_show(arg) for arg in args)}{hint}")
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
    if kind in UNITS:
        return _decode_unit(kind, value, path, problems)
    if kind is Any:
        return value
    if kind is bool:
        return value if isinstance(value, bool) else wrong("true or false")
    if kind is int:
        return value if isinstance(value, int) and not isinstance(value, bool) else wrong("a whole number")
    if kind is float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return wrong("a finite number")
        try:
            number = float(value)
        except OverflowError:  # a whole number beyond 1e308
            number = math.inf
        return number if math.isfinite(number) else wrong("a finite number")
    if kind is str:
        return value if isinstance(value, str) else wrong("a text in quotes")
    raise TypeError(f"{path}: fields of type {kind} are not supported")


def _decode_unit(kind: Any, value: Any, path: str, problems: list[str]) -> Any:
    """A quantity from its text. A bare number is taken for a count or FLOPs only: times and sizes need their unit."""
    bare = isinstance(value, (int, float)) and not isinstance(value, bool)
    if isinstance(value, kind):
        return value
    try:
        if isinstance(value, str):
            return kind.parse(value)
        if bare:
            return kind.parse(repr(value).removesuffix(".0"))
    except ValueError as cause:
        problems.append(f"{path} = {_show(value)}: {cause}")
        return None
    problems.append(f"{path} = {_show(value)}: must be a text such as {_EXAMPLES[kind]}")
    return None


_EXAMPLES = {Seconds: '"2h"', Bytes: '"50GB"', Count: '"200M"', Flops: '"1e21"'}


def encode(value: Any) -> Any:
    """A dataclass as plain mappings, lists and scalars that `decode` reads back to an equal value."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, UNITS):
        return str(value)
    if isinstance(value, Mapping):
        return {key: encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    return value


def describe(kind: Any) -> tuple[str, str]:
    """(type for people, help text) of a field's type."""
    help_text = ""
    if get_origin(kind) is Annotated:
        kind, *limits = get_args(kind)
        help_text = next((limit for limit in limits if isinstance(limit, str)), "")
    if get_origin(kind) in (Union, types.UnionType):
        names = [describe(choice)[0] for choice in get_args(kind) if choice is not type(None)]
        return " or ".join(names), help_text
    if get_origin(kind) is Literal:
        return ", ".join(f'"{arg}"' for arg in get_args(kind)), help_text
    if get_origin(kind) is tuple:
        return "list", help_text
    names_of = {int: "whole number", float: "number", str: "text", bool: "true, false", Seconds: "time", Bytes: "size"}
    return {**names_of, Count: "count", Flops: "FLOPs"}.get(kind, str(kind)), help_text


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(value)
