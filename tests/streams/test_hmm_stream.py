"""Rows of a hidden Markov model: those made one by one in plain integers, however they are asked for and made.

`golden.json` holds rows that must never change: they were made once with `scalar_row`, for models whose probabilities
are whole numbers of 64ths or 1024ths. Rows are in hexadecimal, two digits a token, or four for more than 256 symbols.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from test_permutations import p_value, scalar_permutation
from test_philox import scalar_word
from test_tables import scalar_alias, scalar_draw
from torch import Tensor

from shoestring.core.errors import DataError
from shoestring.streams import hmm
from shoestring.streams.hmm import PLAIN, HmmStream
from shoestring.streams.stationary import stationary
from shoestring.streams.tables import quantise

UNIT = 2**32
LAST = 2**63 - 1
GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())
KINDS = ["none", "block:1", "block:3", f"block:{2**40}", "pool:1", "pool:5", "sequence"]

Model = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]
"""Start, transition, emission."""


def random_model(states: int, symbols: int, seed: int = 0, concentration: float = 0.5) -> Model:
    rng = np.random.default_rng(seed)
    start, transition = (rng.dirichlet(np.full(states, concentration), size=n) for n in (1, states))
    return start[0], transition, rng.dirichlet(np.full(symbols, concentration), size=states)


def stream(model: Model, **options: Any) -> HmmStream:
    return HmmStream(*model, **{"seed": 0, "length": 16, **options})


@contextmanager
def in_plain_torch() -> Iterator[None]:
    """Streams made within have their rows from `plain`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hmm, "_form", lambda _: PLAIN)
        yield


def scalar_key(model: Model, seed: int) -> int:
    """The seed and all weights, in 63 bits."""
    start, transition, emission = (quantise("table", table) for table in model)
    content = hashlib.sha256(f"(2, {emission.shape[0]}, {emission.shape[1]})".encode())
    for table in (transition, start, emission):
        content.update(table.astype("<i8").tobytes())
    name = f"{seed}\x1fstr:stream\x1fstr:{content.hexdigest()}"
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") // 2


def scalar_row(
    model: Model, seed: int, row: int, length: int, symbols: str = "none", states: str = "none"
) -> list[int]:
    """One row, one token after the other."""
    key = scalar_key(model, seed)
    start, moves, emits = (quantise("table", table) for table in model)
    shows = scalar_permutation(symbols, key, row, emits.shape[1], "symbols")
    emits_as = scalar_permutation(states, key, row, len(emits), "states")
    state, tokens = -1, []
    for t in range(length):
        state = scalar_draw(scalar_alias((moves[state] if t else start[0]).tolist()), scalar_word(key, row, 0, 2 * t))
        symbol = scalar_draw(scalar_alias(emits[emits_as[state]].tolist()), scalar_word(key, row, 0, 2 * t + 1))
        tokens.append(shows[symbol])
    return tokens


def counts(values: Tensor, cells: int) -> Tensor:
    return torch.bincount(values.flatten(), minlength=cells).double()


@st.composite
def models(draw: st.DrawFn) -> Model:
    states, symbols = draw(st.integers(1, 7)), draw(st.one_of(st.integers(1, 12), st.sampled_from([256, 257])))
    return random_model(states, symbols, draw(st.integers(0, 2**32)), draw(st.sampled_from([0.05, 0.5, 1.0, 50.0])))


firsts = st.one_of(st.integers(0, LAST - 2), st.sampled_from([0, 2**16 - 2, 2**32 - 2, 2**62 - 1]))


@settings(max_examples=30, deadline=None)
@given(models(), st.integers(0, 2**64), firsts, st.integers(1, 9), st.sampled_from(KINDS), st.sampled_from(KINDS))
@example(random_model(3, 5), 1, LAST - 2, 8, "block:1", "block:1")
@example(random_model(3, 5), 1, LAST - 2, 8, "pool:5", "sequence")
@example(random_model(3, 5), 1, LAST - 2, 8, "sequence", "pool:5")
@example(random_model(1, 1), 2, 7, 5, "sequence", "sequence")
@example(random_model(260, 4), 3, 2**40 - 1, 5, "none", "block:3")
@example(random_model(260, 260), 4, 2**41 - 1, 5, "block:3", "pool:5")
@example(random_model(3, 260), 5, 2**42 - 1, 5, "pool:5", "sequence")
@example(random_model(17, 200), 6, 2**43 - 1, 9, "sequence", "sequence")
@example(random_model(19, 300), 7, LAST - 2, 9, "sequence", "sequence")
def test_rows_are_those_made_one_by_one(
    model: Model, seed: int, first: int, length: int, symbols: str, states: str
) -> None:
    options: dict[str, Any] = {"seed": seed, "length": length, "symbols": symbols, "states": states}
    made = stream(model, **options)
    expected = [scalar_row(model, seed, first + r, length, symbols, states) for r in range(3)]
    rows = made.rows(first, 3)
    assert made.key == scalar_key(model, seed)
    assert rows.dtype == made.dtype == (torch.uint8 if model[2].shape[1] <= 256 else torch.uint16)
    assert rows.tolist() == expected
    with in_plain_torch():
        assert stream(model, **options).rows(first, 3).tolist() == expected


