"""What a corpus keeps open."""

from __future__ import annotations

from pathlib import Path

import pytest

import shoestring as ss
from shoestring.baselines.ngram import count
from shoestring.datasets.corpus import StoreCorpus
from shoestring.runs.prepare import prepare_recipe
from shoestring.runs.reporter import Reporter

MAPS = Path("/proc/self/maps")


@pytest.mark.skipif(not MAPS.is_file(), reason="the system does not say what is mapped")
def test_a_store_that_was_counted_stays_mapped(tmp_path: Path) -> None:
    """The meter takes pages of files off the peak while they are mapped; closed, they pass for memory of the run."""
    data = {"source": "stories", "tokenizer": "bytes", "length": 32, "documents": 20, "heldout": 0.1}
    recipe = ss.load(
        {"budget": {"steps": 1}, "data": data | {"folder": str(tmp_path)}, "train": {"batch": 1, "lr": 1e-3}}
    )
    corpus = StoreCorpus(recipe, prepare_recipe(recipe, None, Reporter()))
    counted = int(count(corpus.training_tokens(), corpus.vocab_size).tokens.sum())
    assert counted == corpus.training_size
    assert str(tmp_path) in MAPS.read_text()
