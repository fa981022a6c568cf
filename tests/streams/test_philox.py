"""Philox: Random123's known answers, and the words of an implementation in plain integers."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoestring.streams import loops
from shoestring.streams.philox import Purpose, below, philox, words

UNIT = 2**32
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]
"""Counter, key and output, lowest word first."""

below_unit = st.one_of(st.integers(0, UNIT - 1), st.sampled_from([0, 1, 2**31 - 1, 2**31, UNIT - 1]))


def scalar_philox(counter: list[int], key: list[int]) -> list[int]:
    """Ten rounds as Salmon and others (2011) draw them: multiply two words of the counter, cross over, bump the key."""
    c, k = list(counter), list(key)
    for _ in range(10):
        product_a, product_b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [
            product_b // UNIT ^ c[1] ^ k[0],
            product_b % UNIT,
            product_a // UNIT ^ c[3] ^ k[1],
            product_a % UNIT,
        ]
        k = [(k[0] + 0x9E3779B9) % UNIT, (k[1] + 0xBB67AE85) % UNIT]
    return c


@lru_cache(maxsize=1000)
def _call(key: int, number: int, call: int, purpose: int) -> list[int]:
    return scalar_philox([number % UNIT, number // UNIT, call, purpose], [key % UNIT, key // UNIT])


def scalar_word(key: int, number: int, purpose: int, index: int) -> int:
    """Word `index` of those that are drawn for a number."""
    return _call(key, number, index // 4, purpose)[index % 4]


def _read(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN)
def test_known_answers(counter: str, key: str, output: str) -> None:
    (c0, c1, c2, c3), (k0, k1) = _read(counter), _read(key)
    assert scalar_philox([c0, c1, c2, c3], [k0, k1]) == _read(output)
    in_a_loop = loops._philox(*(np.uint64(word) for word in (k0, k1, c0, c1, c2, c3)))
    assert [int(word) for word in in_a_loop] == _read(output)
    if c1 < 2**31:  # numbers have 63 bits
        in_torch = philox(k0 + k1 * UNIT, torch.tensor([c0 + c1 * UNIT]), c2, c3)
        assert [int(word) for word in in_torch] == _read(output)


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 2**63 - 1),
    st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=5),
    below_unit,
    st.sampled_from([*map(int, Purpose), UNIT - 1]),
)
@example(2**63 - 1, [2**63 - 1, 0, UNIT - 1, UNIT], UNIT - 1, UNIT - 1)
@example(0xA4093822 + 0x299F31D0 * UNIT, [0x243F6A88 + 0x05A308D3 * UNIT], 0x13198A2E, 0x03707344)
def test_words_are_those_of_plain_integers(key: int, numbers: list[int], call: int, purpose: int) -> None:
    found = torch.stack(philox(key, torch.tensor(numbers), call, purpose), dim=1)
    assert found.dtype == torch.int64
    assert found.tolist() == [_call(key, number, call, purpose) for number in numbers]


def test_numbers_and_calls_broadcast() -> None:
    numbers, calls = torch.tensor([5, 2**40, 7]), torch.arange(4)
    found = philox(99, numbers[:, None], calls[None], Purpose.TOKENS)
    assert all(output.shape == (3, 4) for output in found)
    for call in range(4):
        alone = philox(99, numbers, call, Purpose.TOKENS)
        assert all(torch.equal(ours[:, call], theirs) for ours, theirs in zip(found, alone))


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 11])
def test_word_w_is_output_w_mod_4_of_call_w_div_4(count: int) -> None:
    numbers = [0, 3, 2**62 + 1]
    found = words(2**45 + 3, torch.tensor(numbers), count, Purpose.STATES_PICK)
    assert found.shape == (3, count)
    assert found.tolist() == [[scalar_word(2**45 + 3, number, 6, w) for w in range(count)] for number in numbers]


@given(st.lists(below_unit, min_size=1), st.one_of(st.integers(1, 2**31), st.sampled_from([1, 2, 2**31])))
def test_below_is_the_words_share_of_the_bound(drawn: list[int], bound: int) -> None:
    found = below(torch.tensor(drawn), bound).tolist()
    assert found == [word * bound // UNIT for word in drawn]
    assert all(0 <= number < bound for number in found)


def test_purposes_keep_their_numbers() -> None:
    assert {purpose.name: int(purpose) for purpose in Purpose} == {
        "TOKENS": 0,
        "SYMBOLS_SHUFFLE": 1,
        "STATES_SHUFFLE": 3,
        "SYMBOLS_PICK": 5,
        "STATES_PICK": 6,
        "CHAIN_SHAPE": 7,
        "CHAIN_ROWS": 8,
        "CHAIN_START": 9,
        "SYMBOLS_OWN": 10,
        "STATES_OWN": 11,
    }
