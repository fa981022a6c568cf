"""Losses on rows drawn from a known model: of the oracle and of baselines that only count; and its entropy rate.

Shapes: N rows, n of them in a chunk, L positions, H states, E symbols.

Each row may have its own permutations. With `symbols` (N, E), a drawn symbol is shown as the token `symbols[i, symbol]`
in row i. With `states` (N, H), state s emits from `emission[states[i, s]]`, but moves as before. None: no permutations.
The *oracle* knows the model and the permutations, and reads the row up to the token that it predicts: no predictor has
a lower expected loss. As in `hmm_score`, its probabilities are given that there is another token.

Tokens and permutations may lie on another device than the parameters. They are moved and processed in chunks of about
`limit_bytes`, and results lie on the parameters' device. All losses and divergences are in nats.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from shoestring.baselines.hmm_score import LIMIT_BYTES
from shoestring.baselines.in_context import Alpha, Baseline, from_corpus, in_context
from shoestring.baselines.ngram import Counts
from shoestring.hmm.inference import Tokens, check_tokens, filter_rows, token_log_probs
from shoestring.hmm.parameters import HmmError, Parameters

Symbols = Shaped[Tensor, "N E"] | None
States = Shaped[Tensor, "N H"] | None

NORMALISED = 0.05
"""How far the logarithm of a sum of probabilities may be from 0, to allow for rounding to bfloat16."""


class EntropyRate(NamedTuple):
    """The mean information of a token, given all tokens before it."""

    nats: float
    error: float
    """The standard error of `nats`, from the differences between sequences."""
    tokens: int
    """Tokens that `nats` is the mean over."""


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
    """log p(token | tokens before it) of the oracle, in float64; -inf where the model rules out a token.

    It is computed in the parameters' type, where probabilities below the smallest normal number count as zero.
    """
    _check(parameters, tokens, symbols, states)
    found = torch.empty(tokens.shape, dtype=torch.float64, device=parameters.device)
    together = limit_bytes // _filter_bytes(parameters, tokens.shape[1])
    for some, rows in _chunks(parameters, tokens, symbols, states, together):
        found[some] = _log_probs(parameters, rows)
    return found


def losses_by_position(
    parameters: Parameters,
    tokens: Tokens,
    symbols: Symbols = None,
    states: States = None,
    corpus_counts: Counts | None = None,
    alpha: Alpha = 1.0,
    limit_bytes: int = LIMIT_BYTES,
) -> dict[str, Float[Tensor, " L"]]:
    """The mean loss at each position, in float64, of the baselines that count the shown tokens, and of the oracle.

    The baselines are those of `losses_in_context`. With `corpus_counts`, there are also "unigram_corpus" and
    "bigram_corpus", the latter with the best prior for the corpus. The loss of the oracle is infinite where the model
    rules out a token.
    """
    _check(parameters, tokens, symbols, states)
    if not len(tokens):
        raise HmmError("there are no sequences to score")
    baselines = in_context(parameters.symbols, alpha, parameters.device)
    if corpus_counts is not None:
        baselines |= from_corpus(corpus_counts, parameters)
    sums = _no_losses([*baselines, "oracle"], tokens.shape[1], parameters.device)
    for _, rows in _chunks(parameters, tokens, symbols, states, _together(parameters, tokens.shape[1], limit_bytes)):
        _add_losses(sums, baselines, rows.shown)
        sums["oracle"] -= _log_probs(parameters, rows).sum(0)
    return {name: total / len(tokens) for name, total in sums.items()}


def losses_in_context(
    tokens: Tokens, symbols: int, alpha: Alpha = 1.0, limit_bytes: int = LIMIT_BYTES
) -> dict[str, Float[Tensor, " L"]]:
    """The mean loss at each position, in float64, of the baselines that know only the row so far.

    They are "uniform", "unigram_in_context" and "bigram_in_context"; `alpha` is added to every count.
    """
    check_tokens(tokens, symbols)
    if not len(tokens):
        raise HmmError("there are no sequences to score")
    positions = tokens.shape[1]
    baselines = in_context(symbols, alpha, tokens.device)
    sums = _no_losses(baselines, positions, tokens.device)
    for some in _slices(len(tokens), limit_bytes // _counting_bytes(symbols, positions)):
        _add_losses(sums, baselines, tokens[some].long())
    return {name: total / len(tokens) for name, total in sums.items()}


def entropy_rate(parameters: Parameters, tokens: Tokens, burn_in: int) -> EntropyRate:
    """The mean of -log p(token | tokens before it), from independent sequences drawn without permutations.

    The first `burn_in` tokens of each are read but not counted: the loss is above the rate until the past has revealed
    what it can about the state.
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
    nats = max(0.0, means.mean().item())  # rounding can make a mean of zero slightly negative
    return EntropyRate(nats, means.std().item() / math.sqrt(sequences), sequences * (positions - burn_in))


