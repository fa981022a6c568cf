"""Baselines that only count, as causal predictors: uniform, and unigram and bigram from the row itself or a corpus.

Shapes: n rows, L positions, E symbols. A baseline takes tokens (n, L), int64 below E, and yields its prediction for
each position in turn, before it reads the token there. No probability is ever zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from shoestring.baselines.ngram import Counts, best_prior, unigram
from shoestring.hmm.inference import Tokens
from shoestring.hmm.parameters import HmmError, Parameters

IN_CONTEXT = ("unigram_in_context", "bigram_in_context")
"""The baselines that add `alpha` to every count."""

Alpha = float | Mapping[str, float]
"""One value for all of `IN_CONTEXT`, or one for each name."""


class Guess(NamedTuple):
    """The prediction of a baseline at one position, in float64; a single row where all rows are the same."""

    p: Float[Tensor, "n E"]
    log_p: Float[Tensor, "n E"]
    negentropy: Float[Tensor, " n"]
    """Σ p log p."""


Guesses = Iterator[Guess]
Baseline = Callable[[Tokens], Guesses]


def in_context(symbols: int, alpha: Alpha, device: torch.device) -> dict[str, Baseline]:
    """The baselines that know only the row so far; `alpha` is added to every count.

    An alpha of 1 is optimal if all distributions are equally likely (Laplace's rule).
    """
    unigram, bigram = (alpha[name] if isinstance(alpha, Mapping) else alpha for name in IN_CONTEXT)
    for value in (unigram, bigram):
        if not 0 < value < float("inf"):
            raise HmmError(f"alpha = {value}: must be above 0, or a token not yet seen would be impossible")
    uniform = _guess(torch.full((1, symbols), 1 / symbols, dtype=torch.float64, device=device))
    return {
        "uniform": partial(_always, guess=uniform),
        "unigram_in_context": partial(_unigram_in_context, symbols=symbols, alpha=unigram),
        "bigram_in_context": partial(_bigram_in_context, uniform=uniform, alpha=bigram),
    }


def from_corpus(counts: Counts, like: Parameters, prior: float | None = None) -> dict[str, Baseline]:
    """The baselines of `baselines.ngram`, fitted on a corpus; the unigram predicts the first token of a row.

    They are for rows of the model `like`, on its device. `prior` is that of the bigram; by default, the one that suits
    the corpus best. The bigram has a table of E² numbers.
    """
    if len(counts.tokens) != like.symbols:
        raise HmmError(f"the corpus was counted over {len(counts.tokens)} symbols, the model has {like.symbols}")
    prior = best_prior(counts) if prior is None else prior
    if not 0 < prior < float("inf"):
        raise HmmError(f"bigram_prior = {prior}: must be above 0, or a pair not in the corpus would be impossible")
    chance = torch.from_numpy(unigram(counts))
    pairs = torch.zeros(len(chance) ** 2, dtype=torch.float64)
    pairs[torch.from_numpy(counts.pair_keys)] = torch.from_numpy(counts.pair_counts).double()
    pairs = pairs.view(len(chance), -1)
    bigram = (pairs + prior * chance) / (pairs.sum(1, keepdim=True) + prior)
    first, later = _guess(chance[None].to(like.device)), _guess(bigram.to(like.device))
    return {
        "unigram_corpus": partial(_always, guess=first),
        "bigram_corpus": partial(_bigram_corpus, first=first, later=later),
    }


def _guess(p: Float[Tensor, "n E"]) -> Guess:
    log_p = p.log()
    return Guess(p, log_p, (p * log_p).sum(1))


def _always(tokens: Tokens, guess: Guess) -> Guesses:
    for _ in range(tokens.shape[1]):
        yield guess


def _unigram_in_context(tokens: Tokens, symbols: int, alpha: float) -> Guesses:
    rows, positions = tokens.shape
    each = torch.arange(rows, device=tokens.device)
    weights = torch.full((rows, symbols), alpha, dtype=torch.float64, device=tokens.device)
    logs = weights.log()
    for t in range(positions):
        total = t + alpha * symbols
        p, log_p = weights / total, logs - math.log(total)
        yield Guess(p, log_p, (p * log_p).sum(1))
        here = (each, tokens[:, t])
        weights[here] += 1
        logs[here] = weights[here].log()  # the others have not changed


def _bigram_in_context(tokens: Tokens, uniform: Guess, alpha: float) -> Guesses:
    """Stores n · min(L, E) · E numbers: a row of counts for every token that may precede another."""
    rows, positions = tokens.shape
    symbols = uniform.p.shape[1]
    each = torch.arange(rows, device=tokens.device)
    # a row has at most L different tokens, so with a large alphabet a token is identified by its first place
    slots = tokens if symbols <= positions else _first_places(tokens, symbols)
    seen = torch.zeros(rows, min(positions, symbols), symbols, device=tokens.device, dtype=torch.int32)
    log_weight = (torch.arange(positions, dtype=torch.float64, device=tokens.device) + alpha).log()  # of a count
    yield uniform
    for t in range(1, positions):
        before = slots[:, t - 1]
        counts = seen[each, before]
        weights = counts.double() + alpha
        total = weights.sum(1, keepdim=True)
        p, log_p = weights / total, log_weight[counts] - total.log()
        yield Guess(p, log_p, (p * log_p).sum(1))
        seen[each, before, tokens[:, t]] += 1


def _first_places(tokens: Tokens, symbols: int) -> Int[Tensor, "n L"]:
    """The first place in its row of the token at each position."""
    rows, positions = tokens.shape
    places = torch.arange(positions, device=tokens.device).expand(rows, -1)
    first = torch.full((rows, symbols), positions, device=tokens.device)
    return first.scatter_reduce_(1, tokens, places, "amin").gather(1, tokens)


def _bigram_corpus(tokens: Tokens, first: Guess, later: Guess) -> Guesses:
    yield first
    for t in range(1, tokens.shape[1]):
        before = tokens[:, t - 1]
        yield Guess(later.p[before], later.log_p[before], later.negentropy[before])
