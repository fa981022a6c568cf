"""Quantities that are known to lie between two values."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoestring.core.units import Bytes, Count, Interval, Seconds


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("200M", Count, (2e8, 2e8, 2e8)),
        ("200M..400M", Count, (2e8, 3e8, 4e8)),
        ("200M..250M..400M", Count, (2e8, 2.5e8, 4e8)),
        ("1h..3h", Seconds, (3600, 7200, 10800)),
        ("1GB..1GiB", Bytes, (1e9, (1e9 + 2**30) / 2, 2**30)),
    ],
)
def test_an_interval_is_two_values_or_three(text: str, kind: type[Count], expected: tuple[float, ...]) -> None:
    assert Interval.parse(text, kind.parse) == expected


@pytest.mark.parametrize("text", ["400M..200M", "1..2..3..4", "..", "5..", "1..x", "3..1..5"])
def test_what_is_no_interval_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"interval|not a count|unknown unit"):
        Interval.parse(text, Count.parse)


@pytest.mark.parametrize(
    ("kind", "text", "parts"),
    [
        (Seconds, "5GB", ("'5GB'", "of a size, not of a time", "d, h, m, s")),
        (Bytes, "5h", ("'5h'", "of a time, not of a size", "PB, TB")),
        (Count, "5ms", ("'5ms'", "of a time, not of a count")),
    ],
)
def test_a_unit_of_another_kind_is_named_with_both_kinds(kind: type[Count], text: str, parts: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="unknown unit") as caught:
        kind.parse(text)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


ends = st.tuples(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 10**6)).map(sorted)


@given(ends, ends, st.floats(0, 1), st.floats(0, 1))
def test_products_and_quotients_hold_those_of_any_two_values_within(
    first: list[int], second: list[int], share: float, other: float
) -> None:
    a, b = Interval(*map(float, first)), Interval(*map(float, second))
    x, y = (Fraction(i.low) + Fraction(s) * Fraction(i.high - i.low) for i, s in ((a, share), (b, other)))
    for result, value in ((a.times(b), x * y), (a.over(b), x / y)):
        assert float(value) <= result.high * (1 + 1e-9)
        assert float(value) >= result.low * (1 - 1e-9)


def test_ends_that_print_alike_are_not_printed() -> None:
    assert Interval(1.001, 1.0, 1.002).show(lambda value: f"{value:.1f}") == "1.0"
    assert Interval(1.0, 2.0, 3.0).show(lambda value: f"{value:.0f} s") == "2 s (1 s – 3 s)"
