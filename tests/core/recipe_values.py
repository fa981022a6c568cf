"""Recipes from plain values: the least that every one needs, and what is wrong with one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from shoestring.core.errors import RecipeError
from shoestring.core.recipe import Recipe
from shoestring.core.recipe_file import build

LEAST: dict[str, dict[str, Any]] = {"budget": {"steps": 10}, "train": {"batch": 4}}


def recipe_of(values: dict[str, Any]) -> Recipe:
    """Of these sections, laid over the least."""
    return build(LEAST | values, "test")


def problems_of(values: dict[str, Any]) -> tuple[str, ...]:
    """What is wrong with a recipe that is refused; the message has all of it."""
    with pytest.raises(RecipeError) as caught:
        recipe_of(values)
    message = str(caught.value)
    assert all(line in message for line in caught.value.problems)
    return caught.value.problems


def assert_lines_begin(lines: Sequence[str], begins: Sequence[str]) -> None:
    """A line for each beginning, in any order, and no other."""
    assert len(lines) == len(begins), lines
    assert all(any(line.startswith(begin) for line in lines) for begin in begins), lines
