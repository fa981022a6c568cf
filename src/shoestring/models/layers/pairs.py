"""Embeddings of a token and the one before it: a row of a table for every pair, by a hash.

Shapes: R rows, T positions; V ids.
"""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

MODULUS, FACTOR = 2**31 - 1, 48_271
"""Of the hash. It scatters pairs that have a token in common, and no product overflows."""


def ids_before(
    ids: Int[Tensor, "R T"],
    vocabulary: int,
    positions: Int[Tensor, "R T"] | None = None,
    newest: Int[Tensor, "R 1"] | None = None,
) -> Int[Tensor, "R T"]:
    """The id before each; V before the first of a document, or of a row where `newest` is not given."""
    first = torch.full_like(ids[:, :1], vocabulary) if newest is None else newest
    found = torch.cat((first, ids[:, :-1]), dim=1)
    return found if positions is None else found.masked_fill(positions == 0, vocabulary)


def pair_ids(before: Int[Tensor, "R T"], ids: Int[Tensor, "R T"], vocabulary: int, rows: int) -> Int[Tensor, "R T"]:
    """The row of each pair in a table of so many."""
    return (before * vocabulary + ids) % MODULUS * FACTOR % MODULUS % rows
