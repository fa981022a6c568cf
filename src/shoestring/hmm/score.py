"""How well a model predicts, causally, beside strategies that only count, and how far it is from each of them.

Shapes: N sequences, n of them in a chunk, L positions, E symbols, K quantities that are summed by position.

Every number is of p(token | the tokens before it in its row, and that there is another): the filter, never the
posterior, which has seen the answer. Where a row ends is not scored. Losses and divergences are in nats a token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from shoestring.core.records import Record
from shoestring.hmm.contexts import CorpusCounts, Strategy, best_prior, from_corpus, in_context
from shoestring.hmm.inference import Lengths, Tokens, check_tokens, predict
from shoestring.hmm.parameters import HmmError, Parameters

LIMIT_BYTES = 2**28

ByPosition = tuple[float | None, ...]
"""One value for each position; None where no scored row reaches it."""


@dataclass(frozen=True, kw_only=True)
class Losses:
    """What a predictor loses, in nats a token; None where no sequence was scored."""

    loss: float | None
    """Mean over all tokens."""
    perplexity: float | None
    """exp(loss)."""
    last_token_loss: float | None
    """Mean over the sequences of the loss of their last token."""
    loss_by_position: ByPosition


@dataclass(frozen=True, kw_only=True)
class StrategyLosses(Losses):
    """A strategy beside the model, on the same tokens.

    Divergences are means over all positions of KL(p || q) = Σ p log(p / q) between the two distributions of the next
    token; None also where they are infinite, which KL(strategy || model) is if the model rules a token out.
    """

    kl_of_model: float | None
    """KL(model || strategy): small where the strategy expects all that the model does."""
    kl_of_model_by_position: ByPosition
    kl_of_strategy: float | None
    """KL(strategy || model)."""
    kl_of_strategy_by_position: ByPosition


@dataclass(frozen=True, kw_only=True)
class Scores(Record, Losses):
    """The model's losses, and by strategy what it would lose.

    Sequences of probability zero under the model are counted in `impossible`, and left out of all other numbers, those
    of the strategies too: the true mean loss of a model with any is infinite.
    """

    SCHEMA: ClassVar[str] = "shoestring.hmm_scores/1"

    sequences: int
    """Those scored."""
    tokens: int
    impossible: int
    alpha: float
    """What the strategies in context add to every count."""
    bigram_prior: float | None
    """The weight of the unigram in the bigram of the corpus; None where no corpus was given."""
    strategies: dict[str, StrategyLosses]
    """"uniform", "unigram_in_context", "bigram_in_context", and with a corpus "unigram_corpus", "bigram_corpus"."""


def score(
    parameters: Parameters,
    tokens: Tokens,
    lengths: Lengths = None,
    corpus_counts: CorpusCounts | None = None,
    alpha: float = 1.0,
    bigram_prior: float | None = None,
    limit_bytes: int = LIMIT_BYTES,
) -> Scores:
    """Score rows of tokens, on the parameters' device and in their type, added up in float64.

    `corpus_counts` are those of the training rows (`contexts.count_corpus`). `bigram_prior` defaults to the best of a
    few for that corpus. As many rows as take about `limit_bytes` are worked on together; tokens may lie on another
    device. In float32, rows that underflow are scored again in float64, so that `impossible` means what it says.
    """
    check_tokens(tokens, parameters.symbols, lengths)
    rows, positions = tokens.shape
    if not rows:
        raise HmmError("there are no sequences to score")
    strategies = in_context(parameters.symbols, alpha, parameters.device)
    if corpus_counts is not None:
        if tuple(corpus_counts.pairs.shape) != (parameters.symbols, parameters.symbols):
            raise HmmError(f"the corpus was counted over {len(corpus_counts.tokens)} symbols, "
                           f"the model has {parameters.symbols}")  # fmt: skip
        bigram_prior = best_prior(corpus_counts) if bigram_prior is None else bigram_prior
        strategies |= from_corpus(corpus_counts, bigram_prior, parameters.device)
    elif bigram_prior is not None:
        raise HmmError(f"bigram_prior = {bigram_prior}: it needs corpus_counts")
    sizes = torch.full((rows,), positions) if lengths is None else lengths.cpu().long()
    sums = _no_sums(parameters.device, 1 + 3 * len(strategies), int(sizes.max()))
    impossible = 0
    # rows of about the same length together, so that little is spent beyond their ends
    order = torch.arange(rows) if lengths is None else sizes.argsort(descending=True, stable=True)
    for picked in order.split(_rows_within(limit_bytes, parameters, positions)):
        doubtful = picked[_add_rows(sums, parameters, tokens, sizes, picked, strategies)]
        if len(doubtful) and parameters.dtype != torch.float64:
            exact = parameters.to(dtype=torch.float64)
            # half as many rows, because a number takes twice the bytes
            parts = doubtful.split(-(-len(picked) // 2))
            doubtful = torch.cat([some[_add_rows(sums, exact, tokens, sizes, some, strategies)] for some in parts])
        impossible += len(doubtful)
    return _scores(sums, list(strategies), rows - impossible, impossible, alpha, bigram_prior)


class _Sums(NamedTuple):
    """Added up in place. The quantities are the model's loss, then by strategy its loss and the two divergences."""

    values: Float[Tensor, "K L"]
    last: Float[Tensor, " K"]
    """Of the last tokens of the rows alone."""
    tokens: Int[Tensor, " L"]