@pytest.mark.parametrize(
    "case", GOLDEN["rows"], ids=lambda case: " ".join([case["model"], case["symbols"], case["states"]])
)
def test_the_format_has_not_changed(case: dict[str, Any]) -> None:
    """Known values: a change of any is another format, and needs another `FORMAT`."""
    tables = GOLDEN["models"][case["model"]]
    model = tuple(np.array(tables[name]) / tables["of"] for name in ("start", "transition", "emission"))
    options = {"seed": case["seed"], "symbols": case["symbols"], "states": case["states"], "length": GOLDEN["length"]}
    made = stream(model, **options)
    assert (made.key, made.fingerprint) == (case["key"], case["fingerprint"])
    digits = 4 if made.dtype == torch.uint16 else 2
    rows = made.rows(case["first"], len(case["rows"])).tolist()
    assert ["".join(f"{token:0{digits}x}" for token in row) for row in rows] == case["rows"]
    with in_plain_torch():
        assert stream(model, **options).rows(case["first"], len(case["rows"])).tolist() == rows


MANY = random_model(4, 11)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(KINDS),
    st.sampled_from(KINDS),
    st.one_of(st.sampled_from([0, 2**16 - 30, 2**32 - 30]), st.integers(0, LAST - 125)),
    st.lists(st.integers(0, 25), max_size=5),
)
def test_any_split_gives_the_same_rows(symbols: str, states: str, first: int, sizes: list[int]) -> None:
    made, whole = (stream(MANY, symbols=symbols, states=states) for _ in range(2))
    begins = [first + sum(sizes[:n]) for n in range(len(sizes))]
    parts = [made.rows(begin, size) for begin, size in reversed(list(zip(begins, sizes)))]
    joined = torch.cat([made.rows(first, 0), *reversed(parts)])
    assert torch.equal(joined, whole.rows(first, sum(sizes)))


def test_rows_made_side_by_side_are_those_made_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made = stream(MANY, symbols="block:100", states="sequence")
    alone = made.rows(2**32 - 1000, 5000)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert torch.equal(made.rows(2**32 - 1000, 5000), alone)
    with in_plain_torch():
        assert torch.equal(stream(MANY, symbols="block:100", states="sequence").rows(2**32 - 1000, 5000), alone)


@pytest.mark.parametrize("symbols", [7, 65_536])
def test_long_rows_in_plain_torch_are_the_same(symbols: int) -> None:
    """Of the largest alphabet, so many tokens that some fall on a threshold's last bits."""
    model = random_model(5, symbols)
    fast = stream(model, length=150).rows(2**50, 3000)
    with in_plain_torch():
        assert torch.equal(stream(model, length=150).rows(2**50, 3000), fast)


@pytest.mark.parametrize("symbols", [11, 300])
def test_a_token_does_not_depend_on_the_length(symbols: int) -> None:
    model = random_model(4, symbols)
    options = {"symbols": "sequence", "states": "block:3"}
    long = stream(model, length=41, **options).rows(7, 30)
    for length in (1, 2, 3, 40):
        assert torch.equal(stream(model, length=length, **options).rows(7, 30), long[:, :length])


def test_another_seed_model_or_format_gives_other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    start, transition, emission = random_model(4, 40, concentration=5.0)
    nudged = emission.copy()
    nudged[2, :2] += 2.0**-32, -(2.0**-32)
    made = [
        stream((start, transition, emission)),
        stream((start, transition, emission), seed=1),
        stream((start, transition, nudged)),
        stream((start[::-1], transition, emission)),
    ]
    monkeypatch.setattr(hmm, "FORMAT", hmm.FORMAT + 1)
    made.append(stream((start, transition, emission)))
    assert len({each.key for each in made}) == len({each.fingerprint for each in made}) == len(made)
    rows = [each.rows(0, 50) for each in made]
    for n, one in enumerate(rows):
        assert all((one == other).float().mean() < 0.2 for other in rows[:n])
    assert all(0 <= each.key <= LAST for each in made)


