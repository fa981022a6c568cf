"""What a predictor that only counts would lose: uniform, unigram and bigram, fitted on the training tokens.

All work on token ids in NumPy; `streams` is the training split as a list of arrays, of which those with two dimensions
hold rows that have nothing to do with each other. Losses are nats a prediction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.integer]

MOST_TOKENS = 1 << 28
"""As many as are counted: more would move no probability that matters."""
PART_TOKENS, _LEAST_TOKENS = 1 << 22, 1 << 18
"""That are counted at a time."""
_DENSE_VOCABULARY = 2048
_PRIORS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


class Counts(NamedTuple):
    """Tokens, and pairs of neighbours as sorted keys `first * vocab_size + second` with their counts."""

    tokens: NDArray[np.int64]
    pair_keys: NDArray[np.int64]
    pair_counts: NDArray[np.int64]


def count(streams: Iterable[Ids], vocab_size: int, most: int = MOST_TOKENS) -> Counts:
    """Count the first `most` tokens of a corpus. Below 2,048 ids the pairs are counted in a table, above by sorting."""
    tokens = np.zeros(vocab_size, dtype=np.int64)
    keys, counts = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    dense = vocab_size <= _DENSE_VOCABULARY
    table = np.zeros(vocab_size * vocab_size if dense else 0, dtype=np.int64)
    for part, own in _parts(streams, most, max(_LEAST_TOKENS, len(table)) if dense else PART_TOKENS):
        tokens += np.bincount(part[:own].ravel(), minlength=vocab_size)
        pairs = part[..., :-1].ravel() * np.int64(vocab_size)
        pairs += part[..., 1:].ravel()
        if dense:
            table += np.bincount(pairs, minlength=len(table))
            continue
        new = np.unique(pairs, return_counts=True)
        keys, inverse = np.unique(np.concatenate([keys, new[0]]), return_inverse=True)
        merged = np.concatenate([counts, new[1]])
        counts = np.bincount(inverse, weights=merged, minlength=len(keys)).astype(np.int64)
    if dense:
        keys = np.flatnonzero(table)
        counts = table[keys]
    return Counts(tokens, keys, counts)


def _parts(streams: Iterable[Ids], most: int, size: int) -> Iterator[tuple[Ids, int]]:
    """About `size` tokens at a time, so that memory does not grow with the corpus, and how many are the part's own:
    the last token of a part of a text is the next one's first."""
    left = most
    for stream in streams:
        width = stream.shape[1] if stream.ndim == 2 else 1
        step = max(1, size // width)
        for begin in range(0, len(stream), step):
            if left <= 0:
                return
            yield stream[begin : begin + step + (stream.ndim == 1)], step
            left -= step * width


def strategy_losses(
    rows: NDArray[np.int64], counts: Counts, predicted: NDArray[np.bool_] | None = None
) -> dict[str, float]:
    """The mean loss of each strategy on the predictions of `rows`, (rows, length + 1), or on those `predicted`."""
    vocab_size = len(counts.tokens)
    previous, target = rows[:, :-1].ravel(), rows[:, 1:].ravel()
    if predicted is not None:
        previous, target = previous[predicted.ravel()], target[predicted.ravel()]
    unigram = (counts.tokens + 1.0) / (counts.tokens.sum() + vocab_size)
    return {
        "uniform": float(np.log(vocab_size)),
        "unigram": float(-np.log(unigram[target]).mean()),
        "bigram": min(_bigram_loss(previous, target, counts, unigram, prior) for prior in _PRIORS),
    }


def _bigram_loss(previous: Ids, target: Ids, counts: Counts, unigram: NDArray[np.float64], prior: float) -> float:
    """p(b | a) = (n(a, b) + prior · p(b)) / (n(a) + prior). The best of a few priors is taken on the very tokens that
    are scored, which favours the bigram: a model that is below it is below any of them."""
    followers = np.bincount(counts.pair_keys // len(unigram), weights=counts.pair_counts, minlength=len(unigram))
    keys = previous.astype(np.int64) * len(unigram) + target
    at = np.minimum(np.searchsorted(counts.pair_keys, keys), max(len(counts.pair_keys) - 1, 0))
    seen = np.where(counts.pair_keys[at] == keys, counts.pair_counts[at], 0) if len(counts.pair_keys) else 0
    return float(-np.log((seen + prior * unigram[target]) / (followers[previous] + prior)).mean())
