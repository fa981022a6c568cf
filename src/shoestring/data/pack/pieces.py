"""Rows as pieces of a stream of documents, and counts of their tokens; reading them needs no compiled loops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoestring.data.pack.order import Index


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """Counts of tokens: tokens == used + cropped, and rows · capacity == used + repeated + padded."""

    tokens: int
    used: int
    """Tokens in at least one row."""
    cropped: int
    """Tokens in no row."""
    padded: int
    """Places of rows without a token."""
    repeated: int
    """Places of rows whose token has another place too."""


class Packing(NamedTuple):
    """Rows as pieces of the stream; the pieces of a row are in the order of the stream."""

    row_starts: Index
    """(rows + 1,): row r has the pieces row_starts[r] to row_starts[r + 1]."""
    piece_at: Index
    """(pieces,): where in the stream each piece starts."""
    piece_size: NDArray[np.int32]
    """(pieces,): tokens in each piece."""
    ledger: Ledger

    @property
    def rows(self) -> int:
        return len(self.row_starts) - 1