def _no_sums(device: torch.device, quantities: int, positions: int) -> _Sums:
    values = torch.zeros(quantities, positions, dtype=torch.float64, device=device)
    return _Sums(values, torch.zeros_like(values[:, 0]), torch.zeros_like(values[0], dtype=torch.int64))


def _rows_within(limit_bytes: int, parameters: Parameters, positions: int) -> int:
    symbols, states = parameters.symbols, parameters.states
    predictions = positions * symbols * parameters.emission.element_size()
    pairs = min(positions, symbols) * symbols * 4
    temporaries = 8 * (12 * symbols + 6 * states)
    return max(1, limit_bytes // (predictions + pairs + temporaries))


def _add_rows(
    sums: _Sums,
    parameters: Parameters,
    tokens: Tensor,
    sizes: Tensor,
    picked: Tensor,
    strategies: Mapping[str, Strategy],
) -> Bool[Tensor, " n"]:
    """Add the picked rows to `sums`, but for those that are impossible in the parameters' type, which are returned."""
    device = parameters.device
    longest = int(sizes[picked].max())
    size = sizes[picked].to(device)
    x = tokens[picked.to(tokens.device), :longest].to(device).long()  # n L
    place = torch.arange(longest, device=device)
    inside = place < size[:, None]  # n L
    x.masked_fill_(~inside, 0)
    predicted = predict(parameters, x, size)
    chosen = predicted.probabilities.gather(2, x[:, :, None])[:, :, 0].double()  # n L
    ruled_out = (chosen < torch.finfo(parameters.dtype).tiny) & inside
    impossible = predicted.impossible | ruled_out.any(1)
    counted = inside & ~impossible[:, None]
    final = counted & (place == size[:, None] - 1)
    running = [strategy(x) for strategy in strategies.values()]
    for t in range(longest):
        p = predicted.probabilities[:, t].double()  # n E
        log_p = p.log()
        negentropy = (p * log_p.clamp_min(-1e3)).sum(1)  # 0 log 0 is 0, and the log of any other p is above -750
        values = [-chosen[:, t].log()]
        for guesses in running:
            guess = next(guesses)
            values.append(-guess.log_p.expand_as(p).gather(1, x[:, t : t + 1])[:, 0])
            values.append(negentropy - _dots(p, guess.log_p))
            values.append(guess.negentropy - _dots(log_p, guess.p))
        here = torch.stack(values)  # K n
        sums.values[:, t] += torch.where(counted[:, t], here, 0).sum(1)
        sums.last.add_(torch.where(final[:, t], here, 0).sum(1))
    sums.tokens[:longest] += counted.sum(0)
    return impossible.cpu()


def _dots(a: Float[Tensor, "n E"], b: Float[Tensor, "m E"]) -> Float[Tensor, " n"]:
    """Row by row, where b has one for each of a's, or one for all."""
    return a @ b[0] if len(b) == 1 else (a * b).sum(1)


def _scores(
    sums: _Sums, names: list[str], sequences: int, impossible: int, alpha: float, bigram_prior: float | None
) -> Scores:
    tokens = sums.tokens.tolist()
    total = sum(tokens)
    values, last = sums.values.tolist(), sums.last.tolist()

    def divergence(quantity: int) -> tuple[float | None, ByPosition]:
        # rounding can put a mean that is zero a hair below it
        low = [max(0.0, value) for value in values[quantity]]
        return _mean(math.fsum(low), total), tuple(map(_mean, low, tokens))

    def losses(quantity: int) -> Losses:
        loss = _mean(math.fsum(values[quantity]), total)
        return Losses(
            loss=loss,
            perplexity=None if loss is None else math.exp(loss),
            last_token_loss=_mean(last[quantity], sequences),
            loss_by_position=tuple(map(_mean, values[quantity], tokens)),
        )

    strategies = {}
    for i, name in enumerate(names):
        of_model, of_model_by_position = divergence(2 + 3 * i)
        of_strategy, of_strategy_by_position = divergence(3 + 3 * i)
        strategies[name] = StrategyLosses(
            **vars(losses(1 + 3 * i)),
            kl_of_model=of_model,
            kl_of_model_by_position=of_model_by_position,
            kl_of_strategy=of_strategy,
            kl_of_strategy_by_position=of_strategy_by_position,
        )
    return Scores(
        **vars(losses(0)),
        sequences=sequences,
        tokens=total,
        impossible=impossible,
        alpha=alpha,
        bigram_prior=bigram_prior,
        strategies=strategies,
    )


def _mean(total: float, count: int) -> float | None:
    return total / count if count and math.isfinite(total) else None
