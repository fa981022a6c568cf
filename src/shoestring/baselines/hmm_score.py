"""How well a model predicts, causally, beside baselines that only count, and its divergence from each of them.

Shapes: N sequences, n of them in a chunk, L positions, E symbols, K quantities that are summed by position.

Every number is based on p(token | the tokens before it in its row, and that there is another): on the filter, never on
the posterior, which has seen the answer. The end of a row is not scored. Losses and divergences are in nats per token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from shoestring.baselines.in_context import Baseline, from_corpus, in_context
from shoestring.baselines.ngram import Counts, best_prior
from shoestring.baselines.standard_error import mean_error
from shoestring.core.schema import Record
from shoestring.hmm.inference import Lengths, Tokens, check_tokens, predict
from shoestring.hmm.parameters import HmmError, Parameters

LIMIT_BYTES = 2**28

ByPosition = tuple[float | None, ...]
"""One value for each position; None where no scored row reaches it."""


@dataclass(frozen=True, kw_only=True)
class Losses:
    """The losses of a predictor in nats per token; None where no sequence was scored."""

    loss: float | None
    """Mean over all tokens."""
    perplexity: float | None
    """exp(loss)."""
    last_token_loss: float | None
    """Mean loss of the last token of each sequence."""
    loss_by_position: ByPosition


@dataclass(frozen=True, kw_only=True)
class BaselineLosses(Losses):
    """A baseline beside the model, on the same tokens.

    Divergences are means over all positions of KL(p || q) = Σ p log(p / q) between the two distributions of the next
    token. They are None also where they are infinite, as KL(baseline || model) is if the model rules out a token.
    """

    kl_of_model: float | None
    """KL(model || baseline): small where the baseline expects everything that the model expects."""
    kl_of_model_by_position: ByPosition
    kl_of_baseline: float | None
    """KL(baseline || model)."""
    kl_of_baseline_by_position: ByPosition


@dataclass(frozen=True, kw_only=True)
class Scores(Record, Losses):
    """The losses of the model and of each baseline.

    Sequences of probability zero under the model are counted in `impossible` and left out of all other numbers, also
    of the baselines'. With any of them, the true mean loss of the model is infinite.
    """

    SCHEMA: ClassVar[str] = "shoestring.hmm_scores/2"

    sequences: int
    """Scored sequences."""
    tokens: int
    impossible: int
    alpha: float
    """What the baselines in context add to every count."""
    bigram_prior: float | None
    """The weight of the unigram in the bigram of the corpus; None where no corpus was given."""
    baselines: dict[str, BaselineLosses]
    """"uniform", "unigram_in_context", "bigram_in_context", and with a corpus "unigram_corpus", "bigram_corpus"."""
    loss_error: float | None = None
    """Standard error of the loss, for sequences drawn at random; None for fewer than two."""
    nats_by_row: tuple[float, ...] = ()
    """The sum of the losses of each sequence; empty where one is impossible."""
    tokens_by_row: tuple[int, ...] = ()


def score(
    parameters: Parameters,
    tokens: Tokens,
    lengths: Lengths = None,
    corpus_counts: Counts | None = None,
    alpha: float = 1.0,
    bigram_prior: float | None = None,
    limit_bytes: int = LIMIT_BYTES,
) -> Scores:
    """Score rows of tokens, on the parameters' device and in their type, added up in float64.

    `corpus_counts` are those of the training rows (`baselines.ngram.count`). `bigram_prior` defaults to the best of a
    few for that corpus. Rows are scored in chunks of about `limit_bytes`; tokens may lie on another device. In float32,
    rows that underflow are scored again in float64, so that `impossible` does not depend on the type's range.
    """
    return Scorer(parameters, corpus_counts, alpha, bigram_prior)(parameters, tokens, lengths, limit_bytes)


class Scorer:
    """The baselines, made once for many scorings; arguments as for `score`.

    `like` is a model of the same alphabet, on the device of all that are scored.
    """

    def __init__(
        self,
        like: Parameters,
        corpus_counts: Counts | None = None,
        alpha: float = 1.0,
        bigram_prior: float | None = None,
    ):
        self._baselines, self._alpha = in_context(like.symbols, alpha, like.device), alpha
        if corpus_counts is not None:
            bigram_prior = best_prior(corpus_counts) if bigram_prior is None else bigram_prior
            self._baselines |= from_corpus(corpus_counts, like, bigram_prior)
        elif bigram_prior is not None:
            raise HmmError(f"bigram_prior = {bigram_prior}: it needs corpus_counts")
        self._prior = bigram_prior

    def __call__(
        self, parameters: Parameters, tokens: Tokens, lengths: Lengths = None, limit_bytes: int = LIMIT_BYTES
    ) -> Scores:
        check_tokens(tokens, parameters.symbols, lengths)
        rows, positions = tokens.shape
        if not rows:
            raise HmmError("there are no sequences to score")
        baselines = self._baselines
        sizes = torch.full((rows,), positions) if lengths is None else lengths.cpu().long()
        values = torch.zeros(1 + 3 * len(baselines), int(sizes.max()), dtype=torch.float64, device=parameters.device)
        sums = _Sums(
            values,
            torch.zeros_like(values[:, 0]),
            torch.zeros_like(values[0], dtype=torch.int64),
            values.new_zeros(2, rows),
        )
        impossible = 0
        # rows of similar length together, so that little work is spent beyond their ends
        order = torch.arange(rows) if lengths is None else sizes.argsort(descending=True, stable=True)
        for picked in order.split(_rows_within(limit_bytes, parameters, positions)):
            doubtful = picked[_add_rows(sums, parameters, tokens, sizes, picked, baselines)]
            if len(doubtful) and parameters.dtype != torch.float64:
                exact = parameters.to(dtype=torch.float64)
                # half as many rows, because a float64 takes twice the bytes
                parts = doubtful.split(-(-len(picked) // 2))
                doubtful = torch.cat([some[_add_rows(sums, exact, tokens, sizes, some, baselines)] for some in parts])
            impossible += len(doubtful)
        return _scores(sums, list(baselines), rows - impossible, impossible, self._alpha, self._prior)


class _Sums(NamedTuple):
    """Sums in place of the model's loss, and of the loss and both divergences of each baseline."""

    values: Float[Tensor, "K L"]
    last: Float[Tensor, " K"]
    """Of only the last token of each row."""
    tokens: Int[Tensor, " L"]
    rows: Float[Tensor, "2 N"]
    """The model's loss of each row, and its tokens; zeros for one that is impossible."""


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
    baselines: Mapping[str, Baseline],
) -> Bool[Tensor, " n"]:
    """Add the picked rows to `sums`, and return which of them are impossible in the parameters' type and left out."""
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
    running = [baseline(x) for baseline in baselines.values()]
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
    nats = torch.where(counted, -chosen.log(), 0).sum(1)
    sums.rows[:, picked.to(device)] = torch.stack([nats, counted.sum(1).double()])
    return impossible.cpu()


