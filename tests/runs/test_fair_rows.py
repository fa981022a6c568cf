"""Scored rows are drawn over the whole held-out split, and are the same for every run of a corpus."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoestring.core.hmm_sections import Hmm
from shoestring.core.recipe import Recipe
from shoestring.core.records import Plan
from shoestring.core.run_sections import Run
from shoestring.core.scoring_sections import Evaluate
from shoestring.core.sections import Data, Model
from shoestring.data.pack.order import drawn_rows
from shoestring.data.read.labels import read_labelled
from shoestring.data.store.prepare import prepare
from shoestring.data.store.sentence_store import prepare_rows
from shoestring.datasets.corpus import open_corpus
from shoestring.datasets.labelled import LabelledCorpus

ENGLISH, JAPANESE = 400, 3_200
SHARE = JAPANESE / (ENGLISH + JAPANESE)


def sentences() -> list[str]:
    """Documents of one language, then of another, of about as many bytes each."""
    return [f"the cat sat down {n:04d}" for n in range(ENGLISH)] + [f"ねこ が {n:06d} よ" for n in range(JAPANESE)]


def recipe_of(tmp_path: Path, seed: int = 0, rows: int = 64, **data: object) -> Recipe:
    path = tmp_path / "two_languages.txt"
    if not path.is_file():
        path.write_text("\n".join(sentences()), encoding="utf-8")
    settings = {"source": f"text:{path}", "tokenizer": "bytes", "length": 12, "heldout": 0.2} | data
    return Recipe(
        run=Run(seed=seed, folder=str(tmp_path / "runs")),
        data=Data(folder=str(tmp_path / "stores"), **settings),
        model=Model(width=16, layers=1, heads=1),
        evaluate=Evaluate(rows=rows),
    )


def scored(recipe: Recipe) -> np.ndarray:
    store = prepare(recipe.data, recipe.run.seed, None)
    return open_corpus(recipe, Plan(binding="steps"), store).heldout().ids.numpy()


def japanese(ids: np.ndarray) -> float:
    return float((ids >= 0x80).any(axis=1).mean())


@pytest.mark.parametrize("packing", ["concat", "best_fit", "pad"])
def test_rows_of_a_corpus_in_two_parts_come_from_both(tmp_path: Path, packing: str) -> None:
    ids = scored(recipe_of(tmp_path, packing=packing))
    assert len(ids) == 64
    deviation = (SHARE * (1 - SHARE) / 64) ** 0.5
    assert abs(japanese(ids) - SHARE) < 4 * deviation


def test_all_runs_of_a_corpus_are_scored_on_the_same_rows(tmp_path: Path) -> None:
    first, second = (scored(recipe_of(tmp_path, seed)) for seed in (0, 1))
    assert np.array_equal(first, second)


def test_fewer_rows_are_some_of_more(tmp_path: Path) -> None:
    few, many = ({row.tobytes() for row in scored(recipe_of(tmp_path, rows=rows))} for rows in (8, 64))
    assert few < many


def test_hidden_tokens_are_the_same_for_every_seed(tmp_path: Path) -> None:
    def hidden(seed: int) -> np.ndarray:
        recipe = recipe_of(tmp_path, seed)
        recipe = replace(recipe, model=Model(family="masked_lm", width=16, layers=1, heads=1))
        store = prepare(recipe.data, seed, None)
        corpus = open_corpus(recipe, Plan(binding="steps"), store)
        return corpus.heldout().targets().numpy()

    assert np.array_equal(hidden(0), hidden(1))


@given(n=st.integers(0, 500), wanted=st.integers(0, 600), more=st.integers(0, 100))
def test_drawn_rows_are_distinct_in_order_and_nested(n: int, wanted: int, more: int) -> None:
    rows = drawn_rows(wanted, n).tolist()
    assert rows == sorted(set(rows)) and len(rows) == min(wanted, n)
    assert set(rows) <= set(range(n)) & set(drawn_rows(wanted + more, n).tolist())


def test_every_row_is_as_likely_to_be_drawn() -> None:
    """Chi-square over 40 places, of 20 draws from each of 2,000 sizes."""
    counts = np.zeros(40)
    for n in range(1_000, 3_000):
        np.add.at(counts, drawn_rows(20, n) * 40 // n, 1)
    expected = counts.sum() / 40
    assert ((counts - expected) ** 2 / expected).sum() < 72.1  # the 99.9 % point of 39 degrees of freedom


def test_labelled_documents_are_drawn_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["text", "label"])
        table.writerows([text, int(index >= ENGLISH)] for index, text in enumerate(sentences()))
    recipe = recipe_of(tmp_path, source=f"csv:{path}", label="label")
    recipe = replace(recipe, model=Model(family="masked_lm", classes=2, width=16, layers=1, heads=1))
    held_out = LabelledCorpus(recipe).heldout_classes
    assert len(held_out) == 64 and 0.75 < held_out.mean() < 1.0
    few = list(read_labelled(replace(recipe.data, documents=200), 0, 2))
    assert len(few) == 200 and 0.75 < np.mean([document.label for document in few]) < 1.0
    everyone = list(read_labelled(recipe.data, 0, 2))
    assert set(few) < set(everyone), "which are held out does not depend on how many are read"


def test_sentences_of_an_hmm_are_drawn_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "plain.txt"
    path.write_text("\n".join(["the cat sat down ."] * ENGLISH + ["neko ga imasu yo ."] * JAPANESE))
    data = recipe_of(tmp_path, source=f"text:{path}", tokenizer="words:9", length=5).data
    rows = prepare_rows(data, 0, Hmm(states=2))
    english = rows.alphabet.index("cat")
    assert (rows.heldout[:64] == english).any(axis=1).mean() > 0.5, "the first rows are English"
    scored = rows.scored(64)
    assert len(scored) == 64 and (scored == english).any(axis=1).mean() < 0.3
    assert np.array_equal(rows.scored(), rows.heldout)
    few = prepare_rows(replace(data, documents=300), 0, Hmm(states=2))
    assert (few.train == few.alphabet.index("cat")).any(axis=1).mean() < 0.5