def baseline_predictions(
    parameters: Parameters,
    tokens: Tokens,
    symbols: Symbols = None,
    states: States = None,
    alpha: Alpha = 1.0,
    limit_bytes: int = LIMIT_BYTES,
) -> dict[str, Float[Tensor, "N L E"]]:
    """Predictions of "unigram_in_context", "bigram_in_context" and "oracle", in float32 over the shown tokens.

    [:, t] is the distribution of the token at position t given those before it. This takes 12 · N · L · E bytes.
    """
    _check(parameters, tokens, symbols, states)
    baselines = in_context(parameters.symbols, alpha, parameters.device)
    del baselines["uniform"]
    shape = (*tokens.shape, parameters.symbols)
    found = {name: torch.empty(shape, dtype=torch.float32, device=parameters.device) for name in [*baselines, "oracle"]}
    for some, rows in _chunks(parameters, tokens, symbols, states, _together(parameters, tokens.shape[1], limit_bytes)):
        for name, baseline in baselines.items():
            for t, guess in enumerate(baseline(rows.shown)):
                found[name][some, t] = guess.p.float()
        for t, p in enumerate(_predictions(parameters, rows)):
            found["oracle"][some, t] = p.float()
    return found


def divergences(
    log_p: Float[Tensor, "N L E"], predictions: Float[Tensor, "*shape"], limit_bytes: int = LIMIT_BYTES
) -> Float[Tensor, ""]:
    """The mean over all positions of KL(baseline || language model), in float64 on the device of `log_p`.

    `log_p` are the logarithms of the language model's probabilities, `predictions` the baseline's (N, L, E). Infinite
    if the language model rules out a token that the baseline does not.
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
    """A chunk of rows on the parameters' device."""

    shown: Int[Tensor, "n L"]
    drawn: Int[Tensor, "n L"]
    """The symbols behind the shown tokens."""
    symbols: Int[Tensor, "n E"] | None
    states: Int[Tensor, "n H"] | None


def _chunks(
    parameters: Parameters, tokens: Tensor, symbols: Tensor | None, states: Tensor | None, together: int
) -> Iterator[tuple[slice, _Rows]]:
    device = parameters.device
    for some in _slices(len(tokens), together):
        shown = drawn = tokens[some].to(device).long()
        own_symbols, own_states = (
            None if table is None else table[some].to(device).long() for table in (symbols, states)
        )
        if own_symbols is not None:
            drawn = own_symbols.argsort(1).gather(1, shown)  # sorting inverts a permutation
        yield some, _Rows(shown, drawn, own_symbols, own_states)


def _slices(rows: int, together: int) -> Iterator[slice]:
    step = max(1, together)
    return (slice(first, first + step) for first in range(0, rows, step))


def _filter_bytes(parameters: Parameters, positions: int) -> int:
    """Memory of the oracle for one row: emissions and filter at every position, and one prediction."""
    numbers = 3 * positions * parameters.states + 8 * parameters.states + 4 * parameters.symbols
    return numbers * parameters.emission.element_size() + 5 * 8 * positions


def _counting_bytes(symbols: int, positions: int) -> int:
    """Memory of a baseline for one row: counts of pairs, and one prediction."""
    return min(positions, symbols) * symbols * 4 + 8 * 8 * symbols


def _together(parameters: Parameters, positions: int, limit_bytes: int) -> int:
    """Rows of a chunk, with room for the oracle and a baseline."""
    return limit_bytes // (_filter_bytes(parameters, positions) + _counting_bytes(parameters.symbols, positions))


def _no_losses(names: Iterable[str], positions: int, device: torch.device) -> dict[str, Float[Tensor, " L"]]:
    return {name: torch.zeros(positions, dtype=torch.float64, device=device) for name in names}


def _add_losses(sums: dict[str, Tensor], baselines: Mapping[str, Baseline], shown: Int[Tensor, "n L"]) -> None:
    """Add the losses of each baseline on the rows to its sums, position by position."""
    for name, baseline in baselines.items():
        for t, guess in enumerate(baseline(shown)):
            sums[name][t] -= guess.log_p.expand(len(shown), -1).gather(1, shown[:, t : t + 1]).sum()


def _log_probs(parameters: Parameters, rows: _Rows) -> Float[Tensor, "n L"]:
    return token_log_probs(*_as_one_model(parameters, rows)).log_probabilities.double()


def _as_one_model(parameters: Parameters, rows: _Rows) -> tuple[Parameters, Int[Tensor, "n L"]]:
    """A model and tokens with the likelihoods of the rows, although the states emit differently in each row.

    Every place of every row becomes a symbol. Its column in the table of emissions says how likely the token at that
    place is under each state of that row. A filter reads nothing else of the table.
    """
    if rows.states is None:
        return parameters, rows.drawn
    columns = parameters.emission[rows.states[:, None, :], rows.drawn[:, :, None]]  # n L H
    places = torch.arange(rows.drawn.numel(), device=parameters.device).view_as(rows.drawn)
    return parameters._replace(emission=columns.flatten(0, 1).t()), places


def _predictions(parameters: Parameters, rows: _Rows) -> Iterator[Float[Tensor, "n E"]]:
    """The oracle's predictions over the shown tokens, position by position."""
    for step in filter_rows(*_as_one_model(parameters, rows)):
        prior = step.prior  # n H
        emitting = prior if rows.states is None else prior.scatter(1, rows.states, prior)  # by row of the emissions
        p = emitting @ parameters.emission
        yield p if rows.symbols is None else p.scatter(1, rows.symbols, p)
