"""Documents with a class: from any source with columns to rows and scores, and from masked tweets to a classifier."""

from __future__ import annotations

import csv
import gzip
import itertools
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from written_tables import write_table

from shoestring.baselines.of_corpus import baselines_of, predictions_of
from shoestring.core.errors import DataError
from shoestring.core.recipe import Recipe
from shoestring.core.recipe_file import build
from shoestring.core.specs import SourceSpec
from shoestring.data.pack.order import RowIndex
from shoestring.data.read import labels
from shoestring.data.read.documents import Skipped
from shoestring.data.read.labels import Labelled, count_labelled, read_labelled
from shoestring.datasets.corpus import Corpus, StoreCorpus, open_corpus, vocabulary
from shoestring.datasets.labelled import LabelledCorpus
from shoestring.models.families.masked_lm.network import MaskedLM
from shoestring.runs.evaluate import Watch, evaluate_learner
from shoestring.runs.network_workload import make_learner
from shoestring.runs.prepare import prepare_recipe
from shoestring.runs.reporter import Reporter
from shoestring.training.learner import Learner

CPU = torch.device("cpu")
TWEETS = Path(__file__).parents[3] / "shared" / "data" / "hate-speech-tweets" / "labeled_data.csv.gz"
RECORDS = [
    (f"{'good' if n % 3 else 'bad'} text number {n}, and\nmore of it" + " more" * (n % 7), n % 3) for n in range(60)
]
SHAPE: dict[str, Any] = {"family": "masked_lm", "width": 16, "layers": 1, "heads": 2}

Write = Callable[..., str]


