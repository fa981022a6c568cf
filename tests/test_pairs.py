"""Every two values of two axes meet, in far fewer rows than all."""

import itertools

import pytest
from pairs import pairs


@pytest.mark.parametrize("sizes", [(3,), (2, 3), (7, 3, 3), (2, 2, 2, 2), (4, 1, 3, 2)])
def test_every_two_values_meet(sizes: tuple[int, ...]) -> None:
    axes = [[f"{name}{value}" for value in range(size)] for name, size in zip("abcd", sizes)]
    found = pairs(*axes)
    for one, other in itertools.combinations(range(len(axes)), 2):
        met = {(row[one], row[other]) for row in found}
        assert met == set(itertools.product(axes[one], axes[other]))
    assert {row[0] for row in found} == set(axes[0])
    assert len(found) == len(set(found)) and found == pairs(*axes)
    if len(axes) > 1:
        first, second = sorted(sizes)[-2:]
        assert len(found) <= first * second + 2
