"""The oracle: sums over all H^L state paths, one at a time, in plain Python; and the models it is compared on."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

import torch
from hypothesis import strategies as st

from shoestring.hmm.maximize import Priors
from shoestring.hmm.parameters import Parameters

FLAT = Priors(start=0.0, transition=0.0, emission=0.0, end=0.0)
"""No prior."""


def paths(model: Parameters, tokens: Sequence[int]) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every state path and its probability together with the tokens (and the end, if the model has one)."""
    start, transition, emission = (table.tolist() for table in model[:3])
    end = None if model.end is None else model.end.tolist()
    for path in itertools.product(range(model.states), repeat=len(tokens)):
        p = start[path[0]]
        for t, (state, token) in enumerate(zip(path, tokens)):
            if t:
                p *= transition[path[t - 1]][state] * (1.0 if end is None else 1 - end[path[t - 1]])
            p *= emission[state][token]
        yield path, p * (1.0 if end is None else end[path[-1]])


def likelihood(model: Parameters, tokens: Sequence[int]) -> float:
    return math.fsum(p for _, p in paths(model, tokens))


def prefix_probability(model: Parameters, tokens: Sequence[int]) -> float:
    """That a sequence begins with these tokens, whatever follows."""
    return math.fsum(p for _, p in paths(model._replace(end=None), tokens)) if model.end is None else math.fsum(
        p / model.end[path[-1]].item() for path, p in paths(model, tokens)
    )  # fmt: skip


def best(model: Parameters, tokens: Sequence[int]) -> tuple[tuple[int, ...], float]:
    return max(paths(model, tokens), key=lambda found: found[1])


def posteriors(model: Parameters, tokens: Sequence[int]) -> torch.Tensor:
    """(L, H); zeros for an impossible row."""
    table = torch.zeros(len(tokens), model.states, dtype=torch.float64)
    total = likelihood(model, tokens)
    for path, p in paths(model, tokens):
        for t, state in enumerate(path):
            table[t, state] += p / total if total else 0.0
    return table


def counts(
    model: Parameters, rows: Sequence[Sequence[int]], weights: Sequence[float] | None = None
) -> dict[str, torch.Tensor]:
    """Expected counts by table; impossible rows are left out."""
    h, e = model.states, model.symbols
    shapes = {"start": (h,), "transition": (h, h), "emission": (h, e), "end": (h,)}
    found = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}
    numbers: dict[str, float] = defaultdict(float)
    for tokens, weight in zip(rows, weights or [1.0] * len(rows)):
        total = likelihood(model, tokens)
        if total == 0:
            numbers["impossible"] += weight
            continue
        numbers["log_likelihood"] += weight * math.log(total)
        numbers["sequences"] += weight
        numbers["tokens"] += weight * len(tokens)
        for path, p in paths(model, tokens):
            share = weight * p / total
            found["start"][path[0]] += share
            found["end"][path[-1]] += share
            for t, (state, token) in enumerate(zip(path, tokens)):
                found["emission"][state, token] += share
                if t:
                    found["transition"][path[t - 1], state] += share
    if model.end is None:
        del found["end"]
    names = ("log_likelihood", "sequences", "tokens", "impossible")
    return found | {name: torch.tensor(numbers[name], dtype=torch.float64) for name in names}


@st.composite
def models(draw: st.DrawFn, zeros: bool = True, states: int = 3, symbols: int = 3) -> Parameters:
    """Small models, some with end probabilities, some with zeros in any table."""
    h, e = draw(st.integers(1, states)), draw(st.integers(1, symbols))
    cell = st.sampled_from([0.0, 0.01, 0.3, 0.5, 1.0, 3.0]) if zeros else st.floats(0.05, 1.0)

    def row(cells: int) -> list[float]:
        values = draw(st.lists(cell, min_size=cells, max_size=cells))
        if sum(values) == 0:
            values[draw(st.integers(0, cells - 1))] = 1.0
        return [value / sum(values) for value in values]

    end = None
    if draw(st.booleans()):
        chances = st.sampled_from([0.0, 0.1, 0.5, 1.0]) if zeros else st.floats(0.05, 0.9)
        end = torch.tensor(draw(st.lists(chances, min_size=h, max_size=h)), dtype=torch.float64)
    tables = ([row(h)], [row(h) for _ in range(h)], [row(e) for _ in range(h)])
    start, transition, emission = (torch.tensor(table, dtype=torch.float64) for table in tables)
    return Parameters(start[0], transition, emission, end)


@st.composite
def batches(
    draw: st.DrawFn, symbols: int, rows: int = 4, length: int = 5
) -> tuple[list[list[int]], torch.Tensor, torch.Tensor]:
    """Rows of unequal length; the same padded with tokens that are in no alphabet; and the lengths."""
    row = st.lists(st.integers(0, symbols - 1), min_size=1, max_size=length)
    found = draw(st.lists(row, min_size=1, max_size=rows))
    lengths = torch.tensor([len(tokens) for tokens in found])
    padded = torch.full((len(found), int(lengths.max())), -7)
    for i, tokens in enumerate(found):
        padded[i, : len(tokens)] = torch.tensor(tokens)
    return found, padded, lengths
