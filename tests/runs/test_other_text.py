"""Scores on another text than the training source: `data.validation`, and `evaluate --data`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from profiles import write_profile

from shoestring.console.terminal import Terminal
from shoestring.core.clock import Clock
from shoestring.core.errors import DataError, RecipeError
from shoestring.core.recipe import Recipe
from shoestring.core.recipe_file import build, dump, load
from shoestring.core.records import Plan
from shoestring.core.run_folder import RunFolder
from shoestring.core.specs import CheckpointSpec
from shoestring.data.pack.masking import IGNORED
from shoestring.data.read.other_text import _meets
from shoestring.data.store.prepare import scored_tokens
from shoestring.data.tokenize.tokenizers import ByteTokenizer
from shoestring.datasets.corpus import open_corpus
from shoestring.datasets.labelled import LabelledCorpus
from shoestring.datasets.other_text import OtherText, text_batch
from shoestring.planning.corpus import heldout_seconds, least_documents
from shoestring.planning.make import _fixed_seconds
from shoestring.report.scores import text_table
from shoestring.runs.evaluate import Known, Watch, evaluate_learner, evaluate_run
from shoestring.runs.network_workload import make_learner
from shoestring.runs.prepare import check_source, prepare_recipe, recipe_density
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
            "train": {"batch": 4, "lr": 3e-4},
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
    corpus = OtherText(LabelledCorpus(recipe), recipe, {"": f"csv:{tmp_path}/test.csv"})
    assert corpus.heldout().targets()[:, 0].tolist() == [int(n % 3 > 0) for n in range(20)]
    learner = make_learner(recipe, CPU)
    found = evaluate_learner(learner, 0, 4, corpus)
    assert (found.rows, found.majority_accuracy) == (20, 13 / 20) and sum(map(sum, found.confusion)) == 20
    assert found.baselines.keys() == {"uniform", "majority class"}
    assert Watch(corpus)(learner, 4)["heldout_accuracy"] == found.accuracy


def test_every_named_text_has_its_own_curve_and_nothing_is_held_out(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "far.txt").write_text("\n".join("ZQXJ" * 9 for _ in range(30)))
    texts = {"books": f"text:{tmp_path}/other.txt", "far-away": f"text:{tmp_path}/far.txt"}
    recipe, file = make(validation=texts, heldout=0), tmp_path / "recipe.toml"
    file.write_text(dump(recipe))
    assert load(file) == recipe
    replace(write_profile(file), density=recipe_density(recipe)).write(RunFolder.of(recipe).profile)
    finished = run(recipe, Terminal(), Clock())
    shown = capsys.readouterr().out
    assert finished is not None
    folder, found = RunFolder.of(recipe), finished.evaluation
    lines = [line for line in read_lines(folder.metrics) if "heldout_loss" in line]
    assert len(lines) > 2 and all(line["heldout_loss"] == line["heldout_loss/books"] for line in lines)
    assert all(line["heldout_loss/far-away"] != line["heldout_loss/books"] for line in lines)
    assert [(each.name, each.text) for each in found.texts] == [*texts.items()] and found.text == texts["books"]
    assert found.texts[0].loss == found.loss and found.baselines.keys() == {"uniform", "unigram", "bigram"}
    page = folder.report.read_text()
    for each in found.texts:
        assert lines[-1][f"heldout_loss/{each.name}"] == pytest.approx(each.loss)
        alone = evaluate_run(folder, CheckpointSpec("last"), each.text)
        assert (alone.loss, alone.rows, alone.tokens) == (pytest.approx(each.loss), each.rows, each.tokens)
        assert (alone.loss_error, alone.bits_per_byte) == (
            pytest.approx(each.loss_error),
            pytest.approx(each.bits_per_byte),
        )
        line = f"{each.loss:.3f} ± {each.loss_error:.3f}"
        assert line in shown and line in page and f"{each.name} {each.loss:.2f}" in page, "a line, and a curve"
    assert "The first, books, decides the best checkpoint." in shown and "The first, books, decides" in page
    best = min(lines, key=lambda line: line["heldout_loss/books"])["step"]
    assert evaluate_run(folder, CheckpointSpec("best")).step == best
    store = prepare_recipe(recipe, Plan.read(folder.plan), Reporter())
    assert store.manifest.splits["train"].documents == 300 and store.manifest.splits["heldout"].documents == 0


def test_a_classifier_has_scores_of_every_named_text(make: Make, tmp_path: Path) -> None:
    for name, count in (("train", 60), ("one", 20), ("two", 9)):
        lines = [f"{'good' if n % 3 else 'bad'} {n},{int(n % 3 > 0)}" for n in range(count)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,class", *lines]))
    texts = {name: f"csv:{tmp_path}/{name}.csv" for name in ("one", "two")}
    data = {"source": f"csv:{tmp_path}/train.csv", "label": "class", "heldout": 0, "validation": texts}
    recipe = make(MASKED | {"classes": 2}, **data)
    corpus = open_corpus(recipe, Plan(binding=""))
    assert corpus.class_counts is not None and corpus.class_counts.sum() == 60, "nothing is held out"
    learner = make_learner(recipe, CPU)
    found, watched = evaluate_learner(learner, 0, 4, corpus), Watch(corpus)(learner, 4)
    assert [each.rows for each in found.texts] == [20, 9] and text_table(found)[0][4:6] == ("accuracy", "macro-F1")
    assert watched["heldout_accuracy"] == watched["heldout_accuracy/one"] == found.texts[0].accuracy
    assert watched["heldout_macro_f1/two"] == found.texts[1].macro_f1
    known, scored = Known(), Counter[str]()
    for name in ("score", "log_probs"):
        setattr(learner, name, _counting(getattr(learner, name), name, scored))
    assert Watch(corpus, known)(learner, 4) == watched and scored == {"score": 2, "log_probs": 2}
    assert evaluate_learner(learner, 0, 4, corpus, known) == found and scored == {"score": 2, "log_probs": 2}
    assert evaluate_learner(learner, 0, 5, corpus, known).rows == found.rows and scored["score"] == 4, "other passes"
    known.forget()
    assert evaluate_learner(learner, 0, 4, corpus, known) == found and scored["score"] == 6


def _counting(method: Any, name: str, counts: Counter[str]) -> Any:
    def counted(*given: Any) -> Any:
        counts[name] += 1
        return method(*given)

    return counted


def test_a_text_may_be_a_split_of_the_data_set_that_is_trained_on(make: Make, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    train, other = ({"body": [f"{word} {n}" for n in range(40)]} for word in ("seen", "unseen"))
    made = {"train": datasets.Dataset.from_dict(train), "test": datasets.Dataset.from_dict(other)}
    datasets.DatasetDict(made).save_to_disk(tmp_path / "set")
    data = {"source": f"hf:{tmp_path}/set", "column": "body"}
    texts = {"test": f"hf:{tmp_path}/set#test", "lines": f"text:{tmp_path}/other.txt"}
    recipe = make(**data, validation=texts)
    check_source(recipe)
    batch = text_batch(recipe, ByteTokenizer(), texts["test"])
    assert batch.ids.reshape(-1).tolist()[:9] == encoded("unseen 0")[:9]
    for wrong, message in (
        (f"hf:{tmp_path}/set", "set, split train is part of data.source"),
        (f"hf:{tmp_path}/../{tmp_path.name}/set#train", "set, split train is part of data.source"),
        (f"hf:{tmp_path}/set#none", "to be scored: .*no such split; it has: train, test"),
        (f"hf:{tmp_path}/set#", 'names no split after "#"'),
    ):
        with pytest.raises(DataError, match=message):
            check_source(make(**data, validation=wrong))
    (tmp_path / "again.txt").symlink_to(tmp_path / "other.txt")
    with pytest.raises(DataError, match=r"lines and more are the same text, .*other\.txt; leave one out"):
        check_source(make(**data, validation=texts | {"more": f"text:{tmp_path}/again.txt"}))


def test_a_slice_of_the_split_that_is_trained_on_is_part_of_it() -> None:
    own = {"hf:set, split train[:90%]"}
    assert _meets("hf:set, split train", own) and _meets("hf:set, split train[:90%]", own)
    assert not _meets("hf:set, split train[90%:]", own) and not _meets("hf:set, split test", own)
    assert _meets("hf:set, split train[90%:]", {"hf:set, split train"})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"validation": {}}, r"data\.validation: the table is empty"),
        ({"validation": {"a b": "text:b"}}, 'the name "a b" must be of letters, digits'),
        ({"validation": {"": "text:b"}}, 'the name "" must be of letters'),
        ({"validation": {"a": "text:b", "c": "text:b"}}, 'a and c are the same text, "text:b"; leave one out'),
        ({"validation": {"a": "b"}}, r'data\.validation\.a = "b": must be "stories", or one of text'),
        ({"validation": {"a": 3}}, r"data\.validation\.a = 3: must be a text in quotes"),
        ({"validation": "b"}, r'data\.validation = "b": must be "stories", or one of text'),
        ({"validation": ""}, r'data\.validation = "": must be'),
        ({"heldout": 0}, r"data\.heldout = 0: leaves nothing to score; give data\.validation, or a share above 0"),
        ({"heldout": -0.1}, r"data\.heldout = -0\.1: must be at least 1e-06 and at most 0\.5, or 0"),
        (
            {"validation": {"a": "text:b"}, "stream": "markov:12", "source": "stories"},
            r"data\.validation: a stream is scored on rows of its own",
        ),
    ],
)
def test_what_cannot_be_scored_is_refused_with_the_recipe(make: Make, data: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make(**data)


def test_texts_are_set_one_by_one(make: Make, tmp_path: Path) -> None:
    file = tmp_path / "recipe.toml"
    file.write_text(dump(make(validation={"a": "text:a", "b": "text:b"})))
    recipe = load(file, ["data.validation.c=text:c", "data.validation.a="])
    assert recipe.data.validation == {"b": "text:b", "c": "text:c"}
    assert load(file, ["data.validation.a=", "data.validation.b="]).data.validation is None
    swapped = load(file, ['data.validation={b = "text:b", a = "text:a"}'])
    assert swapped.fingerprint != load(file).fingerprint, "another text decides"
    file.write_text(dump(make(validation="text:a")))
    with pytest.raises(RecipeError, match=r'data\.validation is "text:a", which has no entries by name; give all'):
        load(file, ["data.validation.c=text:c"])
    with pytest.raises(RecipeError, match=r"data\.length is 12, which has no entries"):
        load(file, ["data.length.c=3"])


def test_a_plan_takes_the_time_of_every_text_and_no_documents_for_held_out_rows(make: Make, tmp_path: Path) -> None:
    one, two, none = (
        make(rows=256, **data)
        for data in (
            {"validation": "text:a", "heldout": 0},
            {"validation": {"a": "text:a", "b": "text:b"}},
            {"heldout": 0.01},
        )
    )
    (tmp_path / "recipe.toml").write_text(dump(one))
    profile = write_profile(tmp_path / "recipe.toml")
    seconds = [_fixed_seconds(recipe, profile, 0.0, 5) for recipe in (one, two)]
    assert seconds[1]["evaluations"] == pytest.approx(2 * seconds[0]["evaluations"]) and seconds[0]["evaluations"]
    density = recipe_density(one)
    assert density is not None
    assert least_documents(one, density) < 10 < least_documents(none, density)
    assert heldout_seconds(one, density, 10) == scored_tokens(one) == 0 < scored_tokens(none)


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
    with pytest.raises(DataError, match="no row of 13 in its 2 tokens"):
        text_batch(make(), ByteTokenizer(), f"text:{tmp_path}/short.txt")
    with pytest.raises(DataError, match='"stories", to be scored: must name files or a hub data set'):
        check_source(make(validation="stories"))
    with pytest.raises(RecipeError, match=r"data\.validation = .*: a stream is scored on rows of its own"):
        make(stream="markov:12", source="stories", validation=f"text:{tmp_path}/other.txt")
