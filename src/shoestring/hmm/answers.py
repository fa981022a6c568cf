"""What can be known of rows drawn from a model: by who knows all of it, by who only counts, and its entropy rate.

Shapes: N rows, n of them in a chunk, L positions, H states, E symbols.

A row may be disguised in two ways. `symbols` (N, E): a symbol that was drawn is shown as the token `symbols[i, symbol]`
of row i. `states` (N, H): state s emits as `emission[states[i, s]]` says, but moves as ever. None: no row is.
The *oracle* knows the model and the tables, and reads the row up to the token that it predicts: no predictor has a
lower expected loss. Like all of `hmm.score`, its probabilities are given that there is another token.

Tokens and tables may lie on another device than the parameters: as many rows as take about `limit_bytes` are moved and
worked on together. What is returned lies on the parameters' device. All losses and divergences are in nats.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from shoestring.hmm.contexts import Alpha, CorpusCounts, Strategy, best_prior, from_corpus, in_context
from shoestring.hmm.inference import Tokens, check_tokens, forward, token_log_probs
from shoestring.hmm.parameters import HmmError, Parameters
from shoestring.hmm.score import LIMIT_BYTES

Symbols = Shaped[Tensor, "N E"] | None
States = Shaped[Tensor, "N H"] | None

NORMALISED = 0.05
"""How far the logarithm of the sum of a row of probabilities may be from 0: what rounding to bfloat16 can do."""


class EntropyRate(NamedTuple):
    """What a token says, given all before it."""

    nats: float
    error: float
    """The standard error of `nats`, from how much the sequences differ."""
    tokens: int
    """Over how many the mean was taken."""


def check_permutations(name: str, table: Tensor, rows: int, cells: int) -> None:
    """Raise HmmError unless the table has a permutation of 0 … cells - 1 for each row."""
    if tuple(table.shape) != (rows, cells):
        raise HmmError(f"{name} must have shape {(rows, cells)}, a permutation for every row of tokens, "
                       f"not {tuple(table.shape)}")  # fmt: skip
    if table.is_floating_point() or table.is_complex() or table.dtype == torch.bool:
        raise HmmError(f"{name} must be whole numbers, not {table.dtype}")
    in_order = torch.arange(cells, device=table.device)
    wrong = (table.long().sort(1).values != in_order).any(1).nonzero()
    if len(wrong):
        row = int(wrong[0])
        missing = min(set(range(cells)) - set(table[row].tolist()))
        raise HmmError(f"{name}[{row}] is not a permutation of 0 … {cells - 1}: it lacks {missing}")


def oracle_log_probs(
    parameters: Parameters,
    tokens: Tokens,
    symbols: Symbols = None,
    states: States = None,
    limit_bytes: int = LIMIT_BYTES,
) -> Float[Tensor, "N L"]:
    """log p(token | tokens before it) of the oracle, in float64; -inf where the model rules a token out.

    Computed in the parameters' type, in which probabilities below the smallest normal number count as zero.
    """
    _check(parameters, tokens, symbols, states)
    found = torch.empty(tokens.shape, dtype=torch.float64, device=parameters.device)
    together = limit_bytes // _filter_bytes(parameters, tokens.shape[1])
    for some, rows in _chunks(parameters, tokens, symbols, states, together):
        found[some] = _log_probs(parameters, rows)
    return found


def oracle_predictions(
    parameters: Parameters,
    tokens: Tokens,
    symbols: Symbols = None,
    states: States = None,
    limit_bytes: int = LIMIT_BYTES,
) -> Float[Tensor, "N L E"]:
    """What the oracle expects at every position, over the tokens as they are shown, in the parameters' type."""
    _check(parameters, tokens, symbols, states)
    found = parameters.emission.new_empty(*tokens.shape, parameters.symbols)
    together = limit_bytes // _filter_bytes(parameters, tokens.shape[1])
    for some, rows in _chunks(parameters, tokens, symbols, states, together):
        for t, p in enumerate(_predictions(parameters, rows)):
            found[some, t] = p
    return found