def recipe_of(folder: Path, source: str, model: dict[str, Any] | None = None, rows: int = 100, **data: Any) -> Recipe:
    values: dict[str, dict[str, Any]] = {
        "run": {"folder": str(folder / "runs")},
        "budget": {"steps": 10},
        "data": {"source": source, "folder": str(folder / "stores"), "length": 8, "heldout": 0.25, "label": "class"}
        | data,
        "model": SHAPE | ({"classes": 3} if model is None else model),
        "train": {"batch": 4, "lr": 3e-3},
        "evaluate": {"rows": rows},
    }
    values["data"] = {name: value for name, value in values["data"].items() if value is not None}
    return build(values, "test")


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Records as a file, or a folder, of any kind with columns."""

    def written(kind: str, records: list[tuple[Any, Any]] = RECORDS) -> str:
        path = tmp_path / f"records.{kind}"
        rows = [{"id": n, "text": text, "class": label} for n, (text, label) in enumerate(records)]
        return write_table(path, kind, rows)

    return written


def read(recipe: Recipe) -> list[Labelled]:
    assert recipe.model.classes is not None
    return list(read_labelled(recipe.data, recipe.run.seed, recipe.model.classes))


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "hf"])
def test_every_source_with_columns_gives_texts_and_classes(write: Write, tmp_path: Path, kind: str) -> None:
    recipe = recipe_of(tmp_path, write(kind))
    found = read(recipe)
    assert [(document.text, document.label) for document in found] == RECORDS
    held_out = sum(document.held_out for document in found)
    assert held_out == 15, "a quarter"
    assert count_labelled(recipe.data, 0, 3) == (45, 15)
    few = recipe_of(tmp_path, recipe.data.source, documents=20)
    assert len(read(few)) == 20
    assert set(read(few)) < set(found), "and which are held out does not depend on how many are read"


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_labels_stay_with_their_texts_where_records_are_left_out(write: Write, tmp_path: Path, kind: str) -> None:
    records = [("one", 0), ("", 1), ("  ", 2), ("two", 2), ("three", 1)]
    source = write(kind, records)
    path = Path(source.partition(":")[2])
    lines = path.read_text().splitlines()
    lines.insert(3, "a,b" if kind == "csv" else '{"text": ')
    lines.insert(3, "")
    path.write_text("\n".join(lines))
    with pytest.raises(DataError, match=f"records.{kind}, line "):
        read(recipe_of(tmp_path, source))
    found = read(recipe_of(tmp_path, source, on_error="skip"))
    assert [(each.text, each.label) for each in found] == [("one", 0), ("two", 2), ("three", 1)]


@pytest.mark.parametrize(
    ("kind", "label", "line", "shown"),
    [
        ("csv", "spam", 3, "'spam'"),
        ("csv", "1.0", 3, "'1.0'"),
        ("csv", "", 3, "nothing"),
        ("jsonl", 1.5, 2, "1.5"),
        ("jsonl", None, 2, "nothing"),
        ("jsonl", True, 2, "True"),
        ("jsonl", [1], 2, "[1]"),
    ],
)
def test_a_label_that_is_no_whole_number_is_named(
    write: Write, tmp_path: Path, kind: str, label: Any, line: int, shown: str
) -> None:
    source = write(kind, [("a", 0), ("b", label), ("c", 1)])
    with pytest.raises(DataError) as caught:
        read(recipe_of(tmp_path, source))
    assert f'records.{kind}, line {line}: the field "class" holds {shown}, not the whole number' in str(caught.value)
    skipped = Skipped()
    recipe = recipe_of(tmp_path, source, on_error="skip")
    assert [each.text for each in read_labelled(recipe.data, 0, 3, skipped)] == ["a", "c"]
    assert skipped.count == 1 and f"line {line}" in skipped.examples[0]


def test_a_small_corpus_is_read_once_until_its_file_changes(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times, as_it_is = [], labels._read
    monkeypatch.setattr(labels, "_kept", None)
    monkeypatch.setattr(labels, "_read", lambda *given: times.append(given) or as_it_is(*given))
    recipe = recipe_of(tmp_path, write("csv"))
    found = read(recipe)
    assert read(recipe) == found and count_labelled(recipe.data, 0, 3) == (45, 15)
    assert len(times) == 1
    assert len(read(recipe_of(tmp_path, recipe.data.source, documents=20))) == 20
    assert len(times) == 2, "another part of it"
    assert read(recipe) == found
    next(read_labelled(recipe.data, 1, 3))  # is not read to its end
    assert read(recipe) == found and len(times) == 4
    write("csv", [("one", 0), ("two", 1)])
    assert [each.text for each in read(recipe)] == ["one", "two"]
    monkeypatch.setattr(labels, "KEPT_CHARACTERS", 5)
    write("csv", [("one", 0), ("two", 1), ("three", 2)])
    for _ in range(2):
        assert [each.text for each in read(recipe)] == ["one", "two", "three"]
    assert len(times) == 7, "what is large is not kept"


def test_whole_numbers_may_be_written_as_text(write: Write, tmp_path: Path) -> None:
    found = read(recipe_of(tmp_path, write("jsonl", [("a", "2"), ("b", " 1 "), ("c", 0)])))
    assert [each.label for each in found] == [2, 1, 0]


@pytest.mark.parametrize(("kind", "label"), [("csv", "3"), ("jsonl", -1), ("parquet", 7), ("hf", 3)])
def test_a_label_out_of_range_is_named(write: Write, tmp_path: Path, kind: str, label: Any) -> None:
    source = write(kind, [("a", type(label)(0)), ("b", label)])
    place = {"csv": "line 3", "jsonl": "line 2"}.get(kind, "row 2")
    message = f'{place}: the field "class" holds {label}; with model.classes = 3 it must be 0 to 2'
    for on_error in ("stop", "skip"):
        with pytest.raises(DataError) as caught:
            read(recipe_of(tmp_path, source, on_error=on_error))
        assert message in str(caught.value)


@pytest.mark.parametrize("kind", ["csv", "parquet", "hf"])
def test_a_column_that_is_not_there_is_named(write: Write, tmp_path: Path, kind: str) -> None:
    with pytest.raises(DataError) as caught:
        read(recipe_of(tmp_path, write(kind), label="klass"))
    message = str(caught.value)
    assert (
        'no column "klass"; the columns are "id", "text", "class"; set data.label' in message
        and "data.column" not in message
    )


def test_a_field_that_is_not_there_is_named(write: Write, tmp_path: Path) -> None:
    with pytest.raises(DataError, match='line 1: the field "klass" holds nothing'):
        read(recipe_of(tmp_path, write("jsonl"), label="klass"))


def test_a_source_without_columns_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\nb\n")
    recipe = recipe_of(tmp_path, f"csv:{tmp_path}/a.txt")
    object.__setattr__(recipe.data, "source", SourceSpec(f"text:{tmp_path}/a.txt"))
    with pytest.raises(DataError, match="has no columns; jsonl, csv, parquet, hf have"):
        read(recipe)


def test_more_documents_than_memory_is_meant_for_are_refused(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labels, "MOST_DOCUMENTS", 59)
    with pytest.raises(DataError, match=r"held in memory, and there are more than 59; set data\.documents"):
        read(recipe_of(tmp_path, write("csv")))
    assert len(read(recipe_of(tmp_path, write("csv"), documents=59))) == 59


def test_a_document_that_occurs_again_is_left_out(write: Write, tmp_path: Path) -> None:
    source = write("csv", [("a", 0), ("b", 1), ("a", 2), ("c", 1)])
    assert [each.text for each in read(recipe_of(tmp_path, source, unique=True))] == ["a", "b", "c"]


@pytest.mark.parametrize("length", [1, 2, 3, 5, 9])
def test_rows_of_subwords_are_those_of_transformers(write: Write, tmp_path: Path, length: int) -> None:
    """[CLS], the text cut to what is left, [SEP], padding."""
    import tokenizers as library

    transformers = pytest.importorskip("transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c"]
    backend = library.Tokenizer(library.models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = library.pre_tokenizers.Whitespace()
    backend.add_special_tokens(words[:5])
    backend.post_processor = library.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    backend.save(str(tmp_path / "words.json"))
    texts = ["a", "a b", "b c a", "c c c b a", "a b c a b c a b", "b"]
    source = write("csv", [(text, n % 3) for n, text in enumerate(texts * 4)])
    batch = LabelledCorpus(
        recipe_of(tmp_path, source, tokenizer=f"file:{tmp_path}/words.json", length=length)
    ).heldout()
    assert batch.segments is not None
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]")
    documents = [each.text for each in read(recipe_of(tmp_path, source)) if each.held_out]
    if length == 1:  # theirs has no row so short
        assert batch.ids.tolist() == [[2]] * len(documents)
        return
    found = theirs(documents, truncation=True, max_length=length, padding="max_length")
    assert batch.ids.tolist() == found["input_ids"] and batch.segments.tolist() == found["attention_mask"]


@pytest.mark.parametrize("tokenizer", ["bytes", "words:30"])
@pytest.mark.parametrize("unique", [False, True])
def test_held_out_documents_and_words_are_the_store_s(
    write: Write, tmp_path: Path, tokenizer: str, unique: bool
) -> None:
    source = write("csv", RECORDS + RECORDS[:20])
    masked = recipe_of(tmp_path, source, {}, tokenizer=tokenizer, label=None, unique=unique, length=64)
    store = prepare_recipe(masked, None, Reporter())
    recipe = recipe_of(tmp_path, source, tokenizer=tokenizer, unique=unique, length=64)
    corpus = LabelledCorpus(recipe)
    batch = corpus.heldout()
    assert batch.segments is not None
    assert corpus.vocab_size == vocabulary(recipe) == vocabulary(masked) == StoreCorpus(masked, store).vocab_size
    around = 1 if tokenizer == "bytes" else 0  # [CLS] and [SEP]
    mine = [ids[used != 0].tolist() for ids, used in zip(batch.ids, batch.segments)]
    mine = [ids[around : len(ids) - around] for ids in mine]
    rows = store.split("heldout", 1)
    stream = np.concatenate(list(rows.stream())).tolist()
    theirs = [list(part) for end, part in itertools.groupby(stream, lambda i: i == store.manifest.end) if not end]
    assert mine == [document[: 64 - 2 * around] for document in theirs]


@pytest.mark.parametrize("tokenizer", ["bytes", "words:30"])
def test_rows_are_documents_cut_and_padded(write: Write, tmp_path: Path, tokenizer: str) -> None:
    recipe = recipe_of(
        tmp_path, write("jsonl", [("ab c", 2), ("b", 1), ("ab ab ab ab ab", 0)] * 8), tokenizer=tokenizer
    )
    corpus = open_corpus(recipe, None)  # type: ignore[arg-type]
    source = corpus.training(CPU)
    count = sum(count_labelled(recipe.data, 0, 3)[:1])
    batch = source.batch(RowIndex.first(np.arange(count)))
    assert batch.ids.shape == (count, 8) and batch.targets().shape == (count, 1) and batch.segments is not None
    expected = {
        "bytes": {2: [4, 103, 104, 38, 105, 5], 1: [4, 104, 5], 0: [4, 103, 104, 38, 103, 104, 38, 5]},
        "words:30": {2: [2, 4], 1: [3], 0: [2] * 5},  # ab, b, c by frequency
    }[tokenizer]
    for ids, used, label in zip(batch.ids.tolist(), batch.segments.tolist(), batch.targets()[:, 0].tolist()):
        size = len(expected[label])
        assert ids[:size] == expected[label] and used == [1] * size + [0] * (8 - size)
    for epoch in range(2):
        steps = range(epoch * count, (epoch + 1) * count)
        assert sorted(int(source.order(5, step, 1).rows[0]) for step in steps) == list(range(count)), (
            "each once an epoch"
        )
    assert [int(source.order(5, step, 1).rows[0]) for step in range(count)] != list(range(count))


def test_the_corpus_knows_its_classes_and_its_baselines(write: Write, tmp_path: Path) -> None:
    source = write("csv", [(f"text {n}", 1 if n % 4 else n % 3) for n in range(80)])
    recipe = recipe_of(tmp_path, source)
    corpus, documents = LabelledCorpus(recipe), read(recipe)
    counts = Counter(each.label for each in documents if not each.held_out)
    assert corpus.class_counts is not None and corpus.class_counts.tolist() == [counts[label] for label in range(3)]
    truth = [each.label for each in documents if each.held_out]
    assert corpus.heldout().targets()[:, 0].tolist() == truth
    assert len(LabelledCorpus(recipe_of(tmp_path, source, rows=5)).heldout().ids) == 5
    nats = [-math.log((counts[label] + 1) / (sum(counts.values()) + 3)) for label in truth]
    assert baselines_of(corpus).losses == pytest.approx(
        {"uniform": math.log(3), "majority class": sum(nats) / len(nats)}
    )
    assert (corpus.bytes, corpus.bytes_per_token, predictions_of(corpus)) == (0, None, {})


def test_a_fingerprint_is_that_of_texts_labels_and_split(write: Write, tmp_path: Path) -> None:
    records = [(f"text {n}", n % 3) for n in range(20)]
    first = LabelledCorpus(recipe_of(tmp_path, write("csv", records))).fingerprint
    assert LabelledCorpus(recipe_of(tmp_path, write("jsonl", records))).fingerprint == first
    others = [
        recipe_of(tmp_path, write("csv", [*records[:-1], ("text 19", 0)])),
        recipe_of(tmp_path, write("jsonl", [*records[:-1], ("other", 1)])),
        recipe_of(tmp_path, write("parquet", records), heldout=0.2),
        recipe_of(tmp_path, write("parquet", records), tokenizer="words:30"),
    ]
    assert len({first, *(LabelledCorpus(recipe).fingerprint for recipe in others)}) == 5


def test_a_split_without_documents_is_refused(write: Write, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none of its 0 documents is for training"):
        LabelledCorpus(recipe_of(tmp_path, write("jsonl", [])))


# --- learning


def train(learner: Learner, corpus: Corpus, steps: int, batch: int, lr: float) -> None:
    source = corpus.training(CPU)
    for step in range(steps):
        warm = min(1.0, (step + 1) / (0.1 * steps), 1.05 - step / steps)
        learner.update(learner.accumulate(source.batch(source.order(0, step, batch)), batch), lr * warm)


def test_a_classifier_learns_and_is_scored(write: Write, tmp_path: Path) -> None:
    recipe = recipe_of(
        tmp_path, write("csv", [("good" if n % 3 else "bad", int(n % 3 > 0)) for n in range(60)]), tokenizer="words:5"
    )
    corpus, learner = LabelledCorpus(recipe), make_learner(recipe, CPU)
    before = evaluate_learner(learner, 0, 4, corpus)
    assert (before.rows, before.tokens, before.bits_per_byte) == (15, 15, None)
    assert before.loss == pytest.approx(math.log(3), abs=0.1) and len(before.loss_by_position) == 1
    train(learner, corpus, 100, 8, 1e-2)
    after = evaluate_learner(learner, 100, 4, corpus)
    assert after.accuracy == after.macro_f1 == 1.0 and after.loss < 0.1
    share = corpus.heldout().targets().double().mean().item()
    assert after.majority_accuracy == pytest.approx(share)
    assert after.majority_macro_f1 == pytest.approx(2 * share / (1 + share) / 2)
    scores = Watch(corpus)(learner, 4)
    error = {"heldout_error": after.loss_error}
    assert scores == pytest.approx(
        {"heldout_loss": after.loss, "heldout_accuracy": 1.0, "heldout_macro_f1": 1.0} | error
    )


@pytest.mark.slow
@pytest.mark.realdata
def test_tweets_are_learned_masked_and_then_by_their_class(tmp_path: Path) -> None:
    if not TWEETS.is_file():
        pytest.skip(f"no {TWEETS}")
    source, shape = f"csv:{TWEETS}", {"width": 64, "layers": 1, "heads": 4}
    about = {"column": "tweet", "tokenizer": "words:500", "length": 24, "documents": 4_000, "heldout": 0.1}
    masked = recipe_of(tmp_path, source, shape, 200, packing="pad", label=None, **about)
    tokens = StoreCorpus(masked, prepare_recipe(masked, None, Reporter()))
    teacher = make_learner(masked, CPU)
    train(teacher, tokens, 100, 32, 4e-3)
    learned = evaluate_learner(teacher, 100, 64, tokens)
    assert learned.loss < learned.baselines["unigram"] < learned.baselines["uniform"]

    recipe = recipe_of(tmp_path, source, shape | {"classes": 3}, 400, **about)
    corpus, learner = LabelledCorpus(recipe), make_learner(recipe, CPU)
    assert isinstance(learner.model, MaskedLM)
    kept = learner.model.take_over(teacher.model.state_dict(), "the masked model")
    assert {name.split(".")[0] for name in kept} == {"pooler", "classifier"}
    train(learner, corpus, 300, 32, 4e-3)
    found = evaluate_learner(learner, 300, 64, corpus)
    with gzip.open(TWEETS, "rt", newline="") as file:
        classes = Counter(int(row["class"]) for row in itertools.islice(csv.DictReader(file), 4_000))
    assert classes.most_common(1)[0][0] == 1 and corpus.class_counts is not None
    assert found.rows == 400 and found.majority_accuracy == pytest.approx(classes[1] / 4_000, abs=0.03)
    assert found.macro_f1 is not None and found.majority_macro_f1 is not None
    assert found.macro_f1 > found.majority_macro_f1 + 0.1
    assert found.loss < found.baselines["majority class"]
