"""Scores of classes against scikit-learn where it is installed, and against counting by hand."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoestring.baselines.classes import (
    ClassScores,
    accuracy_error,
    confusion_matrix,
    macro_f1_error,
    majority_scores,
    scores_by_class,
    scores_of,
)
from shoestring.baselines.of_corpus import uniform_and_frequency
from shoestring.baselines.streams import Baselines
from shoestring.core.results import Evaluation
from shoestring.report.scores import class_rows, class_scores, confusion_table
from shoestring.runs.evaluate import make_evaluation, with_classes

CLASSES = 4
checked = settings(max_examples=100, deadline=None)
pairs = st.lists(st.tuples(st.integers(0, CLASSES - 1), st.integers(0, CLASSES - 1)), min_size=1, max_size=30)


def columns(rows: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    truth, chosen = zip(*rows)
    return np.array(truth), np.array(chosen)


def by_hand(rows: list[tuple[int, int]]) -> ClassScores:
    """Precision and recall of each class that occurs, and their harmonic mean."""
    found = []
    for label in {each for row in rows for each in row}:
        hits = sum(row == (label, label) for row in rows)
        precision = hits / max(1, sum(chosen == label for _, chosen in rows))
        recall = hits / max(1, sum(truth == label for truth, _ in rows))
        found.append(2 * precision * recall / (precision + recall) if hits else 0.0)
    return ClassScores(sum(truth == chosen for truth, chosen in rows) / len(rows), sum(found) / len(found))


@checked
@given(pairs)
def test_scores_are_those_of_counting(rows: list[tuple[int, int]]) -> None:
    assert scores_of(confusion_matrix(*columns(rows), CLASSES)) == pytest.approx(by_hand(rows))


@checked
@given(pairs)
def test_scores_are_those_of_scikit_learn(rows: list[tuple[int, int]]) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    truth, chosen = columns(rows)
    found = scores_of(confusion_matrix(truth, chosen, CLASSES))
    assert found.accuracy == pytest.approx(metrics.accuracy_score(truth, chosen))
    assert found.macro_f1 == pytest.approx(metrics.f1_score(truth, chosen, average="macro", zero_division=0.0))


def test_known_scores() -> None:
    truth = np.array([0, 0, 1, 1, 1, 2])
    assert scores_of(confusion_matrix(truth, truth, 3)) == (1.0, 1.0)
    assert scores_of(confusion_matrix(truth, truth, 9)) == (1.0, 1.0), "a class that never occurs says nothing"
    assert scores_of(confusion_matrix(truth, (truth + 1) % 3, 3)) == (0.0, 0.0)
    # class 1: 3 hits, 3 rows, 6 taken for it: 2 · 3 / 9; the others are never found
    assert majority_scores(truth, np.array([5, 6, 0])) == pytest.approx((0.5, (2 / 3) / 3))


@checked
@given(st.lists(st.integers(0, CLASSES - 1), min_size=1, max_size=20), st.lists(st.integers(0, CLASSES - 1)))
def test_losses_are_those_of_a_plain_count(truth: list[int], training: list[int]) -> None:
    counts = Counter(training)
    nats = [-math.log((counts[label] + 1) / (len(training) + CLASSES)) for label in truth]
    counted = np.bincount(np.array(training, dtype=np.int64), minlength=CLASSES)
    found = uniform_and_frequency(np.array(truth), counted)
    assert found == pytest.approx((math.log(CLASSES), sum(nats) / len(nats)))


@checked
@given(pairs)
def test_every_class_is_counted_by_itself(rows: list[tuple[int, int]]) -> None:
    confusion = confusion_matrix(*columns(rows), CLASSES)
    assert confusion.tolist() == [[rows.count((a, b)) for b in range(CLASSES)] for a in range(CLASSES)]
    for label, score in enumerate(scores_by_class(confusion)):
        belong, taken = ([row for row in rows if row[end] == label] for end in (0, 1))
        hits = rows.count((label, label))
        assert (score.label, score.rows) == (label, len(belong))
        assert score.recall == (pytest.approx(hits / len(belong)) if belong else None)
        assert score.precision == (pytest.approx(hits / len(taken)) if taken else None)
        if score.precision and score.recall:
            assert score.f1 == pytest.approx(2 / (1 / score.precision + 1 / score.recall))
        else:
            assert score.f1 == (0.0 if belong or taken else None)


def test_errors_of_class_scores_are_those_of_a_bootstrap() -> None:
    random = np.random.default_rng(0)
    truth = random.choice(3, size=400, p=[0.6, 0.3, 0.1])
    chosen = np.where(random.random(400) < 0.7, truth, random.integers(0, 3, size=400))
    drawn = random.integers(0, 400, size=(2000, 400))
    scores = np.array([scores_of(confusion_matrix(truth[rows], chosen[rows], 3)) for rows in drawn])
    confusion = confusion_matrix(truth, chosen, 3)
    assert accuracy_error(confusion) == pytest.approx(scores[:, 0].std(), rel=0.06)
    assert macro_f1_error(confusion) == pytest.approx(scores[:, 1].std(), rel=0.06)
    alone = confusion_matrix(truth[:1], chosen[:1], 3)
    assert accuracy_error(alone) is None and macro_f1_error(alone) is None


def test_scores_go_to_the_record() -> None:
    others = Baselines({"uniform": 1.0})
    confusion = np.array([[3, 1], [0, 0]])
    found = with_classes(make_evaluation(np.ones((4, 1)), 3, None, others), confusion, ClassScores(0.7, 0.3))
    assert (found.accuracy, found.macro_f1) == pytest.approx((0.75, (6 / 7 + 0) / 2))
    assert (found.majority_accuracy, found.majority_macro_f1) == (0.7, 0.3)
    assert found.confusion == ((3, 1), (0, 0)) and found.accuracy_error == pytest.approx(0.25)
    assert class_rows(found) == [("0", "4", "1.000", "0.750", "0.857"), ("1", "0", "0.000", "none", "0.000")]
    assert confusion_table(found) == (("true \\ predicted", "0", "1"), [("0", "3", "1"), ("1", "0", "0")])
    assert "Accuracy 75.0% ± 25.0%" in class_scores(found)
    assert Evaluation.from_dict(found.to_dict(), "here") == found
    plain = make_evaluation(np.ones((2, 1)), 3, None, others)
    assert (plain.accuracy, plain.macro_f1, plain.majority_accuracy, plain.majority_macro_f1) == (None,) * 4
    old = {name: value for name, value in plain.to_dict().items() if "accuracy" not in name and "macro" not in name}
    assert Evaluation.from_dict(old, "a record of earlier days") == plain