def losses_by_position(
    parameters: Parameters,
    tokens: Tokens,
    symbols: Symbols = None,
    states: States = None,
    corpus_counts: CorpusCounts | None = None,
    alpha: Alpha = 1.0,
    limit_bytes: int = LIMIT_BYTES,
) -> dict[str, Float[Tensor, " L"]]:
    """The mean loss at each position of those that only count the tokens as shown, and of the oracle, in float64.

    "uniform", "unigram_in_context" and "bigram_in_context" with `alpha` added to every count; with `corpus_counts` also
    "unigram_corpus" and "bigram_corpus", the latter with the best prior for that corpus; and "oracle", infinite where
    the model rules a token out.
    """
    _check(parameters, tokens, symbols, states)
    if not len(tokens):
        raise HmmError("there are no sequences to score")
    strategies = in_context(parameters.symbols, alpha, parameters.device)
    if corpus_counts is not None:
        if tuple(corpus_counts.pairs.shape) != (parameters.symbols, parameters.symbols):
            raise HmmError(f"the corpus was counted over {len(corpus_counts.tokens)} symbols, "
                           f"the model has {parameters.symbols}")  # fmt: skip
        strategies |= from_corpus(corpus_counts, best_prior(corpus_counts), parameters.device)
    sums = _no_losses([*strategies, "oracle"], tokens.shape[1], parameters.device)
    for _, rows in _chunks(parameters, tokens, symbols, states, _together(parameters, tokens.shape[1], limit_bytes)):
        _add_losses(sums, strategies, rows.shown)
        sums["oracle"] -= _log_probs(parameters, rows).sum(0)
    return {name: total / len(tokens) for name, total in sums.items()}


