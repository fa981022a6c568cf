"""Exact inference: filter, causal prediction and most likely path.

Shapes: N sequences (rows), L positions, H states, E symbols.

All functions take tokens (N, L) of any integer type and, for rows of unequal length, `lengths` (N,): whatever lies
beyond a row's length is ignored. They compute in the parameters' type and on their device.

A sequence of probability zero is *impossible*. It is flagged in `impossible`; its log-probabilities may be -inf, but
nothing else is ever infinite, and nothing is NaN. The probability of a token given those before it counts as zero if it
is below the smallest normal number of the type (1e-38 in float32).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from shoestring.hmm.parameters import HmmError, Parameters

Tokens = Shaped[Tensor, "N L"]
Lengths = Shaped[Tensor, " N"] | None


def check_tokens(tokens: Tensor, symbols: int, lengths: Tensor | None = None) -> None:
    """Raise HmmError, naming row and position, unless all tokens within the rows' lengths are in the alphabet."""
    if tokens.ndim != 2:
        raise HmmError(f"tokens must be rows × positions, not of shape {tuple(tokens.shape)}")
    rows, positions = tokens.shape
    for name, values in (("tokens", tokens), ("lengths", lengths)):
        if values is not None and (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool):
            raise HmmError(f"{name} must be whole numbers, not {values.dtype}")
    if rows and not positions:
        raise HmmError("row 0 is empty (position 0 is missing): every sequence needs at least one token")
    if lengths is not None:
        if tuple(lengths.shape) != (rows,):
            raise HmmError(f"lengths must have one value for each of {rows} rows, not shape {tuple(lengths.shape)}")
        wrong = ((lengths.long() < 1) | (lengths.long() > positions)).nonzero()
        if len(wrong):
            row = int(wrong[0])
            length = int(lengths[row])
            reason = f"longer than its {positions} positions" if length > 0 else "empty (position 0 is missing)"
            raise HmmError(f"row {row} has length {length}: it is {reason}")
    values = tokens.long()
    outside = (values < 0) | (values >= symbols)
    if lengths is not None:
        outside &= _inside(positions, lengths.to(tokens.device)).t()
    if bool(outside.any()):
        row, position = outside.nonzero()[0].tolist()
        token = int(values[row, position])
        raise HmmError(f"row {row}, position {position}: token {token} is not in the alphabet 0 … {symbols - 1}")


class Step(NamedTuple):
    """One position of the filter.

    Beyond the end of a row `alpha` repeats its last value and `scale` is 1. After a token of probability zero, `alpha`
    continues as if that token had not been seen.
    """

    prior: Float[Tensor, "N H"]
    """p(state | tokens before, and that there is another); sums to 1."""
    alpha: Float[Tensor, "N H"]
    """p(state | tokens up to and including this one); sums to 1."""
    scale: Float[Tensor, " N"]
    """p(token, and that the chain did not stop before it | tokens before); 0 where that makes a row impossible."""
    chance: Float[Tensor, " N"]
    """p(token | tokens before, and that there is another); `scale` where the model has no end."""
    inside: Bool[Tensor, " N"]


class Predicted(NamedTuple):
    probabilities: Float[Tensor, "N L E"]
    """p(token at this position | tokens before it, and that there is one); sums to 1, or is 0 beyond a row's end."""
    impossible: Bool[Tensor, " N"]


class Scored(NamedTuple):
    log_probabilities: Float[Tensor, "N L"]
    """The logarithm of the probability that `predict` gives to the token; -inf for 0, and 0 beyond a row's end."""
    impossible: Bool[Tensor, " N"]


class Path(NamedTuple):
    states: Int[Tensor, "N L"]
    """The most likely path, ties to the lower state; -1 beyond a row's end and everywhere in an impossible row."""
    log_probability: Float[Tensor, " N"]
    """Of the path and the tokens together; -inf for an impossible row."""
    impossible: Bool[Tensor, " N"]


def filter_rows(parameters: Parameters, tokens: Tokens, lengths: Lengths = None) -> Iterator[Step]:
    """The forward loop, one position at a time, without storing earlier ones. The caller has checked the tokens."""
    tokens, inside = _prepare(parameters, tokens, lengths)
    emit, moves = parameters.emission.t(), parameters.moves()
    floor = torch.finfo(parameters.dtype).tiny
    alpha = ahead = prior = parameters.start.expand(len(tokens), -1)
    for t in range(tokens.shape[1]):
        if t:
            ahead = prior = alpha @ moves
        emitted = emit[tokens[:, t]]
        joint = ahead * emitted
        scale = chance = _or_zero(joint.sum(1))
        if parameters.end is not None and t:
            continues = ahead.sum(1, keepdim=True)
            # where the chain must have stopped, the next token is predicted as if it could not stop
            prior = torch.where(continues < floor, alpha @ parameters.transition, ahead / continues.clamp_min(floor))
            chance = _or_zero((prior * emitted).sum(1))
        scale = torch.where(inside[t], scale, 1)
        seen = torch.where((scale > 0)[:, None], joint / scale.clamp_min(floor)[:, None], prior)
        alpha = torch.where(inside[t][:, None], seen, alpha)
        yield Step(prior, alpha, scale, chance, inside[t])


