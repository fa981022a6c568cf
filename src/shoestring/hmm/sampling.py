"""Sequences drawn from a model, and the stationary distribution of a chain.

Shapes: N sequences, L positions, H states, E symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from shoestring.core.seeds import derive
from shoestring.hmm.parameters import HmmError, Parameters

Draw = Callable[[Float[Tensor, "N E"], torch.Generator], Int[Tensor, " N"]]
"""Chooses a symbol per row from log-probabilities."""
_MOST_CLOSING = 16
"""Tokens drawn in excess: marks that still belong to the sentence before."""


class Samples(NamedTuple):
    tokens: Int[Tensor, "N L"]
    """0 beyond a row's length."""
    states: Int[Tensor, "N L"]
    """-1 beyond a row's length."""
    lengths: Int[Tensor, " N"] | None
    """Where each row stopped or was cut at L; None for a model without end probabilities."""


def sample(parameters: Parameters, sequences: int, length: int, seed: int) -> Samples:
    """Draw sequences of `length` tokens, or fewer if the model stops earlier.

    Draws on the CPU in float64, so that a seed gives the same rows for every device and type.
    """
    if sequences < 0 or length < 1:
        raise HmmError(f"cannot draw {sequences} sequences of {length} tokens")
    generator = torch.Generator().manual_seed(derive(seed, "hmm", "sample"))
    start, moves, emit = (_cumulated(table.double().cpu()) for table in parameters[:3])
    ends = None if parameters.end is None else parameters.end.double().cpu()

    def draw(rows: Float[Tensor, "N cells"]) -> Int[Tensor, " N"]:
        u = torch.rand(sequences, 1, dtype=torch.float64, generator=generator)
        return torch.searchsorted(rows, u, right=True)[:, 0]  # the first cell above u: never one of probability zero

    tokens = torch.zeros(sequences, length, dtype=torch.int64)
    states = torch.full((sequences, length), -1)
    lengths = torch.zeros(sequences, dtype=torch.int64)
    running = torch.ones(sequences, dtype=torch.bool)
    state = draw(start.expand(sequences, -1).contiguous())
    for t in range(length):
        states[:, t] = torch.where(running, state, -1)
        tokens[:, t] = torch.where(running, draw(emit[state]), 0)
        lengths += running
        if ends is not None:
            running = running & (torch.rand(sequences, dtype=torch.float64, generator=generator) >= ends[state])
        state = draw(moves[state])
    device = parameters.device
    return Samples(tokens.to(device), states.to(device), None if ends is None else lengths.to(device))


SENTENCE_ENDS = frozenset(".!?")
"""The marks that end a sentence."""
CLOSING = SENTENCE_ENDS | frozenset("\"'”’")
"""Marks that may follow the end, and still belong to it."""


def sentence_start(parameters: Parameters, alphabet: Sequence[str]) -> Float[Tensor, " H"] | None:
    """The distribution of states right after the end of a sentence, in float64, in a long text of the model.

    None where the model has end probabilities, whose rows begin at a start of their own, or no mark ends a sentence.
    """
    ends = [index for index, word in enumerate(alphabet) if word in SENTENCE_ENDS]
    if parameters.end is not None or not ends:
        return None
    exact = parameters.to("cpu", torch.float64)
    ending = stationary(exact.transition) * exact.emission[:, ends].sum(1)
    return ending / ending.sum() @ exact.transition if ending.sum() > 0 else None


def from_sentence_start(
    parameters: Parameters, alphabet: Sequence[str], sequences: int, length: int, seed: int, draw: Draw | None = None
) -> list[list[int]]:
    """Sequences of at most `length` tokens, from the first word of a sentence on where the model knows sentences.

    A row of a fit may begin anywhere in a sentence, so the model's own start is mostly in the middle of one. With
    `draw`, as for `continue_rows`.
    """
    start = sentence_start(parameters, alphabet)
    if start is None and draw is not None:
        found: list[list[int]] = continue_rows(parameters, (), sequences, length, seed, draw).tolist()
        return found
    if start is None:
        drawn = sample(parameters, sequences, length, seed)
        sizes = [length] * sequences if drawn.lengths is None else drawn.lengths.tolist()
        return [row[:size] for row, size in zip(drawn.tokens.tolist(), sizes)]
    more = length + _MOST_CLOSING
    begun = parameters.to("cpu", torch.float64)._replace(start=start)
    rows = continue_rows(begun, (), sequences, more, seed, draw).tolist()
    firsts = [next((at for at, token in enumerate(row) if alphabet[token] not in CLOSING), 0) for row in rows]
    return [row[first : first + length] for row, first in zip(rows, firsts)]


def continue_rows(
    parameters: Parameters,
    begun: Sequence[int],
    sequences: int,
    tokens: int,
    seed: int,
    draw: Draw | None = None,
) -> Int[Tensor, "N more"]:
    """Sequences that all begin with the tokens `begun`, each followed by `tokens` more that are drawn given these.

    With `draw`, it chooses each token from the model's prediction given all tokens before it; nothing stops a row.
    """
    start, moves, emit = (table.double().cpu() for table in parameters[:3])
    for token in begun:
        seen = start * emit[:, token]
        if not seen.sum() > 0:
            raise HmmError("the model rules out the beginning: its probability is zero")
        start = seen / seen.sum() @ moves
    if draw is None:
        drawn = sample(parameters.to("cpu", torch.float64)._replace(start=start), sequences, tokens, seed).tokens
    else:
        drawn = _chosen(start, moves, emit, sequences, tokens, seed, draw)
    return torch.cat([torch.tensor(begun, dtype=torch.int64).repeat(sequences, 1), drawn], dim=1)


def _chosen(
    start: Float[Tensor, " H"],
    moves: Float[Tensor, "H H"],
    emit: Float[Tensor, "H E"],
    sequences: int,
    tokens: int,
    seed: int,
    draw: Draw,
) -> Int[Tensor, "N tokens"]:
    generator = torch.Generator().manual_seed(derive(seed, "hmm", "sample"))
    states = start.repeat(sequences, 1)  # N, H: of the next token, given those before it
    rows = torch.zeros(sequences, tokens, dtype=torch.int64)
    for place in range(tokens):
        rows[:, place] = draw((states @ emit).log(), generator)
        seen = states * emit[:, rows[:, place]].T
        states = seen / seen.sum(1, keepdim=True) @ moves
    return rows


def stationary(transition: Float[Tensor, "H H"]) -> Float[Tensor, " H"]:
    """The long-run share of time in each state, in float64, for a chain with a uniform start.

    It solves p = p A. Where there are several solutions (a chain of separate parts), it is the one that the uniform
    start leads to. A periodic chain is averaged over its period.
    """
    states = transition.shape[0]
    # staying half of the time changes no stationary distribution, and breaks every cycle
    power = (transition.double() + torch.eye(states, dtype=torch.float64, device=transition.device)) / 2
    for _ in range(64):
        squared = power @ power
        squared /= squared.sum(1, keepdim=True)
        converged = bool((squared - power).abs().max() < 1e-15)
        power = squared
        if converged:
            break
    shares = power.mean(0)
    return shares / shares.sum()


def _cumulated(table: Float[Tensor, "*rows cells"]) -> Float[Tensor, "*rows cells"]:
    """Running sums of the rows, exactly 1 from the last cell that can be drawn."""
    sums = table.cumsum(-1)
    return sums / sums[..., -1:]