def losses_in_context(
    tokens: Tokens, symbols: int, alpha: Alpha = 1.0, limit_bytes: int = LIMIT_BYTES
) -> dict[str, Float[Tensor, " L"]]:
    """The mean loss at each position of those that know nothing but the row so far, whatever drew it, in float64.

    "uniform", "unigram_in_context" and "bigram_in_context", as `losses_by_position` has them.
    """
    check_tokens(tokens, symbols)
    if not len(tokens):
        raise HmmError("there are no sequences to score")
    positions = tokens.shape[1]
    strategies = in_context(symbols, alpha, tokens.device)
    sums = _no_losses(strategies, positions, tokens.device)
    for some in _slices(len(tokens), limit_bytes // _counting_bytes(symbols, positions)):
        _add_losses(sums, strategies, tokens[some].long())
    return {name: total / len(tokens) for name, total in sums.items()}


def entropy_rate(parameters: Parameters, tokens: Tokens, burn_in: int) -> EntropyRate:
    """The mean of -log p(token | tokens before it), from independent sequences drawn from the model, undisguised.

    The first `burn_in` tokens of each are read but not counted: the loss is above the rate until the past has told
    about the state what it can.
    """
    check_tokens(tokens, parameters.symbols)
    sequences, positions = tokens.shape
    if parameters.end is not None:
        raise HmmError("a model with end probabilities has no entropy rate: its sequences stop")
    if sequences < 2:
        raise HmmError(f"the error of an entropy rate needs at least 2 sequences, not {sequences}")
    if not 0 <= burn_in < positions:
        raise HmmError(f"burn_in = {burn_in}: must leave some of {positions} tokens")
    log_probs = oracle_log_probs(parameters, tokens)
    ruled_out = log_probs.isneginf().nonzero()
    if len(ruled_out):
        row, position = ruled_out[0].tolist()
        raise HmmError(f"row {row}, position {position}: the token has probability zero under the model in "
                       f"{parameters.dtype}, so the row was not drawn from it")  # fmt: skip
    means = -log_probs[:, burn_in:].mean(1)
    nats = max(0.0, means.mean().item())  # rounding can put a mean that is zero a hair below it
    return EntropyRate(nats, means.std().item() / math.sqrt(sequences), sequences * (positions - burn_in))


def strategy_predictions(
    parameters: Parameters,
    tokens: Tokens,
    symbols: Symbols = None,
    states: States = None,
    alpha: Alpha = 1.0,
    limit_bytes: int = LIMIT_BYTES,
) -> dict[str, Float[Tensor, "N L E"]]:
    """What "unigram_in_context", "bigram_in_context" and "oracle" expect, in float32 over the tokens as shown.

    [:, t] is the distribution of the token at position t given those before it. Takes 12 · N · L · E bytes.
    """
    _check(parameters, tokens, symbols, states)
    strategies = in_context(parameters.symbols, alpha, parameters.device)
    del strategies["uniform"]
    shape = (*tokens.shape, parameters.symbols)
    found = {
        name: torch.empty(shape, dtype=torch.float32, device=parameters.device) for name in [*strategies, "oracle"]
    }
    for some, rows in _chunks(parameters, tokens, symbols, states, _together(parameters, tokens.shape[1], limit_bytes)):
        for name, strategy in strategies.items():
            for t, guess in enumerate(strategy(rows.shown)):
                found[name][some, t] = guess.p.float()
        for t, p in enumerate(_predictions(parameters, rows)):
            found["oracle"][some, t] = p.float()
    return found


def divergences(
    log_p: Float[Tensor, "N L E"], predictions: Float[Tensor, "*shape"], limit_bytes: int = LIMIT_BYTES
) -> Float[Tensor, ""]:
    """The mean over all positions of KL(strategy || language model), in float64 on the device of `log_p`.

    `log_p` are the logarithms of the language model's probabilities, `predictions` the strategy's (N, L, E). Infinite
    if the language model rules out what the strategy does not.
    """
    if log_p.shape != predictions.shape:
        raise HmmError(f"log_p has shape {tuple(log_p.shape)}, predictions have {tuple(predictions.shape)}")
    if not log_p.numel():
        raise HmmError(f"there is nothing to compare in tables of shape {tuple(log_p.shape)}")
    rows, positions, symbols = log_p.shape
    total = torch.zeros((), dtype=torch.float64, device=log_p.device)
    for some in _slices(rows, limit_bytes // (8 * 6 * positions * symbols)):
        log_q, p = log_p[some].double(), predictions[some].to(log_p.device).double()
        off = float(log_q.logsumexp(2).abs().max())
        if not off <= NORMALISED:
            raise HmmError(f"log_p is not normalised: the log of a sum of probabilities is off by {off:.3g}; "
                           f"take its log_softmax")  # fmt: skip
        total += (torch.xlogy(p, p) - torch.where(p > 0, p * log_q, 0)).sum()
    return total / (rows * positions)


def _check(parameters: Parameters, tokens: Tensor, symbols: Tensor | None, states: Tensor | None) -> None:
    check_tokens(tokens, parameters.symbols)
    for name, table, cells in (("symbols", symbols, parameters.symbols), ("states", states, parameters.states)):
        if table is not None:
            check_permutations(name, table, len(tokens), cells)


class _Rows(NamedTuple):
    """A chunk, on the parameters' device."""

    shown: Int[Tensor, "n L"]
    drawn: Int[Tensor, "n L"]
    """The symbols behind the tokens shown."""
    symbols: Int[Tensor, "n E"] | None
    states: Int[Tensor, "n H"] | None


def _chunks(
    parameters: Parameters, tokens: Tensor, symbols: Tensor | None, states: Tensor | None, together: int
) -> Iterator[tuple[slice, _Rows]]:
    device = parameters.device
    for some in _slices(len(tokens), together):
        shown = drawn = tokens[some].to(device).long()
        shuffle = None if states is None else states[some].to(device).long()
        naming = None if symbols is None else symbols[some].to(device).long()
        if naming is not None:
            drawn = naming.argsort(1).gather(1, shown)  # to sort a permutation is to invert it
        yield some, _Rows(shown, drawn, naming, shuffle)


def _slices(rows: int, together: int) -> Iterator[slice]:
    step = max(1, together)
    return (slice(first, first + step) for first in range(0, rows, step))


def _filter_bytes(parameters: Parameters, positions: int) -> int:
    """What the oracle takes for one row: emissions and filter at every position, and what it expects at one."""
    numbers = 3 * positions * parameters.states + 8 * parameters.states + 4 * parameters.symbols
    return numbers * parameters.emission.element_size() + 5 * 8 * positions


def _counting_bytes(symbols: int, positions: int) -> int:
    """What a strategy takes for one row: counts of pairs, and what it expects at one position."""
    return min(positions, symbols) * symbols * 4 + 8 * 8 * symbols


def _together(parameters: Parameters, positions: int, limit_bytes: int) -> int:
    """Rows for which there is room for the oracle and a strategy."""
    return limit_bytes // (_filter_bytes(parameters, positions) + _counting_bytes(parameters.symbols, positions))


def _no_losses(names: Iterable[str], positions: int, device: torch.device) -> dict[str, Float[Tensor, " L"]]:
    return {name: torch.zeros(positions, dtype=torch.float64, device=device) for name in names}


def _add_losses(sums: dict[str, Tensor], strategies: Mapping[str, Strategy], shown: Int[Tensor, "n L"]) -> None:
    """Add to the sums of each strategy what it loses on the rows, position by position."""
    for name, strategy in strategies.items():
        for t, guess in enumerate(strategy(shown)):
            sums[name][t] -= guess.log_p.expand(len(shown), -1).gather(1, shown[:, t : t + 1]).sum()


def _log_probs(parameters: Parameters, rows: _Rows) -> Float[Tensor, "n L"]:
    return token_log_probs(*_as_one_model(parameters, rows)).log_probabilities.double()


def _as_one_model(parameters: Parameters, rows: _Rows) -> tuple[Parameters, Int[Tensor, "n L"]]:
    """A model and tokens with the likelihoods of the rows, though in each of them the states emit otherwise.

    Every place of every row is a symbol of its own there: its column in the table of emissions says how likely the
    token at that place is under each state of that row. Those columns are all that a filter ever reads of the table.
    """
    if rows.states is None:
        return parameters, rows.drawn
    columns = parameters.emission[rows.states[:, None, :], rows.drawn[:, :, None]]  # n L H
    places = torch.arange(rows.drawn.numel(), device=parameters.device).view_as(rows.drawn)
    return parameters._replace(emission=columns.flatten(0, 1).t()), places


def _predictions(parameters: Parameters, rows: _Rows) -> Iterator[Float[Tensor, "n E"]]:
    """What the oracle expects, position by position, over the tokens as shown."""
    alpha = forward(*_as_one_model(parameters, rows)).alpha  # L n H
    prior = parameters.start.expand(len(rows.drawn), -1)
    for t in range(len(alpha)):
        if t:
            prior = _moved(parameters, alpha[t - 1])
        emitting = prior if rows.states is None else prior.scatter(1, rows.states, prior)  # by row of the emissions
        p = emitting @ parameters.emission
        yield p if rows.symbols is None else p.scatter(1, rows.symbols, p)


def _moved(parameters: Parameters, alpha: Float[Tensor, "n H"]) -> Float[Tensor, "n H"]:
    """p(next state | tokens so far, and that there is another), from the filter; sums to 1."""
    if parameters.end is None:
        return alpha @ parameters.transition
    floor = torch.finfo(parameters.dtype).tiny
    ahead = alpha @ parameters.moves()
    going_on = ahead.sum(1, keepdim=True)
    # where the chain must have stopped, what comes next is predicted as if it could not
    return torch.where(going_on < floor, alpha @ parameters.transition, ahead / going_on.clamp_min(floor))
