"""Counting strategies against dictionaries and plain loops."""

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoestring.evaluate.strategies import count, strategy_losses

PRIORS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
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

    scored = [pair for row in rows for pair in pairwise(row)]
    bigram = []
    for prior in PRIORS:
        nats = [-math.log((pairs[a, b] + prior * single(b)) / (firsts[a] + prior)) for a, b in scored]
        bigram.append(sum(nats) / len(nats))
    return {
        "uniform": math.log(vocab_size),
        "unigram": sum(-math.log(single(b)) for _, b in scored) / len(scored),
        "bigram": min(bigram),
    }


def arrays(streams: list[list[int]], dtype: str = "uint16") -> list[np.ndarray]:
    return [np.array(stream, dtype=dtype) for stream in streams]


@checked
@given(streams_of_ids, st.lists(st.lists(st.integers(0, SMALL - 1), min_size=5, max_size=5), min_size=1, max_size=5))
@pytest.mark.parametrize("vocab_size", [SMALL, 2048, LARGE])
def test_losses_are_those_of_dictionaries(vocab_size: int, streams: list[list[int]], rows: list[list[int]]) -> None:
    found = strategy_losses(np.array(rows), count(arrays(streams), vocab_size))
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


def test_large_ids_are_counted_too() -> None:
    ids = np.random.default_rng(0).integers(0, 65_536, 500)
    streams = [ids.tolist() * 2, ids[::-1].tolist()]
    rows = [ids[:20].tolist(), ids[40:60].tolist()]
    found = strategy_losses(np.array(rows), count(arrays(streams), 65_536))
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
    found = strategy_losses(np.array(rows), counts)
    assert found == pytest.approx(expected_losses(rows, streams, vocab_size), rel=1e-9)
    assert found["bigram"] == pytest.approx(found["unigram"]), "with no pairs nothing is known but the tokens"


@pytest.mark.parametrize("vocab_size", [SMALL, LARGE])
def test_nothing_counted_is_uniform(vocab_size: int) -> None:
    for streams in ([], arrays([[]])):
        found = strategy_losses(np.array([[0, 1, 2]]), count(streams, vocab_size))
        assert found == pytest.approx(dict.fromkeys(("uniform", "unigram", "bigram"), math.log(vocab_size)))


def test_tokens_never_seen_cost_much_but_not_everything() -> None:
    found = strategy_losses(np.array([[5, 6, 5, 6]]), count(arrays([[0, 1] * 500]), SMALL))
    assert all(math.isfinite(loss) for loss in found.values())
    assert found["unigram"] > found["uniform"]


def test_a_regular_stream_is_learned_by_pairs() -> None:
    stream = [0, 1, 2, 3, 4, 5] * 400
    found = strategy_losses(np.array([stream[:50], stream[3:53]]), count(arrays([stream]), SMALL))
    assert found["bigram"] < 0.01 < found["unigram"] < found["uniform"]
