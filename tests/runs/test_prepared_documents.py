"""A second run of an endless corpus reads the store of the first."""

from __future__ import annotations

from pathlib import Path

import pytest
from profiles import write_profile

from shoestring.core.clock import Clock
from shoestring.core.recipe_file import load
from shoestring.runs.prepare import prepared_documents
from shoestring.runs.reporter import Reporter
from shoestring.runs.runner import run


def test_only_stores_of_the_same_text_count(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged one, another tokenizer's and another seed's are passed over."""
    monkeypatch.chdir(tiny.parent)
    tiny.write_text(tiny.read_text().replace("documents = 300\n", ""))
    settings = ["budget.steps=4"]
    recipe = load(tiny, settings)
    assert prepared_documents(recipe) == ()
    write_profile(tiny, *settings)
    finished = run(recipe, Reporter(), Clock(0.0))
    assert finished is not None and finished.plan.entries is not None
    assert prepared_documents(recipe) == (finished.plan.entries,)
    assert prepared_documents(load(tiny, [*settings, "run.seed=5"])) == ()
    assert prepared_documents(load(tiny, [*settings, 'data.tokenizer="bytes"'])) == ()
    assert prepared_documents(load(tiny, [*settings, "data.documents=50"])) == ()
    for manifest in Path(recipe.data.folder).glob("*/manifest.json"):
        manifest.write_text("{")
    assert prepared_documents(recipe) == ()
