"""The runs of a sweep against plain enumeration, and every mistake by its name."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from shoestring.core import recipe_file
from shoestring.core.errors import RecipeError
from shoestring.studies.sweep.grid import read_grid


def settings(runs: tuple) -> list[tuple]:
    return [tuple(run.values.values()) for run in runs]


def test_a_grid_is_every_combination_and_seeds_come_last(tiny: Path) -> None:
    found = read_grid(tiny, ["run.seed=5"], ["train.lr=1e-3,3e-3", "model.width=16,32,64"], seeds=2)
    each = list(itertools.product((1e-3, 3e-3), (16, 32, 64)))
    assert settings(found.runs) == [(*point, seed) for seed in (5, 6) for point in each]
    for run in found.runs:
        assert (run.recipe.train.lr, run.recipe.model.width, run.recipe.run.seed) == tuple(run.values.values())
    assert found.runs[0].name == "tiny-lr0.001-width16-seed5"
    assert len({run.name for run in found.runs}) == len(found.runs) == found.axes.count


def test_zipped_fields_go_together_beside_the_grid(tiny: Path) -> None:
    found = read_grid(tiny, (), ["train.lr=1e-3,3e-3"], ["model.width=16,32", "train.batch=4,8"])
    assert settings(found.runs) == [(lr, *pair) for lr in (1e-3, 3e-3) for pair in ((16, 4), (32, 8))]


def test_the_table_of_a_recipe_is_a_sweep_and_options_take_its_place(tiny: Path) -> None:
    tiny.write_text(
        tiny.read_text() + '\n[sweep]\nseeds = 2\ntime = "1h"\n[sweep.over]\ntrain.lr = [1e-3, 3e-3]\n'
        "[sweep.zip]\nmodel.width = [16, 32]\nmodel.layers = [1, 2]\n"
    )
    found = read_grid(tiny)
    assert len(found.runs) == 8
    assert found.axes.fields == ("train.lr", "model.width", "model.layers")
    assert found.sweep.time == 3600
    assert settings(read_grid(tiny, (), ["train.lr=1e-2"], seeds=1).runs) == [(1e-2, 16, 1, 0), (1e-2, 32, 2, 0)]
    with pytest.raises(RecipeError, match="shoestring sweep RECIPE"):
        recipe_file.load(tiny)


def test_names_are_folders_and_differ_where_values_do(tiny: Path) -> None:
    odd = read_grid(tiny, (), ["data.source=text:a/b.txt,text:a-b.txt"])
    first, second = (run.name for run in odd.runs)
    assert first == "tiny-sourcetexta-b.txt"
    assert second.startswith(first) and second != first
    long = read_grid(tiny, (), [f"data.source=text:{'x' * 300},text:{'x' * 301}"])
    assert all(len(run.name) < 40 for run in long.runs)
    assert len({run.name for run in long.runs}) == 2
    assert [run.name for run in read_grid(tiny).runs] == ["tiny"]


@pytest.mark.parametrize(
    ("over", "zipped", "line"),
    [
        (["states"], [], "--over states: write it as section.field=a,b,c"),
        (["train.lr=1,,2"], [], "--over train.lr=1,,2: write it as"),
        (["train.lr=1"], ["train.lr=2"], "train.lr: is both in over and in zip"),
        (["run.name=a,b"], [], "run.name: cannot be swept"),
        (["run.seed=1,2"], [], "run.seed: is swept, and seeds are given too"),
        (["train.lr=1e-3,1e-3"], [], "train.lr: has the same value twice"),
        ([], ["train.lr=1,2", "train.batch=1,2,3"], "train.lr has 2, train.batch has 3"),
        (["train.lr=1", "train.lr=2"], [], "train.lr is given twice"),
        (["train.lrr=1,2"], [], "train.lrr: unknown field"),
        (["train.lr=1e-3,fast"], [], 'train.lr = "fast"'),
    ],
)
def test_mistakes_are_named(over: list[str], zipped: list[str], line: str, tiny: Path) -> None:
    with pytest.raises(RecipeError, match=r"tiny\.toml") as caught:
        read_grid(tiny, (), over, zipped, seeds=2)
    assert line in str(caught.value)


def test_too_many_runs_are_refused_before_they_are_made(tiny: Path) -> None:
    with pytest.raises(RecipeError, match="at most 100,000"):
        read_grid(tiny, (), ["train.lr=1e-3,2e-3"], seeds=10**6)


def test_a_wrong_table_names_its_fields(tiny: Path) -> None:
    tiny.write_text(tiny.read_text() + "\n[sweep]\nseed = 3\nover = 4\n")
    with pytest.raises(RecipeError) as caught:
        read_grid(tiny)
    assert "sweep.seed: unknown field" in str(caught.value)
    assert "sweep.over = 4: must be a table" in str(caught.value)


def test_random_settings_are_some_of_the_grid_the_same_for_a_seed(tiny: Path) -> None:
    over = ["train.lr=1e-3,2e-3,3e-3,4e-3", "model.width=16,32,64"]
    every = settings(read_grid(tiny, (), over, ["model.layers=1,2", "train.batch=4,8"]).runs)
    drawn = [
        settings(read_grid(tiny, [f"run.seed={seed}"], over, ["model.layers=1,2", "train.batch=4,8"], random=7).runs)
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(set(drawn[0])) == 7
    assert drawn[0] == [each for each in every if each in drawn[0]], "in the order of the grid"
    assert settings(read_grid(tiny, (), over, random=99).runs) == settings(read_grid(tiny, (), over).runs)
    assert len(read_grid(tiny, (), over, random=5, seeds=2).runs) == 10