def test_rows_differ_from_each_other() -> None:
    rows = stream(random_model(4, 40, concentration=5.0)).rows(0, 1000)
    assert len(torch.unique(rows, dim=0)) == 1000
    again = stream(random_model(4, 40, concentration=5.0)).rows(2**32, 1000)
    assert not torch.equal(rows, again)


def test_a_fingerprint_is_of_all_that_decides_the_rows_and_of_nothing_else() -> None:
    start, transition, emission = MANY
    made = stream(MANY)
    near = (start, transition * (1 + 1e-15), emission)
    for same in (stream(MANY), stream(MANY, length=99), stream(near)):
        assert (same.fingerprint, same.model, same.key) == (made.fingerprint, made.model, made.key)
    kinds = [stream(MANY, **{name: kind}) for name in ("symbols", "states") for kind in KINDS[1:]]
    assert len({made.fingerprint, *(each.fingerprint for each in kinds)}) == 1 + len(kinds)
    assert {each.key for each in kinds} == {made.key}  # so that with and without, the draws are the same
    used = stream(MANY)
    used.rows(5, 5)
    assert used.fingerprint == made.fingerprint


@pytest.mark.parametrize("kind", KINDS)
def test_rows_end_at_two_to_the_63rd(kind: str) -> None:
    made = stream(MANY, symbols=kind, states=kind)
    assert made.rows(LAST, 1).tolist() == [scalar_row(MANY, 0, LAST, 16, kind, kind)]
    assert made.rows(LAST + 1, 0).shape == made.rows(0, 0).shape == (0, 16)
    assert made.rows(0, 0).dtype == torch.uint8
    for first, count in ((LAST, 2), (LAST + 1, 1), (2**70, 1), (0, 2**63 + 1)):
        with pytest.raises(DataError, match=r"a stream has 2\^63 = 9,223,372,036,854,775,808"):
            made.rows(first, count)
    for first, count in ((-1, 1), (-1, 5), (3, -1)):
        with pytest.raises(DataError, match="row numbers cannot be negative"):
            made.rows(first, count)
    with pytest.raises(DataError, match="a stream has"):
        made.permutations("symbols", LAST, 2)
    with pytest.raises(DataError, match="negative"):
        made.permutations("states", -1, 2)


def test_types_are_the_smallest() -> None:
    assert stream(random_model(2, 256)).rows(0, 2).dtype == torch.uint8
    for symbols in (257, 65_536):
        made = stream(random_model(2, symbols, concentration=1.0), length=2000)
        rows = made.rows(0, 200)
        assert rows.dtype == torch.uint16
        assert 0.9 * symbols < int(rows.long().max()) < symbols


def test_what_no_stream_can_be_made_of_is_refused() -> None:
    start, transition, emission = MANY
    with pytest.raises(DataError, match="emission: 65,537 outcomes; a stream draws from at most 65,536"):
        stream(random_model(1, 65_537))
    with pytest.raises(DataError, match="must have at least one"):
        stream(MANY, length=0)
    with pytest.raises(DataError, match=r"start \(3,\) and transition \(4, 4\) do not fit 4 states"):
        stream((start[:3], transition, emission))
    with pytest.raises(DataError, match=r"transition \(4, 3\) do not fit 4 states"):
        stream((start, transition[:, :3], emission))
    for name, place in (("start", 0), ("transition", 1), ("emission", 2)):
        broken = [table.copy() for table in MANY]
        broken[place] *= 0.99
        with pytest.raises(DataError, match=rf"{name}\[0\] sums to 0.99, not to 1; divide it by its sum"):
            stream(tuple(broken))
        broken[place] = MANY[place].copy()
        broken[place].flat[1] = np.nan
        with pytest.raises(DataError, match=rf"{name}\[0, 1\] = nan is not a probability"):
            stream(tuple(broken))
    for kinds in ({"symbols": "some"}, {"states": "block:0"}):
        with pytest.raises(DataError, match="not a kind of permutation"):
            stream(MANY, **kinds)
    huge = [np.broadcast_to(0.5, shape) for shape in ((32_768,), (32_768, 32_768), (32_768, 65_536))]
    with pytest.raises(DataError, match="a table has at most 2,147,483,647 cells"):
        stream(tuple(huge))


