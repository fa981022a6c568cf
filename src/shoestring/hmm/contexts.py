"""Strategies that only count, as causal predictors: uniform, and unigram and bigram from the row itself or a corpus.

Shapes: n rows, L positions, E symbols. A strategy takes tokens (n, L), int64 below E, and yields for every position in
turn what it expects there. It reads the token of a position only after that. No probability is ever zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from shoestring.hmm.inference import Lengths, Tokens, check_tokens
from shoestring.hmm.parameters import HmmError

PRIORS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
IN_CONTEXT = ("unigram_in_context", "bigram_in_context")
"""The strategies that add `alpha` to every count."""
_TOKENS_AT_A_TIME = 2**22

Alpha = float | Mapping[str, float]
"""One for all of `IN_CONTEXT`, or one for each by its name."""


class Guess(NamedTuple):
    """What a strategy expects at one position, in float64; one row stands for all where they are the same."""

    p: Float[Tensor, "n E"]
    log_p: Float[Tensor, "n E"]
    negentropy: Float[Tensor, " n"]
    """Σ p log p."""


Guesses = Iterator[Guess]
Strategy = Callable[[Tokens], Guesses]


class CorpusCounts(NamedTuple):
    """How often each token occurs in a corpus, and each one after another; E² numbers."""

    tokens: Int[Tensor, " E"]
    pairs: Int[Tensor, "E E"]
    """[a, b]: how often b came right after a."""


def count_corpus(tokens: Tokens, symbols: int, lengths: Lengths = None) -> CorpusCounts:
    """Count training rows, on the device where they lie. Pairs are those within a row."""
    check_tokens(tokens, symbols, lengths)
    rows, positions = tokens.shape
    singles = torch.zeros(symbols, dtype=torch.int64, device=tokens.device)
    pairs = torch.zeros(symbols * symbols, dtype=torch.int64, device=tokens.device)
    sizes = torch.full((rows,), positions) if lengths is None else lengths.long()
    place = torch.arange(positions, device=tokens.device)
    for some in torch.arange(rows).split(max(1, _TOKENS_AT_A_TIME // max(1, positions))):
        first, past = int(some[0]), int(some[-1]) + 1
        x, size = tokens[first:past].long(), sizes[first:past].to(tokens.device)
        singles += torch.bincount(x[place < size[:, None]], minlength=symbols)
        follows = place[1:] < size[:, None]
        keys = x[:, :-1][follows] * symbols + x[:, 1:][follows]
        pairs += torch.bincount(keys, minlength=symbols * symbols)
    return CorpusCounts(singles, pairs.view(symbols, symbols))


def in_context(symbols: int, alpha: Alpha, device: torch.device) -> dict[str, Strategy]:
    """The strategies that know nothing but the row so far; `alpha` is added to every count.

    An alpha of 1 is the best there is if every distribution is as likely as any other (Laplace's rule).
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


def from_corpus(counts: CorpusCounts, prior: float, device: torch.device) -> dict[str, Strategy]:
    """The strategies fitted on a corpus.

    Unigram: p(b) = (n(b) + 1) / (n + E). Bigram: p(b | a) = (n(a, b) + prior · p(b)) / (n(a) + prior), where n(a) is
    how often anything came after a; the first token of a row is predicted by the unigram.
    """
    if not 0 < prior < float("inf"):
        raise HmmError(f"bigram_prior = {prior}: must be above 0, or a pair not in the corpus would be impossible")
    unigram = _unigram(counts)
    pairs = counts.pairs.double()
    bigram = (pairs + prior * unigram) / (pairs.sum(1, keepdim=True) + prior)
    first, later = _guess(unigram[None].to(device)), _guess(bigram.to(device))
    return {
        "unigram_corpus": partial(_always, guess=first),
        "bigram_corpus": partial(_bigram_corpus, first=first, later=later),
    }


def best_prior(counts: CorpusCounts) -> float:
    """That of `PRIORS` under which the corpus is most likely, every pair predicted from the counts of all the others.

    So it is a function of the corpus alone: no prediction depends on the tokens that are scored.
    """
    unigram, pairs = _unigram(counts), counts.pairs.double()
    seen = pairs > 0
    others = torch.where(seen, pairs - 1, 0)
    followers = (pairs.sum(1, keepdim=True) - 1).clamp_min(0)

    def loss(prior: float) -> float:
        chance = (others + prior * unigram) / (followers + prior)
        return float(-(pairs * torch.where(seen, chance, 1).log()).sum())

    return min(PRIORS, key=loss)


def _unigram(counts: CorpusCounts) -> Float[Tensor, " E"]:
    return (counts.tokens.double() + 1) / (counts.tokens.sum() + len(counts.tokens))


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
        logs[here] = weights[here].log()  # of all the others it has not changed


def _bigram_in_context(tokens: Tokens, uniform: Guess, alpha: float) -> Guesses:
    """Takes n · min(L, E) · E numbers: a row of counts for every token that can have come before another."""
    rows, positions = tokens.shape
    symbols = uniform.p.shape[1]
    each = torch.arange(rows, device=tokens.device)
    # a row holds no more different tokens than it is long, so with a large alphabet a token is known by its first place
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
    """Where the token of each position stood for the first time in its row."""
    rows, positions = tokens.shape
    places = torch.arange(positions, device=tokens.device).expand(rows, -1)
    first = torch.full((rows, symbols), positions, device=tokens.device)
    return first.scatter_reduce_(1, tokens, places, "amin").gather(1, tokens)


def _bigram_corpus(tokens: Tokens, first: Guess, later: Guess) -> Guesses:
    yield first
    for t in range(1, tokens.shape[1]):
        before = tokens[:, t - 1]
        yield Guess(later.p[before], later.log_p[before], later.negentropy[before])
