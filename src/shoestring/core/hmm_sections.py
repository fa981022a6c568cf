"""The sections of a recipe for hidden Markov models, and for rows that are computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from shoestring.core.schema import Between
from shoestring.core.sections import SIZE, as_specs
from shoestring.core.specs import PermutationSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Hmm:
    """A hidden Markov model in place of a network; `[model]` and `[train]` are then not used."""

    states: Annotated[int, Between(2, 10**9), "hidden states"] = 100
    plain: Annotated[bool, "leave out lines with anything but letters, spaces, commas and full stops"] = False
    unique: Annotated[bool, "leave out repeated sentences"] = False
    update: Annotated[
        Literal["all", "every", "online"], "update the tables after all rows, after some, or as running averages"
    ] = "online"
    update_every: Annotated[int, SIZE, "rows between updates, for every and online"] = 256
    restarts: Annotated[int, Between(1, 10**6), "random starts; the best one continues"] = 1
    prior: Annotated[
        float, Between(1e-12, 1e6), "pseudo-count per row of each table, so that no probability is zero"
    ] = 1e-3
    concentration: Annotated[float, Between(1e-3, 1e6), "of the random start; small values make peaked rows"] = 1.0
    tied_start: Annotated[bool, "the start distribution is the stationary one"] = False
    tolerance: Annotated[
        float | None, Between(1e-12, 1), "stop when an epoch lowers the loss by less than this share"
    ] = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Stream:
    """The rows of `data.stream`: each index has its own row, and nothing is on disk."""

    symbols: Annotated[
        PermutationSpec, "hmm: which rows share a permutation of the symbols: none, sequence, block:N or pool:P"
    ] = PermutationSpec("none")
    states: Annotated[
        PermutationSpec, "hmm: which rows share a permutation of the states' emissions; as for symbols"
    ] = PermutationSpec("none")
    start: Annotated[Literal["model", "stationary"], "hmm: distribution of the first state"] = "model"
    chain: Annotated[
        Literal["dirichlet", "zipf", "doubly_stochastic"], "markov: how the transitions of a row's chain are drawn"
    ] = "dirichlet"
    fewest: Annotated[int, Between(2, 64), "markov: states of the smallest chain"] = 3
    most: Annotated[int, Between(2, 64), "markov: states of the largest chain"] = 10
    concentration: Annotated[int, Between(1, 64), "markov: of dirichlet; 1 is uniform over chains, more is even"] = 1
    exponent: Annotated[float, Between(0, 8, open_low=True), "markov: of zipf"] = 1.0

    def __post_init__(self) -> None:
        as_specs(self, symbols=PermutationSpec, states=PermutationSpec)
