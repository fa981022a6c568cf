"""Losses of baselines that only count: uniform, unigram and bigram, fitted on the training tokens.

All functions work on token ids in NumPy. `streams` is the training split as arrays: those with one dimension are texts,
those with two hold independent rows. Losses are in nats per prediction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.integer]

MOST_TOKENS = 1 << 28
"""Limit on the tokens counted: more would change no probability that matters."""
_PART_TOKENS, _LEAST_TOKENS = 1 << 22, 1 << 18
"""Tokens counted at a time."""
_TIMED_TOKENS = 1 << 20
"""Tokens that tell how fast pairs are sorted, and how often each occurs."""
_DENSE_VOCABULARY, _FILLED = 2048, 8
"""A table of pairs pays up to so many ids, and once there is a pair for every so many of its cells."""
PRIORS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


class Counts(NamedTuple):
    """Tokens, and pairs of neighbours as sorted keys `first * vocab_size + second` with their counts."""

    tokens: NDArray[np.int64]
    pair_keys: NDArray[np.int64]
    pair_counts: NDArray[np.int64]


def count(streams: Iterable[Ids], vocab_size: int, most: int = MOST_TOKENS) -> Counts:
    """Count the first `most` tokens of a corpus. Pairs are counted by sorting; up to 2,048 ids, in a table as soon as
    there are enough of them to fill it."""
    tokens = np.zeros(vocab_size, dtype=np.int64)
    keys, counts = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    dense, cells, seen, table = vocab_size <= _DENSE_VOCABULARY, vocab_size * vocab_size, 0, None
    for part, own in _parts(streams, most, min(most, _LEAST_TOKENS if dense else _PART_TOKENS)):
        tokens += np.bincount(part[:own].ravel(), minlength=vocab_size)
        pairs = part[..., :-1].ravel() * np.int64(vocab_size)
        pairs += part[..., 1:].ravel()
        seen += pairs.size
        if table is None and dense and _FILLED * seen >= cells:
            table = np.zeros(cells, dtype=np.int32)  # MOST_TOKENS fit in it
            table[keys] = counts
        if table is not None:
            np.add.at(table, pairs, np.int32(1))  # of its type: ten times as fast
            continue
        new = np.unique(pairs, return_counts=True)
        keys, inverse = np.unique(np.concatenate([keys, new[0]]), return_inverse=True)
        merged = np.concatenate([counts, new[1]])
        counts = np.bincount(inverse, weights=merged, minlength=len(keys)).astype(np.int64)
    if table is not None:
        keys = np.flatnonzero(table)
        counts = table[keys].astype(np.int64)
    return Counts(tokens, keys, counts)


def count_tokens(streams: Iterable[Ids], vocab_size: int) -> NDArray[np.int64]:
    """How often each token occurs among the first ones."""
    tokens = np.zeros(vocab_size, dtype=np.int64)
    for part, own in _parts(streams, _TIMED_TOKENS, _LEAST_TOKENS):
        tokens += np.bincount(part[:own].ravel(), minlength=vocab_size)
    return tokens


def timed_tokens(vocab_size: int) -> int:
    """The fewest tokens whose counting tells how long it takes to count more: one part, where there is a table."""
    return max(_LEAST_TOKENS, vocab_size * vocab_size) if vocab_size <= _DENSE_VOCABULARY else _TIMED_TOKENS


def _parts(streams: Iterable[Ids], most: int, size: int) -> Iterator[tuple[Ids, int]]:
    """Parts of about `size` tokens, so that memory does not grow with the corpus, and how many tokens of each to count:
    the last token of a part of a text is also the first of the next part."""
    left = most
    for stream in streams:
        width = stream.shape[1] if stream.ndim == 2 else 1
        step = max(1, size // width)
        for begin in range(0, len(stream), step):
            if left <= 0:
                return
            yield stream[begin : begin + step + (stream.ndim == 1)], step
            left -= step * width


def unigram(counts: Counts) -> NDArray[np.float64]:
    """p(b) = (n(b) + 1) / (n + V), (vocabulary,)."""
    found: NDArray[np.float64] = (counts.tokens + 1.0) / (counts.tokens.sum() + len(counts.tokens))
    return found


def best_prior(counts: Counts) -> float:
    """The one of `PRIORS` under which the corpus is most likely, with every pair predicted from all other pairs.

    It depends only on the corpus, never on the tokens that are scored.
    """
    first, second = np.divmod(counts.pair_keys, len(counts.tokens))
    chance, before = unigram(counts)[second], np.maximum(_followers(counts) - 1, 0)[first]

    def loss(prior: float) -> float:
        expected = (counts.pair_counts - 1 + prior * chance) / (before + prior)
        return float(-(counts.pair_counts * np.log(expected)).sum())

    return min(PRIORS, key=loss)


def _followers(counts: Counts) -> NDArray[np.float64]:
    """How often each token was followed by another."""
    size = len(counts.tokens)
    return np.bincount(counts.pair_keys // size, weights=counts.pair_counts, minlength=size).astype(np.float64)


def baseline_losses(previous: Ids, target: Ids, counts: Counts) -> dict[str, float]:
    """The mean loss of each baseline on predictions (n,) of a token from the one before it."""
    chance = unigram(counts)
    return {
        "uniform": float(np.log(len(counts.tokens))),
        "unigram": float(-np.log(chance[target]).mean()),
        "bigram": _bigram_loss(previous, target, counts, chance),
    }


def _bigram_loss(previous: Ids, target: Ids, counts: Counts, chance: NDArray[np.float64]) -> float:
    """p(b | a) = (n(a, b) + prior · p(b)) / (n(a) + prior), where n(a) is how often a was followed by any token."""
    prior, keys = best_prior(counts), previous.astype(np.int64) * len(chance) + target
    at = np.minimum(np.searchsorted(counts.pair_keys, keys), max(len(counts.pair_keys) - 1, 0))
    seen = np.where(counts.pair_keys[at] == keys, counts.pair_counts[at], 0) if len(counts.pair_keys) else 0
    return float(-np.log((seen + prior * chance[target]) / (_followers(counts)[previous] + prior)).mean())
