"""A permutation for every row, as a pure function of (key, i).

    none        every row shows symbol k as k
    block:N     rows i of one i div N share a permutation
    pool:P      every row has one of P
    sequence    every row has its own

Each permutation is drawn by Fisher and Yates' shuffle, so that all K! are equally likely. `sequence` composes two: rows
are laid out in squares of 256 × 256, every line and every column of a square has a permutation, and a row's own is that
of its line after that of its column. So each is uniform, those of any two or three rows are independent, and 512
shuffles serve 65,536 rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from shoestring.core.errors import DataError
from shoestring.core.specs import PermutationSpec
from shoestring.streams.philox import Purpose, below, philox, words

SIDE = 256
KINDS = ("none", "block", "pool", "sequence")


class Kind(NamedTuple):
    """Which rows share a permutation."""

    name: str
    number: int = 0

    @classmethod
    def parse(cls, text: str) -> Kind:
        spec = PermutationSpec(text)
        if (problem := spec.problem()) is not None:
            raise DataError(f'"{text[:40]}" is not a kind of permutation: {problem}')
        return cls(spec.kind, spec.number)

    def span(self, first: int, count: int) -> tuple[int, int]:
        """The first shuffle that rows first to first + count can need, and how many from there on."""
        if self.name in ("none", "pool"):
            return 0, self.number
        each, many = (self.number, 1) if self.name == "block" else (SIDE * SIDE, SIDE)
        begin, end = first // each, (first + max(count, 1) - 1) // each
        return begin * many, (end - begin + 1) * many

    def __str__(self) -> str:
        return f"{self.name}:{self.number}" if self.number else self.name


class Purposes(NamedTuple):
    """The purposes of the words that permute symbols, or states."""

    first: Purpose
    second: Purpose
    pick: Purpose


OF_SYMBOLS = Purposes(Purpose.SYMBOLS_FIRST, Purpose.SYMBOLS_SECOND, Purpose.SYMBOLS_PICK)
OF_STATES = Purposes(Purpose.STATES_FIRST, Purpose.STATES_SECOND, Purpose.STATES_PICK)


class Lookup(NamedTuple):
    """The shuffles that a range of rows needs."""

    kind: Kind
    purposes: Purposes
    lowest: int
    """The number of the first shuffle in the tables."""
    tables: tuple[Tensor, ...]
    """No table, one or two; each (shuffles, K), uint8 or uint16."""

    def relabel(self, key: int, rows: Tensor, values: Tensor) -> Tensor:
        """Values (n, …) of rows (n,), permuted by the permutation of each row, int64."""
        for table, which in reversed(list(zip(self.tables, numbers(self.kind, key, rows, self.purposes)))):
            which = (which - self.lowest).view(-1, *[1] * (values.ndim - 1))
            values = table.long()[which, values]
        return values


def numbers(kind: Kind, key: int, rows: Tensor, purposes: Purposes) -> tuple[Tensor, ...]:
    """Which shuffles make up the permutation of each row (int64): none, one, or two, the second applied first."""
    if kind.name == "none":
        return ()
    if kind.name == "block":
        return (rows // kind.number,)
    if kind.name == "pool":
        return (below(philox(key, rows, 0, purposes.pick)[0], kind.number),)
    square, line, column = rows >> 16, rows >> 8 & 0xF0 | rows >> 4 & 0x0F, rows >> 4 & 0xF0 | rows & 0x0F
    return square * SIDE + line, square * SIDE + column  # tiles of 16 × 16: nearby rows need few tables


def shuffles(key: int, first: int, count: int, size: int, purpose: Purpose, device: torch.device) -> Tensor:
    """Shuffles number first to first + count of [0, size), (count, size) int64; `loops` and `kernels` equal them."""
    made = torch.arange(size, device=device).repeat(count, 1)
    drawn = words(key, torch.arange(count, device=device) + first, size - 1, purpose)
    each = torch.arange(count, device=device)
    for step, last in enumerate(range(size - 1, 0, -1)):
        other = below(drawn[:, step], last + 1)
        ours, theirs = made[:, last].clone(), made[each, other]
        made[each, other] = ours
        made[:, last] = theirs
    return made