def _dots(a: Float[Tensor, "n E"], b: Float[Tensor, "m E"]) -> Float[Tensor, " n"]:
    """Dot products row by row; b has a row for each of a's, or one for all."""
    return a @ b[0] if len(b) == 1 else (a * b).sum(1)


def _scores(
    sums: _Sums, names: list[str], sequences: int, impossible: int, alpha: float, bigram_prior: float | None
) -> Scores:
    tokens = sums.tokens.tolist()
    total = sum(tokens)
    values, last = sums.values.tolist(), sums.last.tolist()

    def divergence(quantity: int) -> tuple[float | None, ByPosition]:
        # rounding can make a mean of zero slightly negative
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

    baselines = {}
    for i, name in enumerate(names):
        of_model, of_model_by_position = divergence(2 + 3 * i)
        of_baseline, of_baseline_by_position = divergence(3 + 3 * i)
        baselines[name] = BaselineLosses(
            **vars(losses(1 + 3 * i)),
            kl_of_model=of_model,
            kl_of_model_by_position=of_model_by_position,
            kl_of_baseline=of_baseline,
            kl_of_baseline_by_position=of_baseline_by_position,
        )
    nats, counts = sums.rows[0].cpu().numpy(), sums.rows[1].long().cpu().numpy()
    return Scores(
        **vars(losses(0)),
        loss_error=mean_error(nats, counts),
        nats_by_row=() if impossible else tuple(nats.tolist()),
        tokens_by_row=() if impossible else tuple(counts.tolist()),
        sequences=sequences,
        tokens=total,
        impossible=impossible,
        alpha=alpha,
        bigram_prior=bigram_prior,
        baselines=baselines,
    )


def _mean(total: float, count: int) -> float | None:
    return total / count if count and math.isfinite(total) else None
