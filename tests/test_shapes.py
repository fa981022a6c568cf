"""The checks of shapes look at what has shapes, and at nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import shapes
import torch
from jaxtyping import Float, Int, TypeCheckError
from torch import Tensor

Rows = Int[Tensor, "rows tokens"]
Pair = tuple[Float[Tensor, " n"], Float[Tensor, " n"]]
Draw = Callable[[Float[Tensor, " n"]], Tensor]


def plain(a: Tensor, b: int) -> list[int]:
    return [b, *a.shape]


def direct(a: Float[Tensor, "n m"], b: Float[Tensor, " m"]) -> Tensor:
    return a @ b


def by_name(ids: Rows) -> Tensor:
    return ids


def within(pair: Pair | None) -> None: ...


def called(draw: Draw) -> None: ...


def returned() -> Rows:
    return torch.zeros(2, dtype=torch.int64)


@pytest.mark.parametrize(
    ("function", "has"),
    [(plain, False), (direct, True), (by_name, True), (within, True), (called, True), (returned, True)],
)
def test_what_has_shapes(function: Callable[..., object], has: bool) -> None:
    assert shapes._has_shapes(function) is has


def test_a_wrong_shape_is_told_and_a_function_without_shapes_is_left() -> None:
    import beartype

    decorate = shapes._jaxtyped(typechecker=beartype.beartype)
    assert decorate(plain) is plain
    checked = decorate(direct)
    assert checked(torch.zeros(2, 3), torch.zeros(3)).shape == (2,)
    with pytest.raises(TypeCheckError):
        checked(torch.zeros(2, 3), torch.zeros(2))
    with pytest.raises(TypeCheckError):
        decorate(returned)()
