"""Permutations of rows: those made in plain integers, all equally likely, independent of each other."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_philox import scalar_word
from torch import Tensor

from shoestring.core.errors import DataError, RecipeError
from shoestring.core.hmm_sections import Stream
from shoestring.core.recipe_file import build
from shoestring.streams import loops, permutations
from shoestring.streams.hmm import HmmStream
from shoestring.streams.permutations import OF_STATES, OF_SYMBOLS, Kind, Lookup, Rounds, numbers
from shoestring.streams.philox import Purpose

CPU = torch.device("cpu")
PURPOSES = {"symbols": (1, 5, 10), "states": (3, 6, 11)}
"""Of a shuffle, of the pick from a pool, and of a row's own."""


def scalar_shuffle(key: int, number: int, size: int, purpose: int) -> list[int]:
    """Fisher and Yates' shuffle: the last place trades with one of all, then the one before it, and so on."""
    found = list(range(size))
    for step, last in enumerate(range(size - 1, 0, -1)):
        other = scalar_word(key, number, purpose, step) * (last + 1) // 2**32
        found[last], found[other] = found[other], found[last]
    return found


def scalar_rounds(drawn: list[int], size: int) -> list[int]:
    """Lines of an even width near the root, turned in even rounds; columns, turned in odd ones."""
    width = next(n for n in range(2, size + 2, 2) if n * n >= size)
    lines = [list(range(begin, min(begin + width, size))) for begin in range(0, size, width)]
    columns = [list(range(begin, size, width)) for begin in range(width)]
    rounds = 2 * math.ceil(math.log(size**1.5 * 2**20) / math.log(len(lines)))
    found = list(range(size))
    for number in range(rounds):
        goes = {}
        for index, group in enumerate(columns if number % 2 else lines):
            mixed = (index * 0x9E3779B1 + drawn[number % 4] + number // 4 * 0x7F4A7C15) % 2**32
            mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B % 2**32
            turn = mixed * len(group) // 2**32
            goes |= {value: group[(place + turn) % len(group)] for place, value in enumerate(group)}
        found = [goes[value] for value in found]
    return found


def scalar_permutation(kind: str, key: int, row: int, size: int, name: str) -> list[int]:
    """What a row shows every symbol as, or which state's emissions it gives every state."""
    shuffle, pick, own = PURPOSES[name]
    family, _, number = kind.partition(":")
    if family == "none":
        return list(range(size))
    if family == "pool":
        return scalar_shuffle(key, scalar_word(key, row, pick, 0) * int(number) // 2**32, size, shuffle)
    if family == "sequence" and size > 16:
        return scalar_rounds([scalar_word(key, row, own, at) for at in range(4)], size)
    return scalar_shuffle(key, row // int(number or 1), size, shuffle)


def p_value(found: Tensor, expected: Tensor) -> float:
    """Of a chi-square test of counts; a cell that cannot be must be empty, the others need five each."""
    possible = expected > 0
    assert float(expected[possible].min()) >= 5 and float(found[~possible].sum()) == 0
    statistic = ((found - expected) ** 2 / expected)[possible].double().sum()
    freedom = torch.tensor((int(possible.sum()) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2))


def even(*drawn: Tensor) -> float:
    """P-value of all combinations of permutations being equally likely; each is (n, size)."""
    size = drawn[0].shape[1]
    digits = size ** torch.arange(size)
    proper = torch.tensor(list(itertools.permutations(range(size))))
    place = torch.full((size**size,), -1).scatter(0, (proper * digits).sum(1), torch.arange(len(proper)))
    joint = torch.zeros(len(drawn[0]), dtype=torch.int64)
    for each in drawn:
        found = place[(each * digits).sum(1)]
        assert int(found.min()) >= 0
        joint = joint * len(proper) + found
    cells = len(proper) ** len(drawn)
    counts = torch.bincount(joint, minlength=cells).double()
    return p_value(counts, torch.full_like(counts, len(joint) / cells))


def stream(symbols: str = "none", states: str = "none", size: int = 4, seed: int = 0) -> HmmStream:
    """A model of as many states as symbols, all different."""
    rng = np.random.default_rng(3)
    start, transition, emission = (rng.dirichlet(np.ones(size), size=n) for n in (1, size, size))
    return HmmStream(start[0], transition, emission, seed=seed, length=9, symbols=symbols, states=states)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("none", Kind("none")),
        ("sequence", Kind("sequence")),
        ("block:1", Kind("block", 1)),
        (f"block:{2**63 - 1}", Kind("block", 2**63 - 1)),
        ("pool:1", Kind("pool", 1)),
        (f"pool:{2**24}", Kind("pool", 2**24)),
    ],
)
def test_kinds_are_read_and_written(text: str, kind: Kind) -> None:
    assert Kind.parse(text) == kind
    assert str(kind) == text


@pytest.mark.parametrize(
    "text",
    ["", "all", "None", "none:1", "sequence:2", "block", "block:", "block:0", "block:07", "block:-1", "block:1.5",
     "pool:1e3", "pool: 4", "pool:4 ", " pool:4", "pool:4\n", "pool:٤", "blocks:4", "block:1:2"],
)  # fmt: skip
def test_what_is_no_kind_is_refused_with_all_that_are(text: str) -> None:
    with pytest.raises(DataError, match='not a kind of permutation: must be "none", "sequence", "block:N" or "pool:P"'):
        Kind.parse(text)


def test_kinds_that_are_too_large_are_refused() -> None:
    with pytest.raises(DataError, match=r'"pool:16777217" is .*: a pool holds at most 16,777,216 .*; "sequence"'):
        Kind.parse("pool:16777217")
    for number in (2**63, 10**19, "9" * 10_000):
        with pytest.raises(DataError, match=r"must be below 2\^63"):
            Kind.parse(f"block:{number}")


@pytest.mark.parametrize(
    "text",
    ["none", "sequence", "block:4", f"block:{2**63 - 1}", f"block:{2**63}", f"pool:{2**24}", f"pool:{2**24 + 1}",
     "pool:0", "blocks:4"],
)  # fmt: skip
def test_a_recipe_takes_the_kinds_that_a_stream_takes(text: str) -> None:
    values = {
        "budget": {"steps": 1},
        "train": {"batch": 1, "lr": 1e-3},
        "data": {"stream": "hmm:a"},
        "stream": {"symbols": text},
    }
    try:
        Kind.parse(text)
    except DataError as refused:
        with pytest.raises(RecipeError) as caught:
            build(values, "test")
        said = str(refused).partition(": ")[2]
        assert f'stream.symbols = "{text}": {said}' in str(caught.value)
    else:
        assert build(values, "test").stream == Stream(symbols=text)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**63 - 1),
    st.one_of(st.integers(0, 2**63 - 5), st.sampled_from([0, 2**32 - 2, 2**63 - 5])),
    st.integers(1, 40),
    st.sampled_from([Purpose.SYMBOLS_SHUFFLE, Purpose.STATES_SHUFFLE]),
)
@example(1, 2**40, 1, Purpose.SYMBOLS_SHUFFLE)
@example(1, 2**40, 2, Purpose.SYMBOLS_SHUFFLE)
@example(2, 5, 256, Purpose.SYMBOLS_SHUFFLE)
@example(3, 6, 257, Purpose.STATES_SHUFFLE)
def test_shuffles_are_fisher_and_yates(key: int, first: int, size: int, purpose: Purpose) -> None:
    expected = [scalar_shuffle(key, first + n, size, int(purpose)) for n in range(3)]
    assert permutations.shuffles(key, first, 3, size, purpose, CPU).tolist() == expected
    fast = loops.shuffles(key, first, 3, size, purpose, CPU)
    assert fast.tolist() == expected
    assert fast.dtype == (torch.uint8 if size <= 256 else torch.uint16)


