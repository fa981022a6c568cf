"""Recipes of every family: the smallest good one, and a line for each contradiction."""

from __future__ import annotations

from typing import Any

import pytest
from recipe_values import assert_lines_begin, problems_of, recipe_of

from shoestring.core.recipe import Recipe
from shoestring.core.registry import registry
from shoestring.core.sections import Model

SMALLEST: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama"},
    "swift": {"family": "swift"},
    "gpt2": {"family": "gpt2"},
    "perceiver_ar": {"family": "perceiver_ar", "latents": 8},
    "masked_lm": {"family": "masked_lm"},
    "hf": {"family": "hf", "name": "gpt2"},
}
OTHER: dict[str, Any] = {
    "name": "gpt2",
    "width": 64,
    "layers": 2,
    "heads": 4,
    "kv_heads": 2,
    "hidden": 32,
    "tied": False,
    "bias": True,
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "output_dropout": 0.2,
    "word_dropout": 0.3,
    "rotary_base": 500.0,
    "rotary_scaling": "linear:2",
    "norm_eps": 1e-6,
    "parts": "relu2",
    "pairs": 1000,
    "pointer": 16,
    "window": 64,
    "full_every": 2,
    "positions": 512,
    "classes": 3,
    "latents": 8,
    "prefix_dropout": 0.25,
}
"""A value of each field of a model that is not its default."""
SHARED = {"width", "layers", "heads", "hidden", "tied", "dropout"}
DECODER = SHARED | {"attention_dropout", "output_dropout", "word_dropout"}
HAVE = {
    "llama": DECODER | {"kv_heads", "bias", "rotary_base", "rotary_scaling", "norm_eps"},
    "swift": DECODER
    | {"kv_heads", "rotary_base", "rotary_scaling", "norm_eps", "parts", "pairs", "pointer", "window", "full_every"},
    "gpt2": DECODER | {"positions"},
    "perceiver_ar": SHARED | {"latents", "prefix_dropout"},
    "masked_lm": SHARED | {"positions", "classes"},
    "hf": {"name"},
}
LABELLED = {"label": "class", "source": "csv:a.csv"}


def made(model: dict[str, Any], data: dict[str, Any] | None = None) -> Recipe:
    return recipe_of({"model": model, "data": data or {}})


def problems(model: dict[str, Any], data: dict[str, Any] | None = None) -> tuple[str, ...]:
    return problems_of({"model": model, "data": data or {}})


def test_every_family_has_a_smallest_recipe() -> None:
    assert set(SMALLEST) == set(registry("family"))
    for family, model in SMALLEST.items():
        assert made(model).model.family == family


def test_every_field_is_in_the_table() -> None:
    assert set(OTHER) == set(Model.__dataclass_fields__) - {"family", "init", "options", "size"}
    assert set.union(*HAVE.values()) == set(OTHER)
    for name, value in OTHER.items():
        assert getattr(Model(), name) != value


@pytest.mark.parametrize("family", SMALLEST)
@pytest.mark.parametrize("name", OTHER)
def test_a_field_is_for_some_families(family: str, name: str) -> None:
    model = SMALLEST[family] | {name: OTHER[name]}
    data = LABELLED if name == "classes" and family == "masked_lm" else None
    if name == "full_every" and family == "swift":
        model["window"] = 64
    if name in HAVE[family]:
        assert getattr(made(model, data).model, name) == OTHER[name]
        return
    families = [each for each in ("hf", "llama", "swift", "gpt2", "perceiver_ar", "masked_lm") if name in HAVE[each]]
    line = f'model.{name}: model.family = "{family}" has none; it is for {" and ".join(families)}'
    assert line in problems(model, data)


@pytest.mark.parametrize("family", SMALLEST)
def test_any_family_may_start_from_weights(family: str) -> None:
    assert made(SMALLEST[family] | {"init": "runs/a"}).model.init == "runs/a"


