"""Scores on another text than the training source: `data.validation`, and `evaluate --data`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from profiles import write_profile

from shoestring.core.clock import Clock
from shoestring.core.errors import DataError, RecipeError
from shoestring.core.recipe import Recipe
from shoestring.core.recipe_file import build, dump
from shoestring.core.run_folder import RunFolder
from shoestring.core.specs import CheckpointSpec
from shoestring.data.pack.masking import IGNORED
from shoestring.data.tokenize.tokenizers import ByteTokenizer
from shoestring.datasets.labelled import LabelledCorpus
from shoestring.datasets.other_text import OtherText, text_batch
from shoestring.runs.evaluate import Watch, evaluate_learner, evaluate_run
from shoestring.runs.network_workload import make_learner
from shoestring.runs.prepare import check_source, recipe_density
from shoestring.runs.reporter import Reporter
from shoestring.runs.runner import run
from shoestring.studies.run_results import read_trained
from shoestring.track import read_lines

SHAPE = {"width": 16, "layers": 1, "heads": 2}
MASKED = SHAPE | {"family": "masked_lm"}
OTHER = [f"{'b' * (n % 9)}an other line {n}" for n in range(40)]
LENGTH = 12
CPU = torch.device("cpu")

Make = Callable[..., Recipe]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    (tmp_path / "corpus.txt").write_text("\n".join(f"the cat {n} sat on mat {n * n}" for n in range(300)))
    (tmp_path / "other.txt").write_text("\n".join(OTHER))

    def made(model: dict[str, Any] = SHAPE, seed: int = 0, rows: int = 10**6, **data: Any) -> Recipe:
        given = {"source": f"text:{tmp_path}/corpus.txt", "folder": str(tmp_path / "stores"), "length": LENGTH}
        values = {
            "run": {"folder": str(tmp_path / "runs"), "seed": seed},
            "budget": {"steps": 20},
            "data": {"heldout": 0.2, **given, **data},
            "model": model,
            "train": {"batch": 4},
            "evaluate": {"rows": rows},
        }
        return build(values, "test")

    return made


def encoded(text: str) -> list[int]:
    return [byte + 6 for byte in text.encode()] + [2]


def test_rows_are_the_other_text_joined_and_cut(make: Make, tmp_path: Path) -> None:
    batch = text_batch(make(), ByteTokenizer(), f"text:{tmp_path}/other.txt")
    stream = [token for line in OTHER for token in encoded(line)]
    assert batch.segments is None and batch.ids.tolist() == [
        stream[at : at + LENGTH + 1] for at in range(0, len(stream) - LENGTH, LENGTH)
    ]


@pytest.mark.parametrize("packing", ["best_fit", "pad"])
def test_packed_rows_hold_every_line_of_the_other_text(make: Make, tmp_path: Path, packing: str) -> None:
    recipe = make(packing=packing, length=40)
    batch = text_batch(recipe, ByteTokenizer(), f"text:{tmp_path}/other.txt")
    assert batch.segments is not None
    found = []
    for ids, segments in zip(batch.ids, batch.segments):
        found += [ids[segments == number].tolist() for number in range(1, int(segments.max()) + 1)]
    assert sorted(found) == sorted(map(encoded, OTHER))
    assert (len(found) == len(batch.ids)) == (packing == "pad")


def test_a_masked_model_hides_tokens_of_it_within_its_special_ones(make: Make, tmp_path: Path) -> None:
    recipe = make(MASKED, packing="pad", length=40, masked=1.0)
    batch = text_batch(recipe, ByteTokenizer(), f"text:{tmp_path}/other.txt")
    rows = [row[row != IGNORED].tolist() for row in batch.targets()]
    assert sorted(rows) == sorted(encoded(line)[:-1] for line in OTHER)
    assert set(batch.ids[:, 0].tolist()) == {4}


def test_the_rows_are_the_same_for_every_run_and_drawn_over_all_of_it(make: Make, tmp_path: Path) -> None:
    source = f"text:{tmp_path}/other.txt"
    one, two = (text_batch(make(seed=seed, rows=6), ByteTokenizer(), source) for seed in (0, 1))
    everything = text_batch(make(), ByteTokenizer(), source).ids.tolist()
    assert torch.equal(one.ids, two.ids) and len(one.ids) == 6
    assert max(everything.index(row) for row in one.ids.tolist()) > len(everything) / 2


@pytest.mark.parametrize("tokenizer", ["bytes", "words:20"])
def test_a_run_is_scored_on_its_validation_text(make: Make, tmp_path: Path, tokenizer: str) -> None:
    source = f"text:{tmp_path}/other.txt"
    recipe, file = make(validation=source, tokenizer=tokenizer), tmp_path / "recipe.toml"
    file.write_text(dump(recipe))
    profile = replace(write_profile(file), density=recipe_density(recipe))
    profile.write(RunFolder.of(recipe).profile)
    finished = run(recipe, Reporter(), Clock())
    assert finished is not None
    folder, found = RunFolder.of(recipe), finished.evaluation
    assert (
        found.text == source and found.loss_error is not None and {"uniform", "unigram", "bigram"} == {*found.baselines}
    )
    if tokenizer == "bytes":
        assert found.tokens == (sum(map(len, map(encoded, OTHER))) - 1) // LENGTH * LENGTH
        assert found.bits_per_byte is not None
    curve = [line["heldout_loss"] for line in read_lines(folder.metrics) if "heldout_loss" in line]
    assert curve[-1] == pytest.approx(found.loss), "the same rows in training and at its end"
    again = evaluate_run(folder, CheckpointSpec("last"), source)
    assert again.loss == pytest.approx(found.loss) and again.text == source
    (tmp_path / "third.txt").write_text("\n".join(f"zebra {n}" for n in range(50)))
    third = evaluate_run(folder, CheckpointSpec("last"), f"text:{tmp_path}/third.txt")
    assert third.text == f"text:{tmp_path}/third.txt" and third.loss != found.loss
    assert source in read_trained(folder.path, "total").heldout
    assert source in folder.report.read_text()


def test_a_classifier_is_scored_on_other_documents(make: Make, tmp_path: Path) -> None:
    for name, count in (("train", 60), ("test", 20)):
        lines = [f"{'good' if n % 3 else 'bad'} {n},{int(n % 3 > 0)}" for n in range(count)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,class", *lines]))
    recipe = make(MASKED | {"classes": 2}, source=f"csv:{tmp_path}/train.csv", label="class")
    corpus = OtherText(LabelledCorpus(recipe), recipe, f"csv:{tmp_path}/test.csv")
    assert corpus.heldout().targets()[:, 0].tolist() == [int(n % 3 > 0) for n in range(20)]
    learner = make_learner(recipe, CPU)
    found = evaluate_learner(learner, 0, 4, corpus)
    assert (found.rows, found.majority_accuracy) == (20, 13 / 20) and sum(map(sum, found.confusion)) == 20
    assert found.baselines.keys() == {"uniform", "majority class"}
    assert Watch(corpus)(learner, 4)["heldout_accuracy"] == found.accuracy


def test_text_that_cannot_be_scored_is_refused_before_anything_runs(make: Make, tmp_path: Path) -> None:
    (tmp_path / "link.txt").symlink_to(tmp_path / "corpus.txt")
    for name, message in (
        ("corpus", "corpus.txt is part of data.source: a model must not be scored on text that it is trained on"),
        ("link", "is part of data.source"),
        ("missing", "there is no file or folder"),
    ):
        with pytest.raises(DataError, match=message):
            check_source(make(validation=f"text:{tmp_path}/{name}.txt"))
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(DataError, match=r'empty\.txt", to be scored: it holds no document'):
        text_batch(make(), ByteTokenizer(), f"text:{tmp_path}/empty.txt")
    (tmp_path / "short.txt").write_text("a")
    with pytest.raises(DataError, match="its 2 tokens make no row of 13"):
        text_batch(make(), ByteTokenizer(), f"text:{tmp_path}/short.txt")
    with pytest.raises(DataError, match='"stories", to be scored: must name files or a hub data set'):
        check_source(make(validation="stories"))
    with pytest.raises(RecipeError, match=r"data\.validation = .*: a stream is scored on rows of its own"):
        make(stream="markov:12", source="stories", validation=f"text:{tmp_path}/other.txt")
