"""Bits per byte are of the rows that are scored, also where the text is not the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoestring.core.recipe import Recipe
from shoestring.core.recipe_file import build
from shoestring.data.tokenize.tokenizers import spelled_bytes
from shoestring.datasets.corpus import StoreCorpus
from shoestring.runs.prepare import prepare_recipe
from shoestring.runs.reporter import Reporter

SHORT, LONG = "ab", "a much longer line, in which a document ends far less often than in the first ones"


@pytest.fixture
def uneven(tmp_path: Path) -> Path:
    """Short documents, and then long ones."""
    path = tmp_path / "uneven.txt"
    path.write_text("\n".join([*(f"{SHORT}{n % 7}" for n in range(800)), *(f"{LONG} {n}" for n in range(200))]))
    return path


def recipe_of(text: Path, rows: int, model: dict[str, Any] | None = None, **data: Any) -> Recipe:
    data = {"source": f"text:{text}", "length": 32, "heldout": 0.5, "folder": str(text.parent / "stores")} | data
    values = {
        "budget": {"steps": 5},
        "train": {"batch": 2, "lr": 1e-3},
        "evaluate": {"rows": rows},
        "model": model or {},
    }
    return build(values | {"data": {"tokenizer": "bytes"} | data}, "test")


PERCEIVER = {"family": "perceiver_ar", "width": 16, "layers": 2, "heads": 2, "latents": 8}


@pytest.mark.parametrize(
    ("model", "data"), [({}, {}), (PERCEIVER, {}), ({}, {"packing": "best_fit", "document_mask": True})]
)
def test_bytes_are_those_of_the_tokens_scored(model: dict[str, Any], data: dict[str, Any], uneven: Path) -> None:
    recipe = recipe_of(uneven, 4, model, **data)
    store = prepare_recipe(recipe, None, Reporter())
    corpus = StoreCorpus(recipe, store)
    batch = corpus.heldout()
    scored = batch.targets()[batch.predicted()].numpy()
    texts = [bytes(int(i) - 6 for i in part if i >= 6) for part in np.split(scored, np.flatnonzero(scored < 6))]
    assert corpus.bytes_per_token == pytest.approx(sum(map(len, texts)) / len(scored))
    assert corpus.bytes_per_token != store.split("heldout", 32).bytes_per_token


def test_of_a_whole_split_it_is_what_preparing_counted(uneven: Path) -> None:
    recipe = recipe_of(uneven, 10**6)
    store = prepare_recipe(recipe, None, Reporter())
    assert StoreCorpus(recipe, store).bytes_per_token == store.split("heldout", 32).bytes_per_token


def test_subwords_spell_their_text_without_its_ends() -> None:
    tokenizers = Path(__file__).parents[3] / "shared/data/tokenizers"
    if not tokenizers.is_dir():
        pytest.skip("needs ../shared/data")
    from shoestring.data.tokenize.subwords import load_subwords

    tokenizer = load_subwords(f"file:{tokenizers}/gpt2", "<|endoftext|>")
    texts = ["Hello there, world.", "日本語の文章です。", "", "naïve café"]
    ids = np.concatenate([part for text in texts for part in (tokenizer.encode(text), [tokenizer.end])])
    assert spelled_bytes(tokenizer, ids) == sum(len(text.encode()) for text in texts)
