"""Counting baselines against dictionaries and plain loops."""

import math
from collections import Counter
from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoestring.baselines import ngram
from shoestring.baselines.ngram import PRIORS, Counts, baseline_losses, best_prior, count, unigram

SMALL, LARGE = 7, 3000

checked = settings(max_examples=30, deadline=None)
streams_of_ids = st.lists(st.lists(st.integers(0, SMALL - 1), min_size=1, max_size=30), min_size=1, max_size=4)


def expected_losses(rows: list[list[int]], streams: list[list[int]], vocab_size: int) -> dict[str, float]:
    tokens = Counter(token for stream in streams for token in stream)
    pairs = Counter(pair for stream in streams for pair in pairwise(stream))
    firsts = Counter(token for stream in streams for token in stream[:-1])
    total = sum(tokens.values())

    def single(token: int) -> float:
        return (tokens[token] + 1) / (total + vocab_size)

    def left_out(prior: float) -> float:
        """Of the corpus itself, every pair predicted from all the others."""
        chances = [(pairs[a, b] - 1 + prior * single(b)) / (firsts[a] - 1 + prior) for a, b in pairs.elements()]
        return math.fsum(-math.log(chance) for chance in chances)

    scored, prior = [pair for row in rows for pair in pairwise(row)], min(PRIORS, key=left_out)
    nats = [-math.log((pairs[a, b] + prior * single(b)) / (firsts[a] + prior)) for a, b in scored]
    return {
        "uniform": math.log(vocab_size),
        "unigram": sum(-math.log(single(b)) for _, b in scored) / len(scored),
        "bigram": sum(nats) / len(nats),
    }


def losses_of(rows: np.ndarray, counts: Counts) -> dict[str, float]:
    return baseline_losses(rows[:, :-1].ravel(), rows[:, 1:].ravel(), counts)


def arrays(streams: list[list[int]], dtype: str = "uint16") -> list[np.ndarray]:
    return [np.array(stream, dtype=dtype) for stream in streams]


@checked
@given(streams_of_ids, st.lists(st.lists(st.integers(0, SMALL - 1), min_size=5, max_size=5), min_size=1, max_size=5))
@pytest.mark.parametrize("vocab_size", [SMALL, 2048, LARGE])
def test_losses_are_those_of_dictionaries(vocab_size: int, streams: list[list[int]], rows: list[list[int]]) -> None:
    found = losses_of(np.array(rows), count(arrays(streams), vocab_size))
    assert found == pytest.approx(expected_losses(rows, streams, vocab_size), rel=1e-9)


@checked
@given(streams_of_ids, st.sampled_from(["uint8", "uint16", "uint32", "int64"]))
def test_a_table_and_sorting_count_alike(streams: list[list[int]], dtype: str) -> None:
    expected = Counter(pair for stream in streams for pair in pairwise(stream))
    for vocab_size in (SMALL, 2048, 2049, 70_000):
        counts = count(arrays(streams, dtype), vocab_size)
        pairs = {divmod(int(key), vocab_size): int(n) for key, n in zip(counts.pair_keys, counts.pair_counts)}
        assert pairs == expected
        assert (np.diff(counts.pair_keys) > 0).all(), "sorted, each once"
        assert len(counts.tokens) == vocab_size
        assert counts.tokens[:SMALL].tolist() == [sum(s.count(i) for s in streams) for i in range(SMALL)]
        assert counts.tokens.sum() == sum(map(len, streams))


@checked
@given(streams_of_ids, st.integers(1, 7), st.sampled_from([1, 8, 10**6]))
def test_a_table_takes_over_from_sorting_wherever_it_does(streams: list[list[int]], part: int, filled: int) -> None:
    """From parts of some tokens on; or from the first, or never."""
    with patch.multiple(ngram, _LEAST_TOKENS=part, _FILLED=filled):
        found = count(arrays(streams), SMALL)
    expected = Counter(first * SMALL + second for stream in streams for first, second in pairwise(stream))
    assert dict(zip(found.pair_keys.tolist(), found.pair_counts.tolist(), strict=True)) == expected
    assert (np.diff(found.pair_keys) > 0).all() and found.pair_counts.dtype == np.int64


