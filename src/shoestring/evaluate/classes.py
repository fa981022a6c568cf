"""Scores of predicted classes, beside what is reached without looking at a row."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Classes = NDArray[np.int64]


class ClassScores(NamedTuple):
    """How often a prediction is right, and how well each class is found, whether it is frequent or rare."""

    accuracy: float
    macro_f1: float


def class_scores(truth: Classes, chosen: Classes, classes: int) -> ClassScores:
    """Of the classes `chosen`, (rows,), against the true ones.

    F1 of a class is 2 hits / (rows of the class + rows taken for it); macro-F1 is its mean over the classes that occur
    among either.
    """
    hits = np.bincount(truth[truth == chosen], minlength=classes)
    rows = np.bincount(truth, minlength=classes) + np.bincount(chosen, minlength=classes)
    occur = rows > 0
    return ClassScores(float((truth == chosen).mean()), float((2 * hits[occur] / rows[occur]).mean()))


def majority_scores(truth: Classes, counts: NDArray[np.int64]) -> ClassScores:
    """Of always taking the class that is the most frequent in training, by its counts (classes,) there."""
    return class_scores(truth, np.full_like(truth, counts.argmax()), len(counts))


def uniform_and_frequency(truth: Classes, counts: NDArray[np.int64]) -> tuple[float, float]:
    """The mean loss, in nats, of expecting all classes alike, and of expecting them by their counts, each one more."""
    expected = (counts + 1.0) / (counts.sum() + len(counts))
    return float(np.log(len(counts))), float(-np.log(expected[truth]).mean())
