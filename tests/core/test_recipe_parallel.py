"""Recipes with a strategy: what does not go together is refused, with what to do."""

from __future__ import annotations

from typing import Any

import pytest

from shoestring.core.errors import RecipeError
from shoestring.core.recipe import Recipe
from shoestring.core.recipe_file import build

NETWORK: dict[str, Any] = {"budget": {"steps": 100}, "train": {"batch": 8, "lr": 1e-3}}
HMM: dict[str, Any] = {"budget": {"epochs": 1}, "hmm": {}, "data": {"tokenizer": "words:100", "documents": 100}}


def recipe(parallel: dict[str, Any], train: dict[str, Any] | None = None, base: dict[str, Any] = NETWORK) -> Recipe:
    return build(base | {"parallel": parallel, "train": base.get("train", {}) | (train or {})}, "it")


@pytest.mark.parametrize(
    ("parallel", "train", "said"),
    [
        ({"sync_every": 5}, {}, 'parallel.sync_every: parallel.strategy = "sync" has none'),
        ({"batch_moments": True}, {}, 'it is for parallel.strategy = "local"'),
        ({"strategy": "local", "shard": True}, {}, "leave one of the two out"),
        ({"strategy": "local"}, {"ema": 0.9}, "train.ema: is a mean of the weights of one worker"),
        ({"strategy": "local", "sync_every": 3, "parts": 4}, {}, "must be at most parallel.sync_every = 3"),
        ({"strategy": "local"}, {"save_every": 30}, "must be a multiple of parallel.sync_every = 100"),
        ({"strategy": "local", "sync_spacing": "lr"}, {"save_every": 100}, "leave one of the two out"),
        ({"sync_spacing": "lr"}, {}, "parallel.sync_spacing: parallel.strategy = .sync. has none"),
        ({"strategy": "local"}, {"save_steps": "1,2"}, "give train.save_every, a multiple of 100"),
        ({"strategy": "local", "difference_bits": 5}, {}, "must be one of 4, 8, 32"),
        ({"strategy": "locla"}, {}, "parallel.strategy"),
        ({"max_staleness": 3}, {}, "it is for parallel.strategy = .async."),
        ({"strategy": "async", "workers": 4, "max_staleness": 2}, {}, "must be at least parallel.workers − 1 = 3"),
        ({"strategy": "async"}, {"precision": "fp16"}, "take .fp32. or .bf16."),
    ],
)
def test_what_does_not_go_together_is_refused(parallel: dict[str, Any], train: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        recipe(parallel, train)


def test_an_hmm_has_one_strategy() -> None:
    assert recipe({"strategy": "sync"}, base=HMM).strategy == "sync"
    with pytest.raises(RecipeError, match="is for networks"):
        recipe({"strategy": "local"}, base=HMM)


def test_a_section_without_new_fields_has_the_fingerprint_that_it_had() -> None:
    assert recipe({}).fingerprint == recipe({"shard": False}).fingerprint
    assert recipe({}).fingerprint != recipe({"strategy": "local"}).fingerprint
    assert recipe({}).workload != recipe({"strategy": "local"}).workload
