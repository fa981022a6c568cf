"""A permutation for every row, as a pure function of (key, i).

    none        every row shows symbol k as k
    block:N     rows i of one i div N share a permutation
    pool:P      every row has one of P
    sequence    every row has its own, independent of all others

Blocks and pools draw each permutation by Fisher and Yates' shuffle, so that all K! are equally likely, and keep it in a
table. A row with a permutation of its own would draw more words for it than for its tokens, so `sequence` computes
where one value goes, with no table (`Rounds`); for a few values, where that mixes slowly, it is `block:1`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from shoestring.core.errors import DataError
from shoestring.core.specs import PermutationSpec
from shoestring.streams.philox import MASK, Purpose, below, philox, words

MOST_SHUFFLED = 16
"""Values up to which a row's own permutation is a shuffle."""
SPREAD, SCATTER, LATER = 0x9E3779B1, 0x85EBCA6B, 0x7F4A7C15
"""Odd constants of the rounds: part of the format."""
KINDS = ("none", "block", "pool", "sequence")
_DISTANCE = 2.0**-20


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
        if self.name == "sequence":
            return 0, 0
        begin, end = first // self.number, (first + max(count, 1) - 1) // self.number
        return begin, end - begin + 1

    def over(self, size: int) -> Kind:
        """How permutations of this many values are made."""
        return Kind("block", 1) if self.name == "sequence" and size <= MOST_SHUFFLED else self

    def __str__(self) -> str:
        return f"{self.name}:{self.number}" if self.number else self.name


class Purposes(NamedTuple):
    """The purposes of the words that permute symbols, or states."""

    shuffle: Purpose
    pick: Purpose
    own: Purpose


OF_SYMBOLS = Purposes(Purpose.SYMBOLS_SHUFFLE, Purpose.SYMBOLS_PICK, Purpose.SYMBOLS_OWN)
OF_STATES = Purposes(Purpose.STATES_SHUFFLE, Purpose.STATES_PICK, Purpose.STATES_OWN)


class Rounds(NamedTuple):
    """A permutation of [0, size) that is computed value by value.

    The values stand in lines of `width`; the last line has `rest`. Even rounds turn each line by a number drawn for it,
    odd rounds each column. The numbers of a round come from a hash with one of the row's four words.
    Two rounds bring the permutation nearer to a uniform one by about the number of lines; `of` takes as many as leave
    a distance (total variation) of some 2⁻²⁰, which is also what the rounding of a shuffle's words leaves.
    """

    width: int
    lines: int
    rest: int
    rounds: int

    @classmethod
    def of(cls, size: int) -> Rounds:
        width = math.isqrt(size - 1) + 1
        width += width % 2  # an even line turns by an odd permutation, so that half of them are odd
        lines = -(-size // width)
        rounds = 2 * math.ceil(math.log(size**1.5 / _DISTANCE) / math.log(max(lines, 2)))
        return cls(width, lines, size - (lines - 1) * width, rounds)

    def apply(self, drawn: tuple[Tensor, ...], values: Tensor) -> Tensor:
        """Where values go, given the four words of their rows, which broadcast; int64."""
        line, place = values // self.width, values % self.width
        for number in range(self.rounds):
            word = drawn[number % 4] + number // 4 * LATER
            if number % 2 == 0:
                length = torch.where(line == self.lines - 1, self.rest, self.width)
                place = (place + below(_hash(line, word), length)) % length
            else:
                length = torch.where(place < self.rest, self.lines, self.lines - 1)
                line = (line + below(_hash(place, word), length)) % length
        return line * self.width + place


def _hash(value: Tensor, word: Tensor) -> Tensor:
    mixed = value * SPREAD + word & MASK
    return (mixed ^ mixed >> 16) * SCATTER & MASK


class Lookup(NamedTuple):
    """What a range of rows needs for its permutations."""

    kind: Kind
    purposes: Purposes
    size: int
    lowest: int
    """The number of the first shuffle in the table."""
    table: Tensor | None
    """(shuffles, K), uint8 or uint16; None where there is none."""

    def relabel(self, key: int, rows: Tensor, values: Tensor) -> Tensor:
        """Values (n, …) of rows (n,), permuted by the permutation of each row, int64."""
        if self.kind.name == "none":
            return values
        across = (-1, *[1] * (values.ndim - 1))
        if self.kind.name == "sequence":
            drawn = philox(key, rows, 0, self.purposes.own)
            return Rounds.of(self.size).apply(tuple(word.view(across) for word in drawn), values)
        assert self.table is not None
        which = numbers(self.kind, key, rows, self.purposes) - self.lowest
        return self.table.long()[which.view(across), values]


def numbers(kind: Kind, key: int, rows: Tensor, purposes: Purposes) -> Tensor:
    """Which shuffle of a block or a pool each row has, int64."""
    if kind.name == "block":
        return rows // kind.number
    return below(philox(key, rows, 0, purposes.pick)[0], kind.number)


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
