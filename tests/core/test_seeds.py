"""Named seeds: the same for ever, and different for different names."""

from itertools import product

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shoestring.core.seeds import derive

GOLDEN = (4246866556266386882, 7618716077288863669, 447680564012281346, 8519295673929041133)

names = st.lists(st.text(max_size=8) | st.integers(-(10**6), 10**6), max_size=3)


def test_seeds_are_what_they_always_were() -> None:
    assert derive(0) == GOLDEN[0]
    assert derive(0, "order", 0) == GOLDEN[1]
    assert derive(0, "weights") == GOLDEN[2]
    assert derive(2**62, "heldout") == GOLDEN[3]


def test_a_number_and_its_text_are_different_names() -> None:
    assert derive(0, 1) != derive(0, "1")


def test_parts_of_a_name_do_not_run_together() -> None:
    assert len({derive(0, "ab", "c"), derive(0, "a", "bc"), derive(0, "abc"), derive(0, "ab", "c", "")}) == 4
    assert derive(1, 2) != derive(12)


def test_many_names_have_many_seeds() -> None:
    purposes = ("order", "weights", "heldout", "stories", "round")
    seeds = {derive(seed, name, i) for seed, name, i in product(range(10), purposes, range(200))}
    assert len(seeds) == 10 * len(purposes) * 200


@settings(deadline=None)
@given(st.integers(0, 2**64), names, names)
def test_different_names_differ_and_equal_names_agree(
    seed: int, first: list[str | int], second: list[str | int]
) -> None:
    assume("\x1f" not in "".join(map(str, first + second)))  # it parts the names, which are fixed words of the program
    same = [(type(a), a) for a in first] == [(type(b), b) for b in second]
    assert (derive(seed, *first) == derive(seed, *second)) is same


@settings(deadline=None)
@given(st.integers(0, 2**64), names)
def test_seeds_fit_in_63_bits(seed: int, name: list[str | int]) -> None:
    assert 0 <= derive(seed, *name) < 2**63


def test_seeds_use_the_whole_range() -> None:
    seeds = [derive(0, i) for i in range(1000)]
    assert all(400 < sum(seed >> bit & 1 for seed in seeds) < 600 for bit in range(63))
