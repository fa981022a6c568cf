"""Recipes of streams: every contradiction in one message, and what their fingerprints depend on."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from recipe_values import assert_lines_begin, problems_of, recipe_of

from shoestring.core.hmm_sections import Stream
from shoestring.core.recipe import Recipe, differences
from shoestring.core.recipe_file import dump, load

OTHER: dict[str, Any] = {
    "symbols": "sequence",
    "states": "pool:5",
    "start": "stationary",
    "chain": "zipf",
    "fewest": 4,
    "most": 9,
    "concentration": 2,
    "exponent": 0.5,
}


def made(name: str = "hmm:runs/an-hmm", **sections: dict[str, Any]) -> Recipe:
    return recipe_of({"data": {"stream": name}} | sections)


# --- contradictions


def test_all_that_a_stream_contradicts_is_one_message() -> None:
    lines = problems_of(
        {
            "budget": {"epochs": 2.0},
            "data": {"stream": "markov:5", "source": "text:a.txt", "documents": 100, "tokenizer": "words:9"},
            "stream": {"fewest": 8, "most": 6},
            "hmm": {"states": 4},
        }
    )
    begins = (
        'data.stream = "markov:5": an HMM is fitted to a source',
        'data.source = "text:a.txt" and data.stream = "markov:5": give one of the two',
        "data.documents = 100: a stream has rows, not documents",
        "budget.epochs: a stream is endless",
        "stream.fewest = 8: must be at most stream.most = 6",
        'data.stream = "markov:5": must have stream.most = 6 to 65536 symbols',
    )
    assert_lines_begin(lines, begins)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"budget": {"steps": 5, "epochs": 1.0}, "data": {"stream": "hmm:a"}}, "budget.epochs"),
        ({"data": {"stream": "hmm:a", "documents": 5}}, "data.documents = 5"),
        ({"data": {"stream": "hmm:a", "source": "store:b"}}, "give one of the two"),
        ({"data": {"stream": "markov:20"}, "stream": {"fewest": 7, "most": 6}}, "stream.fewest = 7"),
        ({"data": {"stream": "markov:9"}}, "must have stream.most = 10 to 65536 symbols"),
        ({"data": {"stream": "markov:65537"}}, "SYMBOLS must be at most 65,536"),
        ({"stream": {}}, "stream: needs data.stream"),
        ({"stream": {"symbols": "sequence"}}, "stream: needs data.stream"),
    ],
)
def test_each_contradiction_alone_is_one_line(values: dict[str, Any], message: str) -> None:
    (line,) = problems_of(values)
    assert message in line


@pytest.mark.parametrize(
    "stream", ["", "hmm", "hmm:", "markov", "markov:", "markov:0", "markov:-3", "markov:x", "text:a", "hmm runs/a"]
)
def test_what_is_no_stream_is_refused_with_what_is_one(stream: str) -> None:
    (line,) = problems_of({"data": {"stream": stream}})
    assert line.startswith(f'data.stream = "{stream}"')
    assert '"hmm:RUN" or "markov:SYMBOLS"' in line


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("symbols", "sequences"),
        ("symbols", "block"),
        ("symbols", "block:0"),
        ("states", "pool:"),
        ("states", "pool:-1"),
        ("start", "anywhere"),
        ("chain", "ring"),
        ("fewest", 1),
        ("most", 65),
        ("concentration", 0),
        ("concentration", 1.5),
        ("exponent", 0.0),
        ("symbol", "none"),
    ],
)
def test_a_wrong_field_of_the_stream_is_named(name: str, value: Any) -> None:
    (line,) = problems_of({"data": {"stream": "hmm:a"}, "stream": {name: value}})
    assert f"stream.{name}" in line


@pytest.mark.parametrize(
    ("stream", "name", "value"),
    [("markov:20", "exponent", 9.0), ("hmm:a", "symbols", "pool:99999999"), ("hmm:a", "states", f"block:{1 << 63}")],
)
def test_what_no_stream_takes_is_no_recipe(stream: str, name: str, value: Any) -> None:
    (line,) = problems_of({"data": {"stream": stream}, "stream": {name: value}})
    assert f"stream.{name}" in line


# --- recipes that are right


@pytest.mark.parametrize("stream", ["hmm:runs/an-hmm", "hmm:a/model.safetensors", "markov:10", "markov:65536"])
def test_a_recipe_with_a_stream_is_whole_without_a_section_for_it(stream: str) -> None:
    recipe = made(stream)
    assert recipe.data.stream == stream
    assert recipe.stream is None


def test_a_small_alphabet_takes_small_chains() -> None:
    assert made("markov:4", stream={"fewest": 2, "most": 4}).stream == Stream(fewest=2, most=4)
    assert made("markov:2", stream={"fewest": 2, "most": 2}).stream == Stream(fewest=2, most=2)


@pytest.mark.parametrize("kind", ["none", "sequence", "block:1", "block:4096", "pool:300"])
def test_every_kind_of_permutation_is_read(kind: str) -> None:
    assert made(stream={"symbols": kind, "states": kind}).stream == Stream(symbols=kind, states=kind)


def test_the_written_recipe_reads_back_to_an_equal_one(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    for recipe in (made(), made(stream={}), made("markov:20"), made("markov:20", stream=OTHER)):
        path.write_text(dump(recipe))
        assert load(path) == recipe
        assert load(path).fingerprint == recipe.fingerprint


def test_the_fingerprint_depends_on_every_field_of_the_stream() -> None:
    assert OTHER.keys() == {field.name for field in dataclasses.fields(Stream)}
    base = made("markov:20", stream={})
    changed = [made("markov:20", stream={name: value}) for name, value in OTHER.items()]
    assert len({recipe.fingerprint for recipe in (base, *changed)}) == len(OTHER) + 1
    for recipe, (name, value) in zip(changed, OTHER.items()):
        assert differences(base, recipe) == [f"stream.{name} was {getattr(Stream(), name)}, is now {value}"]


def test_a_stream_in_place_of_a_source_is_another_recipe_and_another_workload() -> None:
    plain, one, two = recipe_of({}), made("markov:20"), made("markov:30")
    assert len({recipe.fingerprint for recipe in (plain, one, two)}) == 3
    assert len({recipe.workload for recipe in (plain, one, two)}) == 3, "the size of the vocabulary is theirs"
    assert differences(plain, one) == ["data.stream was None, is now markov:20"]


def test_how_rows_are_disguised_does_not_change_the_workload() -> None:
    assert made(stream={"symbols": "sequence"}).workload == made().workload


def test_another_store_is_another_workload() -> None:
    one, two, text = (recipe_of({"data": {"source": s}}) for s in ("store:a", "store:b", "text:c"))
    assert len({one.workload, two.workload, text.workload}) == 3
