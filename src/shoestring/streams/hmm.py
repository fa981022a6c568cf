"""The endless rows of a hidden Markov model.

Shapes: n rows, L positions, H states, E symbols.

Word 2t of a row (see `philox`) draws its state at position t, from the state before (at first, from row H of `moves`),
and word 2t + 1 draws the symbol. `plain_rows` does so in plain torch; `loops` (CPU) and `kernels` (GPU) must equal it
byte for byte.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoestring.core.errors import DataError
from shoestring.core.recipe import fingerprint
from shoestring.core.seeds import derive
from shoestring.streams.permutations import OF_STATES, OF_SYMBOLS, Kind, Lookup, shuffles
from shoestring.streams.philox import MASK, Purpose, check_numbers, philox
from shoestring.streams.tables import Compact, Tables, alias_tables, quantise

FORMAT = 2
"""Version of the rows: part of the key, so that another number gives other rows."""
MOST_CELLS = (1 << 31) - 1


class HmmStream:
    """Row i is a pure function of (tables, seed, i): the same bytes on every device, for any batch and any order.

    `symbols` says which rows share a permutation of the alphabet: symbol k is shown as another one. `states` says which
    rows share a shuffle of the states: state s emits what another state would. The first changes which symbols are
    used, the second the order of the model's own emissions; see `permutations` for the kinds.
    """

    def __init__(
        self,
        start: NDArray[np.float64],
        transition: NDArray[np.float64],
        emission: NDArray[np.float64],
        *,
        seed: int,
        length: int,
        symbols: str = "none",
        states: str = "none",
    ):
        h, e = map(int, emission.shape)
        if start.shape != (h,) or transition.shape != (h, h):
            raise DataError(f"start {start.shape} and transition {transition.shape} do not fit {h} states")
        if max((h + 1) * h, h * e) > MOST_CELLS:
            raise DataError(f"a stream of {h:,} states and {e:,} symbols: a table has at most {MOST_CELLS:,} cells")
        if length < 1:
            raise DataError(f"a row of {length} tokens: it must have at least one")
        weights = [quantise("transition", transition), quantise("start", start), quantise("emission", emission)]
        self.length, self.symbols, self.states = length, e, h
        self.dtype = torch.uint8 if e <= 256 else torch.uint16
        self.kinds = {"symbols": Kind.parse(symbols), "states": Kind.parse(states)}
        content = b"".join([repr((FORMAT, h, e)).encode(), *(table.tobytes() for table in weights)])
        self.model = hashlib.sha256(content).hexdigest()
        self.key = derive(seed, "stream", self.model)
        self._tables = Tables(
            torch.from_numpy(alias_tables(np.vstack(weights[:2]))), torch.from_numpy(alias_tables(weights[2]))
        )
        self._on: dict[torch.device, Any] = {}
        self._shuffled: dict[tuple[Purpose, torch.device], tuple[tuple[int, int], Tensor]] = {}

    @property
    def fingerprint(self) -> str:
        """Equal for two streams exactly when they give the same rows, apart from their length."""
        return fingerprint(["hmm stream", self.model, self.key, *map(str, self.kinds.values())])

    def rows(self, first: int, count: int, device: torch.device | str = "cpu") -> Tensor:
        """Rows number first to first + count, (count, L) of the stream's type."""
        check_numbers(first, count)
        device = torch.device(device)
        if not count:
            return torch.empty((0, self.length), dtype=self.dtype, device=device)
        form = _form(device)
        if device not in self._on:
            self._on[device] = form.tables(self._tables, device)
        lookups = [self._lookup(name, first, count, device) for name in ("symbols", "states")]
        return form.make(first, count, self.length, self.key, self._on[device], *lookups).to(self.dtype)

    def permutations(self, name: str, first: int, count: int) -> Tensor:
        """The permutations of rows, (count, E) for "symbols", (count, H) for "states"."""
        check_numbers(first, count)
        numbers = torch.arange(count) + first
        values = torch.arange(self._size(name)).repeat(count, 1)
        return self._lookup(name, first, count, torch.device("cpu")).relabel(self.key, numbers, values)

    def _size(self, name: str) -> int:
        return self.symbols if name == "symbols" else self.states

    def _lookup(self, name: str, first: int, count: int, device: torch.device) -> Lookup:
        size, purposes = self._size(name), OF_SYMBOLS if name == "symbols" else OF_STATES
        kind = self.kinds[name].over(size)
        lowest, span = kind.span(first, count)
        table = self._shuffles(lowest, span, size, purposes.shuffle, device) if span else None
        return Lookup(kind, purposes, size, lowest, table)

    def _shuffles(self, lowest: int, many: int, size: int, purpose: Purpose, device: torch.device) -> Tensor:
        """The shuffles of a range; kept until another range is requested."""
        known, tables = self._shuffled.get((purpose, device), ((0, 0), torch.empty(0)))
        if known != (lowest, many):
            tables = _form(device).shuffles(self.key, lowest, many, size, purpose, device)
            self._shuffled[purpose, device] = ((lowest, many), tables)
        return tables


def plain_rows(
    first: int, count: int, length: int, key: int, tables: Tables, symbols: Lookup, states: Lookup
) -> Tensor:
    """Rows number first to first + count, (count, L) int64."""
    rows = torch.arange(count, device=tables.emits.device) + first
    state = torch.full_like(rows, tables.states)
    tokens = []
    for t in range(length):
        move, emit = philox(key, rows, t // 2, Purpose.TOKENS)[t % 2 * 2 :][:2]
        state = draw(tables.moves, state, move)
        symbol = draw(tables.emits, states.relabel(key, rows, state), emit)
        tokens.append(symbols.relabel(key, rows, symbol))
    return torch.stack(tokens, dim=1)


def draw(entries: Tensor, rows: Tensor, word: Tensor) -> Tensor:
    """An outcome from row `rows[r]` of an alias table for every word."""
    scaled = word * entries.shape[1]
    cell = scaled >> 32
    entry = entries[rows, cell]
    return torch.where(scaled & MASK < entry >> 32 & MASK, cell, entry & 0xFFFF)


class Form(NamedTuple):
    """An implementation of the rows."""

    tables: Callable[[Tables, torch.device], Any]
    make: Callable[..., Tensor]
    shuffles: Callable[..., Tensor]


PLAIN = Form(lambda tables, device: Tables(*(table.to(device) for table in tables)), plain_rows, shuffles)


def compact_tables(tables: Tables, device: torch.device) -> tuple[Compact, ...]:
    return tuple(Compact.of(entries.to(device)) for entries in tables)


def _form(device: torch.device) -> Form:
    if device.type == "cpu":
        from shoestring.streams import loops  # imports Numba

        return Form(PLAIN.tables, loops.make, loops.shuffles)
    if importlib.util.find_spec("triton"):
        from shoestring.streams import kernels  # imports Triton

        return Form(compact_tables, kernels.make, kernels.shuffles)
    return PLAIN
