"""The last number that something holds for, against looking at every one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoestring.core.numeric import last_that_holds


@given(first=st.integers(1, 50), more=st.integers(0, 5000))
def test_it_is_the_last_of_all(first: int, more: int) -> None:
    last = first + more
    assert last_that_holds(lambda n: n <= last, first) == max(n for n in range(first, last + 2) if n <= last)


def test_what_always_holds_has_no_last() -> None:
    assert last_that_holds(lambda _: True, 3, 1000) is None
