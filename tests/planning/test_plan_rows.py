"""The rows of a plan are those of the store that is prepared by it, however documents are packed."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_make import PROFILE

from shoestring.core import recipe_file
from shoestring.core.recipe import Recipe
from shoestring.core.records import Plan
from shoestring.data.pack.packed import PackedSource
from shoestring.data.read.corpora import open_source
from shoestring.data.read.density import measure_density
from shoestring.data.store.prepare import prepare
from shoestring.planning.make import make_plan

MEAN = 60
"""Bytes of a document; they are 20 to 100."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    chance = random.Random(0)
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text("".join("x" * chance.randint(20, 2 * MEAN - 20) + "\n" for _ in range(4000)))
    return path


def recipe(folder: Path, budget: dict[str, Any], **data: Any) -> Recipe:
    values = {
        "budget": budget,
        "data": {"heldout": 0.1, "packing": "pad", "folder": str(folder)} | data,
        "train": {"batch": 8, "lr": 1e-3},
        "evaluate": {"rows": 40},
    }
    return recipe_file.build(values, "test")


def planned(made: Recipe) -> Plan:
    density = measure_density(open_source(made.data, 0), made.data)
    return make_plan(made, replace(PROFILE, density=density, length=made.data.length), lambda *_: 0)


def rows_in_store(made: Recipe, plan: Plan) -> dict[str, int]:
    store = prepare(made.data, 0, None if plan.every_entry else plan.entries)
    assert store is not None
    length, packing = made.data.length, made.data.packing
    if packing == "concat":
        return {split: len(store.split(split, length)) for split in ("train", "heldout")}
    return {split: len(PackedSource(store, split, length, packing)) for split in ("train", "heldout")}


@pytest.mark.parametrize(
    ("packing", "length", "rows", "tolerance"),
    [
        ("pad", 200, 3600, 0.02),  # a row holds any document
        ("pad", 100, 3600, 0.12),  # so does this one, but the plan knows the mean alone
        ("pad", 60, 3600 * 1.5, 0.03),  # half of them take two rows
        ("pad", 7, 3600 * (MEAN / 7 + 0.5), 0.03),
        ("concat", 200, 3600 * (MEAN + 1) / 200, 0.03),
        ("best_fit", 200, 3600 * (MEAN + 1) / 200, 0.03),
    ],
)
def test_an_epoch_reads_as_many_rows_as_the_store_has(
    corpus: Path, tmp_path: Path, packing: str, length: int, rows: float, tolerance: float
) -> None:
    made = recipe(tmp_path, {"epochs": 1.0}, source=f"text:{corpus}", packing=packing, length=length)
    plan = planned(made)
    assert plan.samples is not None and plan.epochs is not None
    assert plan.samples == pytest.approx(rows, rel=tolerance)
    found = rows_in_store(made, plan)["train"]
    assert found == pytest.approx(rows, rel=tolerance)
    assert plan.samples / plan.epochs == pytest.approx(found, rel=tolerance)


@pytest.mark.parametrize(("length", "tolerance"), [(1500, 0.02), (256, 0.06)])
def test_an_endless_corpus_has_a_row_for_every_sample_and_those_held_out(
    tmp_path: Path, length: int, tolerance: float
) -> None:
    """Stories have 500 to 850 bytes: a row of 1500 holds any of them, and one of 256 none."""
    made = recipe(tmp_path, {"steps": 100}, tokenizer="bytes", length=length)
    plan = planned(made)
    found = rows_in_store(made, plan)
    assert plan.samples == 800
    assert found["train"] == pytest.approx(800, rel=tolerance)
    assert found["heldout"] >= 40
    assert plan.epochs == pytest.approx(1.0, rel=0.01)


def test_a_short_run_reads_enough_documents_for_the_held_out_rows(tmp_path: Path) -> None:
    """A document a row, a tenth of them held out: 40 rows are 400 documents."""
    plan = planned(recipe(tmp_path, {"steps": 1}, length=5000))
    assert plan.entries is not None
    assert 400 <= plan.entries <= 402