def test_nothing_is_kept_that_grows_with_the_rows_that_were_asked_for() -> None:
    made = stream(MANY, symbols="sequence", states="block:2")
    for n in range(300):
        made.rows(n * 65_536 + n, 3)
        made.permutations("symbols", n * 2**40, 2)
        assert len(made._on) == 1
        kept = sorted(table.numel() for _, table in made._shuffled.values())
        assert kept == [2 * 4, 2 * 11]  # shuffles of two blocks, and of two rows


RARE = 1e-6


def transitions(rows: Tensor, states: int) -> Tensor:
    """How often each state follows each, of tokens that are states."""
    found = torch.zeros(states * states, dtype=torch.float64)
    for part in rows.split(20_000):
        part = part.long()
        found += counts(part[:, :-1] * states + part[:, 1:], states * states)
    return found.view(states, states)


def test_states_follow_each_other_as_often_as_the_model_says() -> None:
    chain = np.array([[0.6 - RARE, 0.4, RARE], [0.75, 0.0, 0.25], [0.3, 0.7 - 2e-5, 2e-5]])
    made = stream((np.array([1.0, 0.0, 0.0]), chain, np.eye(3)), length=100, seed=2)
    found = transitions(made.rows(2**33, 200_000), 3)
    for row, weights in zip(found, quantise("chain", chain)):
        assert p_value(row, row.sum() * torch.from_numpy(weights) / UNIT) > 1e-4


@pytest.mark.parametrize("symbols", [5, 300])
def test_symbols_are_emitted_as_often_as_the_model_says(symbols: int) -> None:
    """The states alternate, so every position has its own."""
    rare = np.zeros((2, symbols))
    rare[0, 0], rare[1, 1], rare[1, -1] = RARE, 3 * RARE, 1e-4
    common = np.random.default_rng(0).uniform(0.5, 1, size=(2, symbols)) * (rare == 0)
    common[0, 1] = 0.0
    emission = rare + common * (1 - rare.sum(1, keepdims=True)) / common.sum(1, keepdims=True)
    alternate = np.array([[0.0, 1.0], [1.0, 0.0]])
    made = stream((np.array([1.0, 0.0]), alternate, emission), length=100, seed=2)
    weights = torch.from_numpy(quantise("emission", emission))
    found = torch.zeros(2, symbols, dtype=torch.float64)
    for first in range(0, 200_000, 20_000):
        rows = made.rows(first, 20_000).long()
        for state in range(2):
            found[state] += counts(rows[:, state::2], symbols)
    for row, expected in zip(found, weights):
        assert p_value(row, row.sum() * expected / UNIT) > 1e-4


def test_first_tokens_come_as_often_as_the_start_says() -> None:
    start = np.array([RARE, 0.5, 0.0, 0.3, 0.2 - RARE])
    made = stream((start, np.eye(5), np.eye(5)), length=1, seed=3)
    found = counts(made.rows(2**62, 8_000_000), 5)
    assert p_value(found, 8_000_000 * torch.from_numpy(quantise("start", start)[0]) / UNIT) > 1e-4


def test_shuffled_states_and_permuted_symbols_leave_the_chain_as_it_is() -> None:
    """Permutations of all rows average to even symbols, and a row's own chain is the model's behind them."""
    chain = random_model(4, 4, seed=5, concentration=2.0)[1]
    made = stream((np.full(4, 0.25), chain, np.eye(4)), length=50, symbols="sequence", states="block:3", seed=4)
    rows = made.rows(0, 20_000).long()
    shown = made.permutations("symbols", 0, 20_000).argsort(1)
    behind = made.permutations("states", 0, 20_000).argsort(1)
    found = transitions(behind.gather(1, shown.gather(1, rows)), 4)
    for row, weights in zip(found, quantise("chain", chain)):
        assert p_value(row, row.sum() * torch.from_numpy(weights) / UNIT) > 1e-4


def test_a_stationary_start_holds_at_every_position() -> None:
    _, chain, emission = random_model(6, 9, seed=7)
    start = stationary(chain)
    made = stream((start, chain, emission), length=30, seed=5)
    expected = 100_000 * torch.from_numpy(start @ emission)
    rows = made.rows(0, 100_000).long()
    for position in (0, 1, 2, 15, 29):
        assert p_value(counts(rows[:, position], 9), expected) > 1e-4
    other = stream((np.eye(6)[0], chain, emission), length=30, seed=5).rows(0, 100_000).long()
    assert p_value(counts(other[:, 0], 9), expected) < 1e-4
