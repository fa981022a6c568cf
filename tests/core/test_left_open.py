"""What a recipe leaves open is chosen, where only its time is limited; what it gives is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shoestring as ss
from shoestring.core import recipe_file
from shoestring.core.recipe import Recipe

OPEN = {"model.size", "model.dropout", "budget.epochs"}
TEXT = {"source": "text:corpus.txt"}


def loaded(**sections: Any) -> Recipe:
    return ss.load({"run": {"name": "a"}, "budget": {"time": "5m"}, "data": TEXT} | sections)


def opened(recipe: Recipe) -> set[str]:
    return OPEN & set(recipe.autos)


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({}, OPEN),
        ({"train": {"lr": "auto", "optimizer": "muon"}}, OPEN),
        ({"train": {"lr": 1e-3}}, set()),
        ({"budget": {"tokens": 10**6}}, set()),
        ({"budget": {"time": "5m", "tokens": 10**6}}, set()),
        ({"budget": {"time": "5m", "epochs": 3.0}}, set()),
        ({"budget": {"time": "5m", "memory": "4 GB", "disk": "1 GB"}}, OPEN),
        ({"model": {"width": 256}}, OPEN - {"model.size"}),
        ({"model": {"dropout": 0.0}}, OPEN - {"model.dropout"}),
        ({"model": {"family": "gpt2"}}, OPEN),
        ({"model": {"family": "masked_lm"}, "data": TEXT | {"tokenizer": "words:100", "packing": "pad"}}, set()),
        ({"model": {"init": "runs/other"}}, set()),
        ({"data": {"source": "stories"}}, OPEN - {"budget.epochs"}),
        ({"data": {"source": "stories", "documents": 100}}, OPEN),
        ({"data": {"stream": "markov:10"}, "stream": {}}, OPEN - {"budget.epochs"}),
    ],
)
def test_what_is_not_given_is_chosen(sections: dict[str, Any], expected: set[str]) -> None:
    assert opened(loaded(**sections)) == expected


def test_overrides_count_as_given(tmp_path: Path) -> None:
    file = tmp_path / "recipe.toml"
    file.write_text('[run]\nname = "a"\n[budget]\ntime = "5m"\n[data]\nsource = "text:corpus.txt"\n')
    assert opened(recipe_file.load(file)) == OPEN
    assert opened(recipe_file.load(file, ["model.layers=2"])) == OPEN - {"model.size"}
    assert opened(recipe_file.load(file, ["train.lr=1e-3"])) == set()
    assert opened(recipe_file.load(file, values={"budget.epochs": 2.0})) == set()
    assert opened(recipe_file.read_base(file).with_values({"model.width": 64})) == OPEN - {"model.size"}


def test_a_run_keeps_what_was_left_open_for_it(tmp_path: Path) -> None:
    """Its recipe has every field; one that is missing there was None."""
    recipe = loaded()
    plain = recipe_file.replaced(recipe, {"budget.epochs": None})
    (tmp_path / "recipe.toml").write_text(recipe_file.dump(plain))
    assert recipe_file.load_own(tmp_path / "recipe.toml", tmp_path) == plain
    (tmp_path / "recipe.toml").write_text(recipe_file.dump(recipe))
    assert recipe_file.load_own(tmp_path / "recipe.toml", tmp_path) == recipe
    assert recipe_file.load(tmp_path / "recipe.toml") == recipe