def test_the_largest_alphabet_is_shuffled() -> None:
    made = loops.shuffles(7, 2**50, 1, 2**16, Purpose.SYMBOLS_SHUFFLE, CPU)
    assert made.tolist() == [scalar_shuffle(7, 2**50, 2**16, 1)]


def test_shuffles_made_side_by_side_are_those_made_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = loops.shuffles(7, 2**33, 5000, 6, Purpose.SYMBOLS_SHUFFLE, CPU)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert torch.equal(loops.shuffles(7, 2**33, 5000, 6, Purpose.SYMBOLS_SHUFFLE, CPU), alone)


@settings(max_examples=100)
@given(
    st.sampled_from(["none", "sequence", "block:1", "block:7", "block:65536", f"block:{2**62}", "pool:1", "pool:9"]),
    st.one_of(st.integers(0, 2**63 - 200), st.integers(0, 300), st.sampled_from([65_500, 2**62 - 1, 2**63 - 200])),
    st.integers(1, 200),
)
@example("sequence", 65_535, 2)
@example("block:7", 6, 2)
def test_a_span_holds_the_shuffles_of_all_its_rows(text: str, first: int, count: int) -> None:
    kind = Kind.parse(text)
    lowest, many = kind.span(first, count)
    rows = torch.arange(count) + first
    if kind.name in ("block", "pool"):
        which = numbers(kind, 2**50 + 9, rows, OF_SYMBOLS)
        assert lowest <= int(which.min()) and int(which.max()) < lowest + many
    else:
        assert many == 0
    if kind.name == "block":  # no more than these
        assert (lowest, many) == (first // kind.number, (first + count - 1) // kind.number - first // kind.number + 1)


def test_which_shuffles_a_row_has() -> None:
    rows = torch.arange(100_000) + (2**40 - 65_536)
    assert torch.equal(numbers(Kind("block", 1000), 0, rows, OF_SYMBOLS), rows // 1000)
    picks = numbers(Kind("pool", 6), 11, rows, OF_STATES)
    assert picks[:20].tolist() == [scalar_word(11, row, 6, 0) * 6 // 2**32 for row in rows[:20].tolist()]
    assert p_value(torch.bincount(picks, minlength=6).double(), torch.full((6,), len(rows) / 6).double()) > 1e-4


KINDS = ["none", "block:1", "block:3", "pool:1", "pool:5", "sequence"]


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(KINDS),
    st.sampled_from(["symbols", "states"]),
    st.one_of(st.integers(0, 2**63 - 5), st.sampled_from([2**32 - 2, 2**62 - 2])),
    st.one_of(st.integers(1, 40), st.sampled_from([64, 200])),
)
@example("block:1", "symbols", 2**63 - 4, 5)
@example("pool:5", "states", 2**63 - 4, 5)
@example("sequence", "states", 2**63 - 4, 5)
@example("sequence", "states", 2**63 - 4, 17)
@example("sequence", "symbols", 2**40, 300)
def test_permutations_are_those_of_plain_integers(kind: str, name: str, first: int, size: int) -> None:
    made = stream(**{name: kind}, size=size)
    expected = [scalar_permutation(kind, made.key, first + r, size, name) for r in range(4)]
    assert made.permutations(name, first, 4).tolist() == expected
    other = "states" if name == "symbols" else "symbols"
    assert made.permutations(other, first, 4).tolist() == [list(range(size))] * 4


def test_no_permutations_can_be_asked_for() -> None:
    for kind in KINDS:
        assert stream(symbols=kind).permutations("symbols", 5, 0).shape == (0, 4)


def test_symbols_and_states_are_permuted_by_different_words() -> None:
    for kind, size in (("block:1", 12), ("pool:50", 12), ("sequence", 12), ("sequence", 20)):
        made = stream(symbols=kind, states=kind, size=size)
        assert not torch.equal(made.permutations("symbols", 0, 5), made.permutations("states", 0, 5))
    drawn = [stream(symbols="block:1", size=12, seed=seed).permutations("symbols", 0, 5) for seed in (0, 1)]
    assert not torch.equal(*drawn)
    assert [list(map(int, purposes)) for purposes in (OF_SYMBOLS, OF_STATES)] == [[1, 5, 10], [3, 6, 11]]


@pytest.mark.parametrize("name", ["symbols", "states"])
def test_all_permutations_are_equally_likely(name: str) -> None:
    assert even(stream(**{name: "block:1"}).permutations(name, 2**35, 24_000)) > 1e-4
    assert even(stream(**{name: "block:3"}).permutations(name, 0, 60_000)[::3]) > 1e-4
    pools = [stream(**{name: "pool:7"}, seed=seed) for seed in range(300)]  # rows of one would share permutations
    assert even(torch.cat([made.permutations(name, 2**62 + 3, 1) for made in pools])) > 1e-4
    assert even(stream(**{name: "sequence"}).permutations(name, 2**35, 24_000)) > 1e-4


def test_rows_of_one_block_share_a_permutation_and_those_of_a_pool_have_no_others() -> None:
    blocks = stream(symbols="block:5", size=9).permutations("symbols", 2**40 * 5 - 5, 20).view(4, 5, 9)
    assert torch.equal(blocks, blocks[:, :1].expand(-1, 5, -1))
    assert len(torch.unique(blocks[:, 0], dim=0)) == 4
    pool = stream(symbols="pool:6", size=9).permutations("symbols", 2**61, 500)
    assert len(torch.unique(pool, dim=0)) == 6
    sequence = stream(symbols="sequence", size=20).permutations("symbols", 0, 2000)
    assert len(torch.unique(sequence, dim=0)) == 2000


def lookup(size: int, key: int, rows: int) -> Lookup:
    """Of the first rows' own permutations."""
    kind = Kind("sequence").over(size)
    lowest, many = kind.span(0, rows)
    table = loops.shuffles(key, lowest, many, size, OF_SYMBOLS.shuffle, CPU) if many else None
    return Lookup(kind, OF_SYMBOLS, size, lowest, table)


@pytest.mark.parametrize("size", [4, 20, 200], ids=lambda size: f"{size} symbols")
def test_neighbouring_rows_are_independent(size: int) -> None:
    """Over many seeds, chi-square of 256 neighbours has the variance of independent ones, 2 (cells - 1) (1 - 1 / n)."""
    seeds, rows = 400, 256
    statistics = []
    for seed in range(seeds):
        values = torch.arange(3) if size == 4 else torch.tensor([size // 3])  # three of four say all
        drawn = lookup(size, seed, rows).relabel(seed, torch.arange(rows), values.expand(rows, -1))
        counts = torch.unique(drawn, dim=0, return_counts=True)[1].double()
        many = 24 if size == 4 else size
        statistics.append(float((counts**2).sum()) * many / rows - rows)
    mean, variance = np.mean(statistics), np.var(statistics, ddof=1)
    expected = 2 * (many - 1) * (1 - 1 / rows)
    assert abs(mean - (many - 1)) < 5 * math.sqrt(expected / seeds)
    assert abs(variance / expected - 1) < 5 * math.sqrt((2 + 12 / many) / seeds)


def test_no_row_follows_from_others() -> None:
    """With permutations of lines and columns, three corners of a rectangle of rows would give the fourth."""
    drawn = stream(symbols="sequence", size=24).permutations("symbols", 0, 1 << 12)
    rows = torch.arange(1 << 11)
    for right, under in ((1, 16), (1, 256), (16, 256), (1, 2)):
        one, beside, below, last = (drawn[rows + step] for step in (0, right, under, right + under))
        follows = below.gather(1, one.argsort(1).gather(1, beside))
        agreement = float((follows == last).double().mean())
        assert abs(agreement - 1 / 24) < 5 * math.sqrt(1 / 24 / rows.numel() / 24)


def moments(drawn: Tensor) -> tuple[float, float, float]:
    """How many standard errors the fixed points, the cycles and the odd permutations are off those of uniform ones."""
    rows, size = drawn.shape
    fixed = (drawn == torch.arange(size)).double().sum(1)
    least, at = torch.arange(size).expand(rows, -1), drawn  # the least value on each cycle
    for _ in range((size - 1).bit_length()):
        least, at = torch.minimum(least, least.gather(1, at)), at.gather(1, at)
    cycles = (least == torch.arange(size)).double().sum(1)
    harmonic = [sum(1 / n**power for n in range(1, size + 1)) for power in (1, 2)]
    spread = math.sqrt((harmonic[0] - harmonic[1]) / rows)
    odd = ((size - cycles) % 2).mean()
    return (
        float(fixed.mean() - 1) * math.sqrt(rows),
        float(cycles.mean() - harmonic[0]) / spread,
        float(odd - 0.5) * 2 * math.sqrt(rows),
    )


@pytest.mark.parametrize("size", [17, 25, 49, 200])
def test_computed_permutations_are_uniform(size: int) -> None:
    """Pairs of values go to all pairs of places, and whole permutations have the cycles of uniform ones."""
    rows = 20_000 if size < 100 else 5_000
    values = torch.arange(size).expand(rows, -1)
    drawn = lookup(size, 7, rows).relabel(7, torch.arange(rows), values)
    assert torch.equal(drawn.sort(1).values, torch.arange(size).expand(rows, -1))
    assert max(abs(z) for z in moments(drawn)) < 4.5
    width = Rounds.of(size).width
    for one, other in ((0, 1), (0, width), (size - 1, 3), (width - 1, width)):
        counts = torch.bincount(drawn[:, one] * size + drawn[:, other], minlength=size * size).double()
        cells = size * (size - 1)
        statistic = float((counts**2).sum()) * cells / rows - rows
        assert abs(statistic - (cells - 1)) < 5 * math.sqrt(2 * cells)
        assert float(counts.view(size, size).diagonal().sum()) == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", [0, 65_536 - 20, 2**62 - 20])
def test_rows_show_symbols_as_their_permutations_say(kind: str, first: int) -> None:
    for size in (7, 70):
        made, bare = stream(symbols=kind, size=size), stream(size=size)
        assert made.key == bare.key
        shown = made.permutations("symbols", first, 40).gather(1, bare.rows(first, 40).long())
        assert torch.equal(made.rows(first, 40).long(), shown)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", [0, 65_536 - 4, 2**62 - 4])
def test_states_emit_what_their_permutations_say(kind: str, first: int) -> None:
    rng = np.random.default_rng(4)
    start, transition, emission = (rng.dirichlet(np.ones(n), size=m) for n, m in ((18, 1), (18, 18), (30, 18)))
    made = HmmStream(start[0], transition, emission, seed=1, length=40, states=kind)
    for row, shuffle in enumerate(made.permutations("states", first, 8)):
        by_hand = HmmStream(start[0], transition, emission[shuffle.numpy()], seed=1, length=40)
        by_hand.key = made.key  # another model has another
        assert torch.equal(made.rows(first + row, 1), by_hand.rows(first + row, 1))