def predict(parameters: Parameters, tokens: Tokens, lengths: Lengths = None) -> Predicted:
    """The distribution of every token given only the tokens before it."""
    check_tokens(tokens, parameters.symbols, lengths)
    rows, positions = tokens.shape
    found = parameters.emission.new_empty(rows, positions, parameters.symbols)
    impossible = torch.zeros(rows, dtype=torch.bool, device=parameters.device)
    for t, step in enumerate(filter_rows(parameters, tokens, lengths)):
        found[:, t] = (step.prior @ parameters.emission) * step.inside[:, None]
        impossible |= step.scale == 0
    return Predicted(found, impossible)


def token_log_probs(parameters: Parameters, tokens: Tokens, lengths: Lengths = None) -> Scored:
    """log p(token | tokens before it) of every token; without end probabilities a row's sum is its log-likelihood."""
    check_tokens(tokens, parameters.symbols, lengths)
    found = parameters.emission.new_empty(tokens.shape)
    impossible = torch.zeros(len(tokens), dtype=torch.bool, device=parameters.device)
    for t, step in enumerate(filter_rows(parameters, tokens, lengths)):
        found[:, t] = torch.where(step.inside, step.chance.log(), 0)
        impossible |= step.scale == 0
    return Scored(found, impossible)


def viterbi(parameters: Parameters, tokens: Tokens, lengths: Lengths = None, limit_bytes: int = 2**26) -> Path:
    """The most likely path of every row, in log space.

    Memory: N × L × H short integers, and `limit_bytes` for the table of pairs of states of some rows at a time.
    """
    check_tokens(tokens, parameters.symbols, lengths)
    tokens, inside = _prepare(parameters, tokens, lengths)
    rows, positions = tokens.shape
    states = parameters.states
    moves, emit = parameters.moves().log(), parameters.emission.t().log()
    ends = torch.zeros_like(parameters.start) if parameters.end is None else parameters.end.log()
    kind = torch.int16 if states < 2**15 else torch.int32
    stay = torch.arange(states, device=tokens.device, dtype=kind)
    came = torch.empty(positions, rows, states, dtype=kind, device=tokens.device)  # the best state before
    together = max(1, limit_bytes // (states * states * moves.element_size()))
    best = parameters.start.log() + emit[tokens[:, 0]] if positions else parameters.emission.new_zeros(rows, states)
    for t in range(1, positions):
        for some in torch.arange(rows, device=tokens.device).split(together):
            reached, origin = (best[some, :, None] + moves).max(1)  # n H H over the state before
            now = inside[t, some, None]
            came[t, some] = torch.where(now, origin.to(kind), stay)
            best[some] = torch.where(now, reached + emit[tokens[some, t]], best[some])
    log_probability, state = (best + ends).max(1)
    impossible = log_probability.isneginf()
    path = torch.empty(rows, positions, dtype=torch.int64, device=tokens.device)
    for t in reversed(range(positions)):
        path[:, t] = state
        if t:
            state = came[t].gather(1, state[:, None])[:, 0].long()
    return Path(path.masked_fill(~inside.t() | impossible[:, None], -1), log_probability, impossible)


def _prepare(parameters: Parameters, tokens: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """Tokens as indices on the parameters' device, 0 beyond the rows' ends, and whether each is inside, (L, N)."""
    rows, positions = tokens.shape
    tokens = tokens.to(parameters.device).long()
    if lengths is None:
        return tokens, torch.ones(positions, rows, dtype=torch.bool, device=tokens.device)
    inside = _inside(positions, lengths.to(tokens.device))
    return tokens.masked_fill(~inside.t(), 0), inside


def _inside(positions: int, lengths: Tensor) -> Bool[Tensor, "L N"]:
    return torch.arange(positions, device=lengths.device)[:, None] < lengths.long()


def _or_zero(values: Tensor) -> Tensor:
    """The values, with 0 for those whose inverse would be infinite."""
    return torch.where(values < torch.finfo(values.dtype).tiny, 0, values)
