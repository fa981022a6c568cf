"""Quantities that carry their unit: one parser and one printer for each.

    Seconds  "5d", "36h", "2h30m", "90s", "250ms", Slurm's "1-12:00:00"
    Bytes    "500GB", "1GiB", "1.5TB"
    Count    "200M", "2.4B", "64k", "64Ki", "1e21"       tokens, rows, documents, parameters
    Flops    "1e21", "3.5P", "2.1e18 FLOP"

`str(x)` is exact and parses back to the same value; `x.short()` is rounded, for tables. Times and sizes need a unit: a
bare 120 is seconds to one reader, and minutes to Slurm. `Interval` is a quantity that is not exact: "200M..400M", or
"200M..250M..400M" with the expected value in the middle.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple, Self, TypeVar

_NUMBER = r"[0-9][0-9_]*(?:\.[0-9_]+)?(?:[eE][+-]?[0-9]{1,3})?|\.[0-9]+(?:[eE][+-]?[0-9]{1,3})?"
_QUANTITY = re.compile(rf"({_NUMBER})\s*([A-Za-z]*)")
_SLURM = re.compile(r"(?:([0-9]{1,9})-)?([0-9]{1,9}):([0-5]?[0-9])(?::([0-5]?[0-9]))?")

_MOST_SHOWN = 40
"""Characters of a wrong text that a message repeats."""
_LARGEST = Fraction(sys.float_info.max)

_Scale = Mapping[str, int | Fraction]

_TIME: _Scale = {"d": 86400, "h": 3600, "m": 60, "s": 1, "ms": Fraction(1, 1000)}
_TIME_NAMES: _Scale = {**_TIME, "min": 60, "us": Fraction(1, 10**6)}
_DECIMAL_BYTES = {"PB": 10**15, "TB": 10**12, "GB": 10**9, "MB": 10**6, "kB": 10**3, "B": 1}
_BINARY_BYTES = {"PiB": 2**50, "TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10}
_BYTE_NAMES = _DECIMAL_BYTES | _BINARY_BYTES | {"KB": 10**3}
_COUNTS = {"T": 10**12, "B": 10**9, "M": 10**6, "k": 10**3, "": 1}
_COUNT_NAMES = _COUNTS | {"K": 10**3, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
_FLOPS = {"Z": 10**21, "E": 10**18, "P": 10**15, "T": 10**12, "G": 10**9, "M": 10**6, "k": 10**3, "": 1}
_FLOP_NAMES = _FLOPS | {"K": 10**3, "B": 10**9}
_KINDS: Mapping[str, _Scale] = {
    "a time": _TIME_NAMES,
    "a size": _BYTE_NAMES,
    "a count": _COUNT_NAMES,
    "an amount of computation": _FLOP_NAMES,
}


def _split(text: str, names: _Scale, what: str, example: str) -> Fraction:
    """The exact value of a number with a unit out of `names`; raises ValueError with what is allowed."""
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{_shown(text)} is not {what}; write for example {example}")
    number, unit = match.groups()
    if unit not in names:
        if not unit:
            raise ValueError(f"{_shown(text)} has no unit; write for example {example}")
        allowed = ", ".join(name for name in names if name)
        others = " or ".join(other for other, known in _KINDS.items() if unit in known)
        meant = f", which is the unit of {others}, not of {what}" if others else ""
        raise ValueError(f"{_shown(text)} has the unknown unit {_shown(unit)}{meant}; units are {allowed}")
    return _bounded(Fraction(Decimal(number.replace("_", ""))) * names[unit], text)


def _shown(text: str) -> str:
    """The beginning of a text in quotes, for a message."""
    return repr(text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…")


def _bounded(value: Fraction, text: str) -> Fraction:
    """`value`; raises ValueError if it is too large for a float."""
    if value > _LARGEST:
        raise ValueError(f"{_shown(text)} is too large")
    return value


def _whole(value: Fraction, text: str, what: str = "") -> int:
    if value.denominator != 1:
        raise ValueError(f"{_shown(text)} is not a whole number{what}")
    return value.numerator


def _rounded(value: float, scales: _Scale, gap: str = "") -> str:
    """`value` with three significant digits in the largest unit in which it is at least 1, as in 1.23M."""
    for unit, scale in scales.items():
        if value >= scale * 0.9995 or scale == 1:
            return f"{_digits(value / float(scale))}{gap}{unit}".rstrip()
    raise AssertionError("every table of units has a scale of 1")


def _digits(value: float) -> str:
    if value >= 99.95:
        return f"{value:,.0f}"
    if value >= 9.995:
        return f"{value:.1f}".removesuffix(".0")
    return f"{value:.2f}".rstrip("0").rstrip(".") if value else "0"


def _exact(number: int, scales: Mapping[str, int]) -> str:
    """A whole number in the largest unit in which it is at least 1, with all its digits, as in 102.67MB."""
    unit, scale = next(((unit, scale) for unit, scale in scales.items() if number >= scale), ("B", 1))
    whole, rest = divmod(number, scale)
    return f"{whole}.{rest:0{len(str(scale)) - 1}d}".rstrip("0").rstrip(".") + unit if scale > 1 else f"{whole}{unit}"


class Seconds(float):
    """A duration in seconds."""

    @classmethod
    def parse(cls, text: str) -> Self:
        stripped = text.strip()
        if match := _SLURM.fullmatch(stripped):
            days, first, second, third = (int(part or 0) for part in match.groups())
            if match[1] is None and match[4] is None:  # Slurm's MM:SS
                return cls(first * 60 + second)
            return cls(days * 86400 + first * 3600 + second * 60 + third)
        parts = _QUANTITY.findall(stripped)
        is_whole = "".join(n + u for n, u in parts) == stripped.replace(" ", "")
        if len(parts) > 1 and is_whole and all(u for _, u in parts):
            total = sum((_split(n + u, _TIME_NAMES, "a time", '"2h"') for n, u in parts), Fraction(0))
            return cls(_bounded(total, text))
        return cls(_split(stripped, _TIME_NAMES, "a time", '"90s", "2h30m" or "5d"'))

    def __str__(self) -> str:
        if not self.is_integer() or self < 60:
            return f"{float(self)!r}s".replace(".0s", "s")
        return "".join(_time_parts(int(self)))

    __repr__ = float.__repr__

    def short(self) -> str:
        """At most two units: 1d 4h, 2m 5s, 1.4s, 12ms."""
        if 0 < self < 0.0009995:
            return f"{_digits(self * 1e6)}us"
        if 0 < self < 0.9995:
            return f"{_digits(self * 1000)}ms"
        if self < 59.95:
            return f"{_digits(self)}s"
        whole = round(self)
        unit = 3600 if whole >= 86400 else 60 if whole >= 3600 else 1
        return " ".join(_time_parts(round(whole / unit) * unit))


def _time_parts(seconds: int) -> list[str]:
    """Whole seconds as "1d", "4h", "2m", "5s", without those that are zero."""
    left, parts = seconds, []
    for unit in ("d", "h", "m", "s"):
        count, left = divmod(left, int(_TIME[unit]))
        if count:
            parts.append(f"{count}{unit}")
    return parts


class Bytes(int):
    """A size in bytes. GB is 10⁹, GiB is 2³⁰."""

    @classmethod
    def parse(cls, text: str) -> Self:
        return cls(_whole(_split(text, _BYTE_NAMES, "a size", '"500GB" or "1GiB"'), text, " of bytes"))

    def __str__(self) -> str:
        for unit, scale in _BINARY_BYTES.items():  # 512MiB, but not 100264KiB
            if scale <= int(self) < 1024 * scale and int(self) % scale == 0 and int(self) % 1000:
                return f"{int(self) // scale}{unit}"
        return _exact(int(self), _DECIMAL_BYTES)

    def in_whole_units(self) -> str:
        """The form in fingerprints, which must never change: a whole number of the largest unit that divides it."""
        for scales in (_DECIMAL_BYTES, _BINARY_BYTES):
            for unit, scale in scales.items():
                if int(self) >= scale > 1 and int(self) % scale == 0:
                    return f"{int(self) // scale}{unit}"
        return f"{int(self)}B"

    __repr__ = int.__repr__

    def short(self) -> str:
        """Three digits in decimal units: 1.23 GB."""
        return _rounded(int(self), _DECIMAL_BYTES, " ")


class Count(int):
    """How many of something: tokens, rows, documents, steps."""

    @classmethod
    def parse(cls, text: str) -> Self:
        return cls(_whole(_split(text, _COUNT_NAMES, "a count", '"200M", "2.4B" or "1e9"'), text))

    def __str__(self) -> str:
        for unit, scale in _COUNTS.items():
            hundredths, rest = divmod(int(self) * 100, scale)
            if int(self) >= scale and rest == 0:
                whole, hundredths = divmod(hundredths, 100)
                return f"{whole}.{hundredths:02d}".rstrip("0").rstrip(".") + unit
        return str(int(self))

    __repr__ = int.__repr__

    def short(self) -> str:
        """Whole below 100,000, then three digits: 12,345, 1.23M."""
        return f"{int(self):,}" if self < 100_000 else _rounded(int(self), _COUNTS)


class Flops(float):
    """An amount of computation, in floating-point operations."""

    @classmethod
    def parse(cls, text: str) -> Self:
        bare = re.sub(r"\s*FLOPs?$", "", text.strip(), flags=re.IGNORECASE)
        return cls(_split(bare, _FLOP_NAMES, "an amount of computation", '"1e21" or "3.5P"'))

    def __str__(self) -> str:
        return repr(float(self))

    __repr__ = float.__repr__

    def short(self) -> str:
        return f"{_rounded(float(self), _FLOPS, ' ')}FLOP" if self >= 1000 else f"{float(self):g} FLOP"


Quantity = TypeVar("Quantity", Seconds, Bytes, Count, Flops)
AMOUNTS = (1e-40, 1e40)
"""The least and most of what can be asked for: products of a few of them are still numbers."""


def amount(kind: type[Quantity], text: str) -> Quantity:
    """The quantity in an option; raises ValueError where it is beyond `AMOUNTS`."""
    value = kind.parse(text)
    within(float(value), text)
    return value


def within(value: float, text: str) -> float:
    """`value`, which `text` names; raises ValueError where it is beyond `AMOUNTS`."""
    least, most = AMOUNTS
    if not (value == 0 or least <= abs(value) <= most):
        raise ValueError(f"{text[:40]!r} is not between {least:g} and {most:g}")
    return value


class Interval(NamedTuple):
    """A quantity known to lie between `low` and `high`; all three are above zero.

    Products and quotients have the ends of the worst case.
    """

    low: float
    expected: float
    high: float

    @classmethod
    def exactly(cls, value: float) -> Interval:
        return cls(value, value, value)

    @classmethod
    def parse(cls, text: str, value: Callable[[str], float]) -> Interval:
        """The interval in a text, whose parts `value` parses: "a..b", expecting the middle, or "a..m..b"."""
        parts = [float(value(part)) for part in text.split("..")]
        if len(parts) > 3 or parts != sorted(parts):
            raise ValueError(
                f"{_shown(text)} is not an interval; write low..high or low..expected..high, as 200M..400M"
            )
        middle = parts[1] if len(parts) == 3 else (parts[0] + parts[-1]) / 2
        return cls(parts[0], middle, parts[-1])

    def times(self, other: Interval) -> Interval:
        return Interval(self.low * other.low, self.expected * other.expected, self.high * other.high)

    def over(self, other: Interval) -> Interval:
        return Interval(self.low / other.high, self.expected / other.expected, self.high / other.low)

    def show(self, printer: Callable[[float], str]) -> str:
        """The value with its ends, "5.4 GB (2.7 GB – 5.4 GB)", or alone if the ends print alike."""
        middle, ends = printer(self.expected), (printer(self.low), printer(self.high))
        return middle if ends[0] == ends[1] else f"{middle} ({ends[0]} – {ends[1]})"


def rate(value: float, unit: str) -> str:
    """A rate for people: 15.2k tokens/s."""
    return f"{_rounded(value, _COUNTS)} {unit}"


def counted(number: int, name: str, several: str | None = None) -> str:
    """A number with the name of what it counts: "1 row", "2,048 rows"."""
    return f"{number:,} {name if number == 1 else several or name + 's'}"


_SINGULAR = {"passes": "pass", "entries": "entry", "bytes": "byte"}


def with_name(shown: str, names: str) -> str:
    """A printed number before what it counts, in the singular after 1: "1 epoch", "20 tokens per parameter"."""
    first, *rest = names.split(" ")
    if shown == "1":
        first = _SINGULAR.get(first, first.removesuffix("s"))
    return " ".join([shown, first, *rest]).rstrip()
