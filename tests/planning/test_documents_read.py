"""How many documents are read of every source: as many as the steps need, and a quarter more."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_make import PROFILE

from shoestring.core.recipe import Recipe
from shoestring.core.recipe_file import build
from shoestring.core.records import Plan
from shoestring.data.read import hub
from shoestring.data.read.corpora import open_source
from shoestring.data.read.density import measure_density
from shoestring.data.store import work_units
from shoestring.data.store.prepare import planned_documents, scored_tokens
from shoestring.data.store.store import Store
from shoestring.planning import corpus as planning
from shoestring.planning.make import make_plan
from shoestring.runs.prepare import prepare_recipe
from shoestring.runs.reporter import Reporter

WORDS, DOCUMENTS, STEPS, BATCH, LENGTH, HELDOUT = 10, 40_000, 300, 4, 20, 0.1
NEEDED = STEPS * BATCH * LENGTH / (WORDS + 1) / (1 - HELDOUT)
"""Documents of ten words and an end; one epoch of them is what the steps read."""
TEXT = " ".join(["word"] * WORDS)
SOURCE = f"""
from pathlib import Path

def documents():
    with Path(__file__).with_name("read.txt").open("a") as file:
        for number in range({DOCUMENTS}):
            print(number, file=file)
            yield "{TEXT}"
"""


def recipe_of(folder: Path, source: str, **data: Any) -> Recipe:
    values = {
        "run": {"folder": str(folder / "runs")},
        "budget": {"steps": STEPS},
        "data": {"source": source, "tokenizer": "words:5", "length": LENGTH, "heldout": HELDOUT}
        | {"folder": str(folder / "stores")}
        | data,
        "train": {"batch": BATCH, "lr": 1e-3},
        "evaluate": {"rows": 4},
    }
    return build(values, "test")


def planned(recipe: Recipe) -> Plan:
    density = measure_density(open_source(recipe.data, 0), recipe.data)
    return make_plan(recipe, replace(PROFILE, density=density, length=LENGTH), lambda *_: 0)


def documents_in(store: Store, plan: Plan) -> int:
    """For training and held out, of as much as a run of this plan reads."""
    train = store.manifest.splits["train"].with_share(plan.share).documents
    return train + round(train * HELDOUT / (1 - HELDOUT))


def test_a_function_is_read_as_far_as_planned(tmp_path: Path) -> None:
    (tmp_path / "texts.py").write_text(SOURCE)
    recipe = recipe_of(tmp_path, f"{tmp_path}/texts.py:documents")
    plan = planned(recipe)
    assert plan.entries == planned_documents(recipe.data, plan) == math.ceil(1.25 * NEEDED)
    assert any("a quarter more" in line.reason for line in plan.lines if line.quantity == "documents")
    store = prepare_recipe(recipe, plan, Reporter())
    numbers = [int(number) for number in (tmp_path / "read.txt").read_text().split()]
    assert sum(split.documents for split in store.manifest.splits.values()) == plan.entries
    assert plan.entries <= max(numbers) + 1 <= plan.entries + 1, "one more tells that there are more"


def test_a_streamed_data_set_is_read_as_far_as_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    read: list[int] = []

    def rows() -> Iterator[dict[str, str]]:
        for number in range(DOCUMENTS):
            read.append(number)
            yield {"text": TEXT}

    streamed = datasets.IterableDataset.from_generator(rows)
    monkeypatch.setattr(hub, "_load", lambda *_: (streamed, "1"))
    recipe = recipe_of(tmp_path, "hf:some/text", streaming=True)
    plan = planned(recipe)
    assert plan.entries == math.ceil(1.25 * NEEDED)
    store = prepare_recipe(recipe, plan, Reporter())
    assert sum(split.documents for split in store.manifest.splits.values()) == plan.entries
    assert plan.entries <= max(read) + 1 <= plan.entries + hub._BATCH_ROWS, "in whole batches"


@pytest.mark.parametrize("kind", ["jsonl", "text"])
def test_a_large_file_is_read_as_far_as_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """In whole blocks, drawn over all of it."""
    monkeypatch.setattr(planning, "WHOLE_BYTES", 0)
    monkeypatch.setattr(work_units, "FIRST_BYTES", 1 << 16)
    line = json.dumps({"text": TEXT}) if kind == "jsonl" else TEXT
    path = tmp_path / f"large.{kind}"
    path.write_text(f"{line}\n" * DOCUMENTS)
    recipe = recipe_of(tmp_path, f"{kind}:{path}")
    plan = planned(recipe)
    assert plan.entries is not None and plan.share is not None
    assert plan.entries == pytest.approx(1.25 * NEEDED, rel=0.02)
    store = prepare_recipe(recipe, plan, Reporter())
    block = (1 << 16) / len(line)
    assert plan.entries <= documents_in(store, plan) + block
    assert documents_in(store, plan) <= plan.entries * work_units.GROWTH + 2 * block
    assert scored_tokens(recipe) <= store.manifest.splits["heldout"].tokens


def test_stories_are_read_to_the_number(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, "stories", tokenizer="bytes")
    plan = planned(recipe)
    store = prepare_recipe(recipe, plan, Reporter())
    assert sum(split.documents for split in store.manifest.splits.values()) == plan.entries
    assert plan.epochs == pytest.approx(1.0, rel=0.05)
