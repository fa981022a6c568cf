"""Rows of random Markov chains: those of a scalar implementation, byte for byte, with the chains' probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from shoestring.core.errors import DataError
from shoestring.streams import markov
from shoestring.streams.markov import Chains, MarkovSettings, MarkovStream, oracle_log_probs, start_states, stationary

UNIT = 2**32
TOKENS, SYMBOLS, SHAPE, MOVES, START = 0, 1, 7, 8, 9


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 of Salmon et al. (2011), figure 2 and table 2, one block."""
    (left0, right0, left1, right1), (k0, k1) = counter, key
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * left0, UNIT)
        high1, low1 = divmod(0xCD9E8D57 * left1, UNIT)
        left0, right0, left1, right1 = high1 ^ right0 ^ k0, low1, high0 ^ right1 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) % UNIT, (k1 + 0xBB67AE85) % UNIT
    return [left0, right0, left1, right1]


def row_words(key: int, row: int, purpose: int) -> Callable[[int], int]:
    """Word w of a row, for any w."""
    made: dict[int, list[int]] = {}

    def word(index: int) -> int:
        call = index // 4
        if call not in made:
            made[call] = philox([row % UNIT, row // UNIT, call, purpose], [key % UNIT, key // UNIT])
        return made[call][index % 4]

    return word


def scalar_chain(chosen: MarkovSettings, key: int, row: int) -> tuple[list[int], list[list[int]]]:
    """Symbols and weights of a row's chain."""
    spread, most = chosen.most - chosen.fewest + 1, chosen.most
    k = chosen.fewest + row_words(key, row, SHAPE)(0) * spread // UNIT
    word = row_words(key, row, SYMBOLS)
    left = list(range(chosen.symbols))
    symbols = [left.pop(word(s) * len(left) // UNIT) for s in range(k)]
    word = row_words(key, row, MOVES)

    def spacings(first: int, c: int) -> list[int]:
        cuts = [0, *sorted(word(first + i) for i in range(c * k - 1)), UNIT]
        return [cuts[c * (j + 1)] - cuts[c * j] for j in range(k)]

    def shuffle(first: int, cyclic: bool = False) -> list[int]:
        made: list[int] = []
        for i in range(k):
            j = word(first + i) * (max(i, 1) if cyclic else i + 1) // UNIT
            made.append(i)
            made[i], made[j] = made[j], i
        return made

    if chosen.kind == "dirichlet":
        c = chosen.concentration
        return symbols, [spacings(s * c * most, c) for s in range(k)]
    if chosen.kind == "zipf":
        shares = [Fraction(rank**-chosen.exponent) for rank in range(1, k + 1)]
        exact = [share / sum(shares) * UNIT for share in shares]
        ranked = [int(share) for share in exact]
        for rank in sorted(range(k), key=lambda rank: ranked[rank] - exact[rank])[: UNIT - sum(ranked)]:
            ranked[rank] += 1
        return symbols, [[ranked[rank] for rank in shuffle(s * most)] for s in range(k)]
    weights = [[0] * k for _ in range(k)]
    for m, share in enumerate(spacings(0, 1)):
        for s, goal in enumerate(shuffle((1 + m) * most, cyclic=m == 0)):
            weights[s][goal] += share
    return symbols, weights


def scalar_row(chosen: MarkovSettings, key: int, row: int, length: int) -> list[int]:
    """One row, alone, with the coupling from the past of the textbook."""
    symbols, weights = scalar_chain(chosen, key, row)
    k, word = len(symbols), row_words(key, row, START)

    def move(state: int, drawn: int) -> int:
        goal = 0
        while drawn >= weights[state][goal]:
            drawn -= weights[state][goal]
            goal += 1
        return goal

    if chosen.kind == "doubly_stochastic":
        state = word(0) * k // UNIT
    else:
        horizon, ends = 1, set(range(k))
        while len(ends) > 1:
            copies = list(range(k))
            for back in range(horizon, 0, -1):
                copies = [move(s, word((back - 1) * chosen.most + s)) for s in copies]
            ends, horizon = set(copies), 2 * horizon
        (state,) = ends
    word = row_words(key, row, TOKENS)
    made = []
    for t in range(length):
        made.append(symbols[state])
        state = move(state, word(t))
    return made


def too_far(found: Tensor, expected: Tensor) -> float:
    """Standard deviations of chi-square above its mean (Wilson & Hilferty); cells of expected counts."""
    cells = expected > 0
    assert float(expected[cells].min()) >= 5 and float(found[~cells].sum()) == 0
    free = int(cells.sum()) - 1
    value = float(((found - expected) ** 2 / expected)[cells].sum())
    return (math.cbrt(value / free) - (1 - 2 / (9 * free))) / math.sqrt(2 / (9 * free))


def counts(values: Tensor, cells: int) -> Tensor:
    return torch.bincount(values.flatten().long(), minlength=cells).double()


def stream(length: int = 20, seed: int = 0, **chosen: Any) -> MarkovStream:
    return MarkovStream(MarkovSettings(**{"symbols": 50, **chosen}), seed, length)


KINDS: list[dict[str, Any]] = [
    {"kind": "dirichlet"},
    {"kind": "dirichlet", "concentration": 3},
    {"kind": "zipf", "exponent": 1.5},
    {"kind": "doubly_stochastic"},
]
NAMES = ["dirichlet", "dirichlet 3", "zipf", "doubly stochastic"]


@st.composite
def all_settings(draw: st.DrawFn) -> MarkovSettings:
    fewest = draw(st.integers(2, 12))
    most = draw(st.integers(fewest, 14))
    return MarkovSettings(
        symbols=draw(st.integers(most, 300)),
        fewest=fewest,
        most=most,
        kind=draw(st.sampled_from(["dirichlet", "zipf", "doubly_stochastic"])),
        concentration=draw(st.integers(1, 4)),
        exponent=draw(st.sampled_from([0.3, 1.0, 2.0, 3.7])),
    )


@pytest.mark.parametrize(
    ("counter", "key", "drawn"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_the_scalar_philox_gives_the_known_answers(counter: str, key: str, drawn: str) -> None:
    read = [[int(word, 16) for word in text.split()] for text in (counter, key, drawn)]
    assert philox(read[0], read[1]) == read[2]


@settings(max_examples=30, deadline=None)
@given(all_settings(), st.integers(0, 2**40), st.integers(0, 2**63 - 4), st.integers(1, 40))
@example(MarkovSettings(symbols=2**16, fewest=64, most=64), 1, 2**63 - 4, 70)
@example(MarkovSettings(symbols=64, fewest=2, most=64, kind="zipf"), 2, 2**32 - 2, 130)
@example(MarkovSettings(symbols=256, fewest=2, most=2, kind="doubly_stochastic"), 3, 0, 65)
@example(MarkovSettings(symbols=257, fewest=2, most=3, concentration=50), 4, 5, 64)
def test_rows_and_chains_are_those_made_one_by_one(chosen: MarkovSettings, seed: int, first: int, length: int) -> None:
    made = MarkovStream(chosen, seed, length)
    rows, chains = made.rows(first, 4), made.chains(first, 4)
    assert rows.dtype == (torch.uint8 if chosen.symbols <= 256 else torch.uint16)
    assert rows.tolist() == [scalar_row(chosen, made.key, first + r, length) for r in range(4)]
    for r in range(4):
        symbols, weights = scalar_chain(chosen, made.key, first + r)
        k = int(chains.states[r])
        assert chains.symbols[r].tolist() == symbols + [-1] * (chosen.most - k)
        assert chains.weights[r, :k, :k].tolist() == weights
        assert int(chains.weights[r, k:].sum()) == int(chains.weights[r, :, k:].sum()) == 0


@pytest.mark.parametrize("chosen", KINDS, ids=NAMES)
def test_any_split_gives_the_same_rows(chosen: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    made = stream(**chosen)
    whole, chains = made.rows(1000, 300), made.chains(1000, 300)
    parts = [made.rows(first, end - first) for first, end in [(1000, 1001), (1001, 1001), (1001, 1130), (1130, 1300)]]
    assert torch.equal(torch.cat(parts), whole)
    monkeypatch.setattr(markov, "CHUNK_WORDS", 20_000)
    monkeypatch.setattr(markov, "FIRST_STEPS", 2)
    monkeypatch.setattr(markov, "BLOCK", 8)
    assert torch.equal(made.rows(1000, 300), whole)
    assert all(torch.equal(*pair) for pair in zip(made.chains(1000, 300), chains, strict=True))


def test_a_token_does_not_depend_on_the_length() -> None:
    long = stream(length=200).rows(7, 30)
    for length in (1, 4, 63, 64, 65, 199):
        assert torch.equal(stream(length=length).rows(7, 30), long[:, :length])


def test_nothing_can_be_asked_for() -> None:
    made = stream()
    assert made.rows(5, 0).shape == (0, 20)
    assert [tuple(part.shape) for part in made.chains(5, 0)] == [(0,), (0, 10), (0, 10, 10)]


@pytest.mark.parametrize(
    ("chosen", "name", "key", "row"),
    [
        (KINDS[0], "7eaf79fe8431e827", 6930564223145165754, "10 20 10 30 2d 10 30 1c 27 10 10 2d"),
        (KINDS[1], "fec6118cdeb20327", 2230815697200480370, "09 1f 27 03 18 17 17 18 03 22 1f 1f"),
        (KINDS[2], "f7c9ab962af9e4cb", 5072107001675309798, "30 2b 2f 03 2f 0b 0b 0b 2f 0b 2f 30"),
        (KINDS[3], "62d0f3a06c7bcb23", 3999014813521128692, "2f 11 0a 2f 2f 2f 0e 12 00 12 0e 00"),
    ],
    ids=NAMES,
)
def test_the_format_has_not_changed(chosen: dict[str, Any], name: str, key: int, row: str) -> None:
    """Known values: a change of any is another format, and needs another `VERSION`."""
    made = stream(length=12, seed=5, **chosen)
    assert (made.fingerprint, made.key) == (name, key)
    assert bytes(made.rows(2**40 + 1, 1)[0].tolist()).hex(" ") == row


def test_settings_and_seed_have_a_fingerprint_and_a_key_and_the_length_has_not() -> None:
    made = [stream(), stream(seed=1), stream(most=9), stream(symbols=51), stream(kind="zipf"), stream(exponent=2.0)]
    assert len({each.fingerprint for each in made}) == len({each.key for each in made}) == len(made)
    assert all(0 <= each.key < 2**63 for each in made)
    assert (stream(length=3).fingerprint, stream(length=3).key) == (made[0].fingerprint, made[0].key)
    assert stream(exponent=1).fingerprint == made[0].fingerprint


def test_states_are_uniform_in_number_and_symbols_are_all_different_and_uniform() -> None:
    chains = stream(symbols=12, fewest=3, most=10).chains(0, 8000)
    assert too_far(counts(chains.states - 3, 8), torch.full((8,), 1000.0).double()) < 4.5
    shown = chains.symbols[chains.states >= 3][:, :3]
    codes = (shown * torch.tensor([144, 12, 1])).sum(1)
    first, second, third = (torch.arange(1728) // size % 12 for size in (144, 12, 1))
    different = (first != second) & (second != third) & (first != third)
    assert too_far(counts(codes, 1728), different.double() * 8000 / 1320) < 4.5
    for k in range(3, 11):
        of_size = chains.symbols[chains.states == k]
        assert int((of_size[:, :k].sort(1).values.diff(dim=1) <= 0).sum()) == 0
        assert bool((of_size[:, k:] == -1).all() and (of_size[:, :k] < 12).all() and (of_size[:, :k] >= 0).all())
        assert too_far(counts(of_size[:, k - 1], 12), torch.full((12,), len(of_size) / 12).double()) < 4.5


@pytest.mark.parametrize("concentration", [1, 3])
@pytest.mark.parametrize("k", [2, 5])
def test_dirichlet_weights_have_their_moments(concentration: int, k: int) -> None:
    """Mean 1/k, variance (k - 1) / (k² (kc + 1)), covariance -1 / (k² (kc + 1))."""
    made = stream(fewest=2, most=6, concentration=concentration).chains(0, 20_000)
    weights = made.weights[made.states == k][:, :k, :k].double().flatten(0, 1) / UNIT
    scale = k * k * (k * concentration + 1)
    torch.testing.assert_close(weights.mean(0), torch.full((k,), 1 / k).double(), atol=0.01, rtol=0)
    expected = (k * torch.eye(k, dtype=torch.float64) - 1) / scale
    torch.testing.assert_close(weights.T.cov(), expected, atol=0.05 * (k - 1) / scale, rtol=0)


@pytest.mark.parametrize("chosen", KINDS, ids=NAMES)
def test_weights_sum_to_one_exactly(chosen: dict[str, Any]) -> None:
    made = stream(fewest=2, **chosen).chains(0, 500)
    real = torch.arange(10) < made.states[:, None]
    assert bool((made.weights >= 0).all())
    assert torch.equal(made.weights.sum(2), real.long() * UNIT)
    if chosen["kind"] == "doubly_stochastic":
        assert torch.equal(made.weights.sum(1), real.long() * UNIT)


def test_permutations_that_are_mixed_are_uniform() -> None:
    """Of three states: the first permutation is one of two cycles, the others any of six."""
    made = stream(fewest=3, most=4, kind="doubly_stochastic").chains(0, 40_000)
    weights = made.weights[made.states == 3][:, :3, :3].double() / UNIT
    stay, move = torch.tensor([0, 1 / 3, 1 / 3]), torch.tensor([1 / 2, 1 / 3, 1 / 3])  # chance of each permutation
    diagonal = torch.eye(3, dtype=torch.bool)
    means = torch.where(diagonal, stay.mean(), move.mean()).double()
    torch.testing.assert_close(weights.mean(0), means, atol=0.008, rtol=0)
    # shares of Dirichlet(1, 1, 1): E[share²] = 1/6, E[share · other] = 1/12
    others = ~diagonal
    product = float((stay[:, None] * move)[others].sum()) / 12
    torch.testing.assert_close((weights[:, 0, 0] * weights[:, 0, 1]).mean().item(), product, atol=0.003, rtol=0)
    squares = [float(p.sum()) / 6 + float((p[:, None] * p)[others].sum()) / 12 for p in (stay, move)]
    expected = torch.where(diagonal, squares[0], squares[1]).double()
    torch.testing.assert_close((weights**2).mean(0), expected, atol=0.008, rtol=0)


def test_no_mixture_falls_apart() -> None:
    made = stream(fewest=2, most=5, kind="doubly_stochastic").chains(0, 2000)
    moves = (made.weights > 0).double() + torch.eye(5).double()
    reached = torch.linalg.matrix_power(moves, 8) > 0
    for k, found in zip(made.states.tolist(), reached, strict=True):
        assert bool(found[:k, :k].all())


def test_ranks_of_zipf_come_in_all_orders() -> None:
    made = stream(fewest=2, most=4, kind="zipf", exponent=1.0).chains(0, 6000)
    for k in (2, 3, 4):
        weights = made.weights[made.states == k][:, :k, :k].flatten(0, 1)
        order = weights.argsort(1, descending=True)
        exact = torch.tensor([1 / rank for rank in range(1, k + 1)], dtype=torch.float64)
        found = weights.gather(1, order).double() / UNIT
        torch.testing.assert_close(found, (exact / exact.sum()).expand(found.shape), atol=2**-31, rtol=0)
        codes = (order * torch.tensor([4**place for place in range(k)])).sum(1)
        _, times = codes.unique(return_counts=True)
        assert len(times) == math.factorial(k)
        assert too_far(times.double(), torch.full((len(times),), len(codes) / len(times)).double()) < 4.5


def test_a_weight_is_the_number_of_words_that_lead_to_its_state() -> None:
    sums = markov._sums(torch.tensor([[0, 5, 0, UNIT - 6, 1, 0], [UNIT, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]]))
    drawn = torch.tensor([0, 4, 5, UNIT - 2, UNIT - 1]).repeat(3, 1)
    assert markov._moves(sums, drawn).tolist() == [[1, 1, 3, 3, 4], [0] * 5, [0] * 5]


@pytest.mark.parametrize("chosen", KINDS, ids=NAMES)
def test_moves_of_a_long_row_come_as_often_as_its_chain_says(chosen: dict[str, Any]) -> None:
    made = stream(length=8000, fewest=4, most=6, **chosen)
    rows, chains = made.rows(0, 8).long(), made.chains(0, 8)
    for row, k, symbols, weights in zip(rows, chains.states.tolist(), chains.symbols, chains.weights, strict=True):
        states = (row[:, None] == symbols).nonzero()[:, 1]
        assert len(states) == 8000
        found = counts(states[:-1] * 6 + states[1:], 36).view(6, 6)
        for state in range(k):
            expected = found[state].sum() * weights[state].double() / UNIT
            assert float(found[state][weights[state] == 0].sum()) == 0
            many = expected >= 5
            if many.sum() > 1:
                assert too_far(found[state][many], expected[many]) < 4.5


@pytest.mark.parametrize(
    "moves",
    [
        [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.125, 0.0, 0.875]],
        [[0.0, 1.0, 0.0], [0.25, 0.0, 0.75], [0.9375, 0.0625, 0.0]],
        [[0.96875, 0.03125], [0.0625, 0.9375]],
    ],
    ids=["with zeros", "no state stays", "slow"],
)
@pytest.mark.parametrize("places", [0, 2])
def test_first_states_are_drawn_from_the_stationary_distribution(moves: list[list[float]], places: int) -> None:
    rows, size = 20_000, len(moves) + places
    weights = torch.zeros(1, size, size, dtype=torch.int64)
    weights[0, : len(moves), : len(moves)] = (torch.tensor(moves).double() * UNIT).long()
    drawn = start_states(weights.expand(rows, -1, -1).contiguous(), torch.arange(rows), key=12345)
    exact = stationary(weights)[0]
    torch.testing.assert_close(exact @ (weights[0].double() / UNIT), exact)
    assert exact.sum().item() == pytest.approx(1)
    assert too_far(counts(drawn, size), exact * rows) < 4.5


@pytest.mark.parametrize("chosen", KINDS[:3], ids=NAMES[:3])
def test_a_row_is_stationary_from_its_first_token_on(chosen: dict[str, Any]) -> None:
    """The stationary probability of the state that is there has the same mean at all positions."""
    made = stream(length=8, fewest=2, most=5, **chosen)
    rows, chains = made.rows(0, 20_000).long(), made.chains(0, 20_000)
    shares = stationary(chains.weights)
    states = (chains.symbols[:, None] == rows[:, :, None]).long().argmax(2)
    mean = (shares**2).sum(1)
    spread = ((shares**3).sum(1) - mean**2).sum().sqrt()
    assert float(((shares.gather(1, states) - mean[:, None]).sum(0) / spread).abs().max()) < 4.5


def test_states_of_a_doubly_stochastic_chain_are_equally_likely() -> None:
    made = stream(length=8, symbols=10, fewest=2, most=5, kind="doubly_stochastic")
    rows, chains = made.rows(0, 8000), made.chains(0, 8000)
    states = (chains.symbols[:, None] == rows.long()[:, :, None]).long().argmax(2)
    for k in range(2, 6):
        of_size = states[chains.states == k]
        for position in (0, 1, 7):
            expected = torch.full((k,), len(of_size) / k).double()
            assert too_far(counts(of_size[:, position], k), expected) < 4.5
    logs = oracle_log_probs(rows, chains)
    torch.testing.assert_close(logs[:, 0].exp(), 1 / chains.states.double())
    assert bool(logs.isfinite().all())


def test_a_chain_that_never_forgets_is_refused_by_the_number_of_its_row() -> None:
    weights = torch.tensor([[[0, UNIT], [UNIT // 2, UNIT // 2]], [[0, UNIT], [UNIT, 0]]])
    with pytest.raises(DataError, match="row 18: its chain still depends on its state 1,048,576 steps ago"):
        start_states(weights, torch.tensor([17, 18]), key=1)


def test_the_oracle_gives_the_probability_of_the_row() -> None:
    made = stream(length=30, symbols=400)
    rows, chains = made.rows(3, 5), made.chains(3, 5)
    found = oracle_log_probs(rows, chains)
    assert found.shape == (5, 30) and found.dtype == torch.float64
    torch.testing.assert_close(oracle_log_probs(rows[:, :7], chains), found[:, :7])
    for r in range(5):
        k = int(chains.states[r])
        moves = chains.weights[r, :k, :k].double() / UNIT
        state_of = {symbol: state for state, symbol in enumerate(chains.symbols[r, :k].tolist())}
        states = [state_of[token] for token in rows[r].tolist()]
        settled = torch.linalg.matrix_power(moves, 4096)[0]
        expected = [settled[states[0]], *(moves[a, b] for a, b in pairwise(states))]
        torch.testing.assert_close(found[r], torch.stack(expected).log(), atol=1e-9, rtol=1e-9)


def test_the_oracle_loses_as_much_as_the_entropy_of_the_chains() -> None:
    made = stream(length=50)
    chains = made.chains(0, 2000)
    losses = -oracle_log_probs(made.rows(0, 2000), chains)
    moves = chains.weights.double() / UNIT
    shares = stationary(chains.weights)
    rates = torch.einsum("ns,nst->n", shares, -torch.xlogy(moves, moves))
    deviations = losses[:, 1:].mean(1) - rates
    assert abs(float(deviations.mean() / deviations.std())) * math.sqrt(2000) < 4.5
    firsts = losses[:, 0] + torch.xlogy(shares, shares).sum(1)
    assert abs(float(firsts.mean() / firsts.std())) * math.sqrt(2000) < 4.5


def test_the_oracle_refuses_rows_of_other_chains() -> None:
    chains = Chains(torch.tensor([2]), torch.tensor([[4, 1]]), torch.full((1, 2, 2), UNIT // 2))
    assert oracle_log_probs(torch.tensor([[1, 4, 4]]), chains).exp().tolist() == [pytest.approx([0.5] * 3)]
    for token in (0, 2, 5):
        with pytest.raises(DataError, match=f"row 0, position 1: its chain never shows token {token}"):
            oracle_log_probs(torch.tensor([[1, token]]), chains)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"symbols": 9}, "symbols = 9: must be at least most = 10"),
        ({"symbols": 65_537}, "symbols = 65537: must be a whole number from 2 to 65,536"),
        ({"fewest": 1}, "fewest = 1: must be a whole number from 2 to 64"),
        ({"fewest": 11}, "fewest = 11: must not be more than most = 10"),
        ({"most": 65, "symbols": 100}, "most = 65: must be a whole number from 2 to 64"),
        ({"most": 1}, "most = 1: .*; fewest = 3: must not be more than most = 1"),
        ({"kind": "other"}, 'kind = "other": must be one of dirichlet, zipf, doubly_stochastic'),
        ({"concentration": 0}, "concentration = 0: must be a whole number from 1 to 1,024"),
        ({"concentration": 1.5}, "concentration = 1.5: must be a whole number"),
        ({"exponent": 0.0}, "exponent = 0.0: must be more than 0 and at most 8"),
        ({"exponent": math.nan}, "exponent = nan"),
        ({"symbols": 3, "exponent": 9.0}, "exponent = 9.0.*; symbols = 3"),
    ],
)
def test_wrong_settings_are_named(chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        stream(**chosen)


@pytest.mark.parametrize(("first", "count"), [(-1, 2), (0, -1), (2**63, 1), (2**63 - 1, 2)])
def test_rows_that_are_not_there_are_refused(first: int, count: int) -> None:
    for ask in (stream().rows, stream().chains):
        with pytest.raises(DataError, match=r"row numbers cannot be negative|a stream has 2\^63"):
            ask(first, count)


@pytest.mark.parametrize("length", [0, -1, 2**34 + 1])
def test_a_row_has_tokens(length: int) -> None:
    with pytest.raises(DataError, match=f"length = {length}"):
        stream(length=length)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("chosen", KINDS, ids=NAMES)
@pytest.mark.parametrize("symbols", [50, 1000])
def test_a_gpu_makes_the_same_bytes(chosen: dict[str, Any], symbols: int) -> None:
    made = stream(length=100, symbols=symbols, **chosen)
    assert torch.equal(made.rows(2**33, 3000, "cuda").cpu(), made.rows(2**33, 3000))
    found, expected = made.chains(2**33, 300, "cuda"), made.chains(2**33, 300)
    assert all(torch.equal(ours.cpu(), theirs) for ours, theirs in zip(found, expected, strict=True))