def test_large_ids_are_counted_too() -> None:
    ids = np.random.default_rng(0).integers(0, 65_536, 500)
    streams = [ids.tolist() * 2, ids[::-1].tolist()]
    rows = [ids[:20].tolist(), ids[40:60].tolist()]
    found = losses_of(np.array(rows), count(arrays(streams), 65_536))
    assert found == pytest.approx(expected_losses(rows, streams, 65_536), rel=1e-9)


def test_no_pair_is_counted_over_the_end_of_a_stream() -> None:
    counts = count(arrays([[1, 2], [3, 4]]), SMALL)
    assert counts.pair_keys.tolist() == [1 * SMALL + 2, 3 * SMALL + 4]


@pytest.mark.parametrize("vocab_size", [SMALL, LARGE])
@pytest.mark.parametrize("streams", [[[3]], [[3], [3], [1]]])
def test_streams_of_one_token_have_no_pairs(streams: list[list[int]], vocab_size: int) -> None:
    counts = count(arrays(streams), vocab_size)
    assert len(counts.pair_keys) == len(counts.pair_counts) == 0
    rows = [[1, 3, 3, 0]]
    found = losses_of(np.array(rows), counts)
    assert found == pytest.approx(expected_losses(rows, streams, vocab_size), rel=1e-9)
    assert found["bigram"] == pytest.approx(found["unigram"]), "with no pairs nothing is known but the tokens"


@pytest.mark.parametrize("vocab_size", [SMALL, LARGE])
def test_nothing_counted_is_uniform(vocab_size: int) -> None:
    for streams in ([], arrays([[]])):
        found = losses_of(np.array([[0, 1, 2]]), count(streams, vocab_size))
        assert found == pytest.approx(dict.fromkeys(("uniform", "unigram", "bigram"), math.log(vocab_size)))


@checked
@given(streams_of_ids)
def test_the_unigram_is_every_count_and_one_more(streams: list[list[int]]) -> None:
    total = sum(map(len, streams))
    expected = [(sum(s.count(i) for s in streams) + 1) / (total + SMALL) for i in range(SMALL)]
    assert unigram(count(arrays(streams), SMALL)).tolist() == pytest.approx(expected)


def test_the_prior_does_not_depend_on_what_is_scored() -> None:
    """Of a regular corpus the smallest is best, though rows that break its rules would be better off with another."""
    counts = count(arrays([[0, 1, 2, 3, 4, 5] * 40]), SMALL)
    assert best_prior(counts) == min(PRIORS)
    rows = np.array([[5, 4, 3, 2, 1, 0]])
    chance = unigram(counts)
    assert losses_of(rows, counts)["bigram"] == pytest.approx(
        -np.log([min(PRIORS) * chance[b] / (39 + (a < 5) + min(PRIORS)) for a, b in pairwise(rows[0])]).mean()
    )


def test_tokens_never_seen_cost_much_but_not_everything() -> None:
    found = losses_of(np.array([[5, 6, 5, 6]]), count(arrays([[0, 1] * 500]), SMALL))
    assert all(math.isfinite(loss) for loss in found.values())
    assert found["unigram"] > found["uniform"]


def test_a_regular_stream_is_learned_by_pairs() -> None:
    stream = [0, 1, 2, 3, 4, 5] * 400
    found = losses_of(np.array([stream[:50], stream[3:53]]), count(arrays([stream]), SMALL))
    assert found["bigram"] < 0.01 < found["unigram"] < found["uniform"]


@pytest.mark.parametrize("vocab_size", [20, 3000])
def test_no_more_is_counted_than_was_asked_for(vocab_size: int) -> None:
    """With a table of pairs, and by sorting; the last token is counted with the one that follows it."""
    stream = np.arange(100) % 20
    found = count([stream], vocab_size, most=10)
    assert found.tokens[:12].tolist() == [1] * 10 + [0] * 2
    assert (found.pair_keys % vocab_size).tolist() == list(range(1, 11)) and found.pair_counts.sum() == 10
    assert count([stream], vocab_size).tokens.sum() == 100
