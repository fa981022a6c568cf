"""Every new shape, type and configuration is checked, and what was checked is not checked again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import shapes
import torch
from beartype import beartype
from jaxtyping import Float, Int, TypeCheckError
from torch import Tensor, nn

Rows = Int[Tensor, "rows tokens"]
Pair = tuple[Float[Tensor, " n"], Float[Tensor, " n"]]


def plain(a: Tensor, b: int) -> list[int]:
    return [b, *a.shape]


def direct(a: Float[Tensor, "n m"], b: Float[Tensor, " m"]) -> Tensor:
    return a @ b


def by_name(ids: Rows) -> Tensor:
    return ids


def within(pair: Pair | None) -> None: ...


class Wide(nn.Module):
    """Wrong from three columns on, though what comes in is the same."""

    def __init__(self, columns: int):
        super().__init__()
        self.columns = columns

    def forward(self, x: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
        return x if self.columns < 3 else x[:, :1]


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    return shapes._once(function, beartype)


@pytest.mark.parametrize(
    ("function", "good", "bad"),
    [
        (plain, (torch.ones(2), 3), (torch.ones(2), "3")),
        (direct, (torch.ones(2, 3), torch.ones(3)), (torch.ones(2, 3), torch.ones(2))),
        (by_name, (torch.ones(2, 3, dtype=torch.int64),), (torch.ones(2, dtype=torch.int64),)),
        (within, ((torch.ones(2), torch.ones(2)),), ((torch.ones(2), torch.ones(3)),)),
    ],
)
def test_what_is_wrong_is_found_after_what_is_right(function: Callable[..., Any], good: Any, bad: Any) -> None:
    call = checked(function)
    for _ in range(2):
        call(*good)
    for _ in range(2):
        with pytest.raises((TypeError, TypeCheckError)):
            call(*bad)
    assert shapes._has_shapes(function) == (function is not plain)


def test_modules_of_one_configuration_are_one_and_others_are_not() -> None:
    forward, x, known = checked(Wide.forward), torch.ones(2, 4), len(shapes._checked)
    for columns in (1, 1, 2, 2):
        forward(Wide(columns), x)
    assert len(shapes._checked) == known + 2
    with pytest.raises(TypeCheckError):
        forward(Wide(3), x)


def test_a_module_that_is_changed_while_it_is_made_is_another() -> None:
    module = Wide(1)
    before = shapes._kind(module)
    module.more = nn.Linear(2, 2)
    assert shapes._kind(module) != before
    assert shapes._kind(module.eval()) != shapes._kind(Wide(1).train())
