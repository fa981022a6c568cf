"""Scores of classes against scikit-learn where it is installed, and against counting by hand."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoestring.baselines.of_corpus import ClassScores, class_scores, majority_scores, uniform_and_frequency
from shoestring.baselines.streams import Baselines
from shoestring.core.records import Evaluation
from shoestring.runs.evaluate import make_evaluation

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
    assert class_scores(*columns(rows), CLASSES) == pytest.approx(by_hand(rows))


@checked
@given(pairs)
def test_scores_are_those_of_scikit_learn(rows: list[tuple[int, int]]) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    truth, chosen = columns(rows)
    found = class_scores(truth, chosen, CLASSES)
    assert found.accuracy == pytest.approx(metrics.accuracy_score(truth, chosen))
    assert found.macro_f1 == pytest.approx(metrics.f1_score(truth, chosen, average="macro", zero_division=0.0))


def test_known_scores() -> None:
    truth = np.array([0, 0, 1, 1, 1, 2])
    assert class_scores(truth, truth, 3) == (1.0, 1.0)
    assert class_scores(truth, truth, 9) == (1.0, 1.0), "a class that never occurs says nothing"
    assert class_scores(truth, (truth + 1) % 3, 3) == (0.0, 0.0)
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


def test_scores_go_to_the_record() -> None:
    others = Baselines({"uniform": 1.0})
    found = make_evaluation(np.ones((2, 1)), 3, None, others, None, (ClassScores(0.9, 0.8), ClassScores(0.7, 0.3)))
    assert (found.accuracy, found.macro_f1) == (0.9, 0.8)
    assert (found.majority_accuracy, found.majority_macro_f1) == (0.7, 0.3)
    assert Evaluation.from_dict(found.to_dict(), "here") == found
    plain = make_evaluation(np.ones((2, 1)), 3, None, others)
    assert (plain.accuracy, plain.macro_f1, plain.majority_accuracy, plain.majority_macro_f1) == (None,) * 4
    old = {name: value for name, value in plain.to_dict().items() if "accuracy" not in name and "macro" not in name}
    assert Evaluation.from_dict(old, "a record of earlier days") == plain