ENCODER, PERCEIVER = SMALLEST["masked_lm"], SMALLEST["perceiver_ar"]
CONTRADICTIONS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no name": ({"family": "hf"}, {}, 'model.name: missing; family "hf" needs a hub name or a folder'),
    "heads of a llama": (
        {"width": 24, "heads": 8},
        {},
        "model.heads = 8: must divide model.width = 24 into even parts",
    ),
    "heads of a llama that do not divide": (
        {"width": 25, "heads": 8},
        {},
        "model.heads = 8: must divide model.width = 25 into even parts",
    ),
    "heads of GPT-2": (
        {"family": "gpt2", "width": 25, "heads": 8},
        {},
        "model.heads = 8: must divide model.width = 25",
    ),
    "heads of an encoder": (ENCODER | {"width": 25}, {}, "model.heads = 8: must divide model.width = 25"),
    "heads of a Perceiver": (PERCEIVER | {"width": 25}, {}, "model.heads = 8: must divide model.width = 25"),
    "documents of a Perceiver's row": (
        PERCEIVER,
        {"document_mask": True},
        'data.document_mask: model.family = "perceiver_ar" attends over whole rows',
    ),
    "kv_heads": ({"heads": 8, "kv_heads": 3}, {}, "model.kv_heads = 3: must divide model.heads = 8"),
    "full attention in all layers": (
        {"family": "swift", "full_every": 3},
        {},
        "model.full_every = 3: needs model.window, the positions of local attention",
    ),
    "positions of GPT-2": (
        {"family": "gpt2", "positions": 9},
        {"length": 10},
        "model.positions = 9: must be at least data.length = 10",
    ),
    "positions of an encoder": (
        ENCODER | {"positions": 255},
        {},
        "model.positions = 255: must be at least data.length = 256",
    ),
    "no latents": (
        {"family": "perceiver_ar"},
        {},
        "model.latents: missing; a Perceiver AR predicts so many of the last positions of a row",
    ),
    "latents longer than the row": (
        PERCEIVER | {"latents": 11},
        {"length": 10},
        "model.latents = 11: must be at most data.length = 10",
    ),
    "a label without classes": (ENCODER, LABELLED, "data.label and model.classes: give both, or none of the two"),
    "classes without a label": (
        ENCODER | {"classes": 3},
        {},
        "data.label and model.classes: give both, or none of the two",
    ),
    "a factor of nothing": (
        {"rotary_scaling": "linear:0"},
        {},
        'model.rotary_scaling = "linear:0": its factor must be at least 1',
    ),
    "frequencies the wrong way round": (
        {"rotary_scaling": "llama3:8:4:1:32"},
        {},
        'model.rotary_scaling = "llama3:8:4:1:32": LOW 4 must be above 0 and below HIGH 1',
    ),
    "heads of one channel": (
        {"family": "perceiver_ar", "latents": 8, "width": 32, "heads": 32},
        {},
        "model.heads = 32: must divide model.width = 32 into 2 or more each",
    ),
    "masked": (
        {},
        {"masked": 0.2},
        'data.masked: model.family = "llama" has none; it is for masked_lm and hf',
    ),
    "whole words": (
        {},
        {"whole_words": True},
        'data.whole_words: model.family = "llama" has none; it is for masked_lm and hf',
    ),
    "documents of an encoder's row": (
        ENCODER,
        {"document_mask": True},
        'data.document_mask: model.family = "masked_lm" attends over whole rows',
    ),
    "a label of stories": (
        ENCODER | {"classes": 3},
        {"label": "class"},
        'data.label = "class": needs a source with columns: jsonl, csv, parquet or hf',
    ),
    "a label of a stream": (
        ENCODER | {"classes": 3},
        {"label": "class", "stream": "markov:12"},
        'data.label = "class": needs a source with columns: jsonl, csv, parquet or hf',
    ),
    "a label of a store": (
        ENCODER | {"classes": 3},
        {"label": "class", "source": "store:a"},
        "data.label: store:a exists already, with its own documents",
    ),
}


@pytest.mark.parametrize(("model", "data", "line"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_a_contradiction_has_one_line(model: dict[str, Any], data: dict[str, Any], line: str) -> None:
    assert problems(model, data) == (line,)


def test_a_label_of_another_family_is_refused() -> None:
    lines = problems({"family": "llama", "classes": 3}, LABELLED)
    assert set(lines) == {
        'model.classes: model.family = "llama" has none; it is for masked_lm',
        'data.label: model.family = "llama" has none; it is for masked_lm',
    }


def test_all_contradictions_are_one_message() -> None:
    lines = problems(
        {"family": "perceiver_ar", "width": 25, "heads": 8, "kv_heads": 3, "latents": 300, "name": "x"},
        {"document_mask": True, "masked": 0.5},
    )
    begins = ["model.kv_heads: ", "model.name: ", "model.heads = 8", "data.document_mask: "]
    begins += ["model.latents = 300", "data.masked: "]
    assert_lines_begin(lines, begins)


@pytest.mark.parametrize(
    ("model", "data"),
    [
        ({"width": 32, "heads": 4, "kv_heads": 4}, {}),
        (PERCEIVER | {"latents": 10}, {"length": 10}),
        ({"family": "gpt2", "positions": 10}, {"length": 10}),
        (ENCODER | {"classes": 3}, LABELLED),
        (ENCODER | {"classes": 3}, {"label": "class", "source": "hf:some/set"}),
        (ENCODER, {"masked": 0.3, "whole_words": True}),
        (ENCODER, {"stream": "markov:12"}),
        (PERCEIVER, {"random_offset": True}),
    ],
    ids=["all kv heads", "all latents", "as many positions", "csv", "hub", "whole words", "stream", "offset"],
)
def test_what_is_just_right_is_taken(model: dict[str, Any], data: dict[str, Any]) -> None:
    assert isinstance(made(model, data), Recipe)
