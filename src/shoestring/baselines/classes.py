"""The scores of predicted classes, from their confusion matrix."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoestring.core.results import ClassScore

Confusion = NDArray[np.int64]
"""(true class, predicted class): how many rows."""


def confusion_matrix(truth: NDArray[np.int64], chosen: NDArray[np.int64], classes: int) -> Confusion:
    """How many rows of each class, (rows,), were predicted as each."""
    return np.bincount(truth * classes + chosen, minlength=classes * classes).reshape(classes, classes)


class ClassScores(NamedTuple):
    """How well classes are predicted."""

    accuracy: float
    macro_f1: float
    """Gives the same weight to frequent and rare classes."""


def scores_of(confusion: Confusion) -> ClassScores:
    """The scores of all classes together.

    F1 of a class is 2 hits / (rows of the class + rows predicted as it); macro-F1 is its mean over the classes that
    occur among either.
    """
    each = [score.f1 for score in scores_by_class(confusion) if score.f1 is not None]
    return ClassScores(float(confusion.trace() / confusion.sum()), sum(each) / len(each))


def majority_scores(truth: NDArray[np.int64], counts: NDArray[np.int64]) -> ClassScores:
    """The scores of always choosing the class that is most frequent in training; `counts` (classes,) are its counts."""
    return scores_of(confusion_matrix(truth, np.full_like(truth, counts.argmax()), len(counts)))


def scores_by_class(confusion: Confusion) -> tuple[ClassScore, ...]:
    """Precision, recall and F1 of every class; None where no row was predicted as it, or none belongs to it."""
    hits, rows, chosen = confusion.diagonal(), confusion.sum(axis=1), confusion.sum(axis=0)
    return tuple(
        ClassScore(
            label=label,
            rows=int(rows[label]),
            precision=_share(hits[label], chosen[label]),
            recall=_share(hits[label], rows[label]),
            f1=_share(2 * hits[label], rows[label] + chosen[label]),
        )
        for label in range(len(confusion))
    )


def _share(part: int, whole: int) -> float | None:
    return float(part / whole) if whole else None


def accuracy_error(confusion: Confusion) -> float | None:
    """The standard error of the accuracy; None for fewer than two rows."""
    rows, hits = int(confusion.sum()), int(confusion.trace())
    return math.sqrt(hits * (rows - hits) / (rows - 1)) / rows if rows > 1 else None


def macro_f1_error(confusion: Confusion) -> float | None:
    """The standard error of the macro-F1, from the influence of each row on it; None for fewer than two rows."""
    rows = int(confusion.sum())
    if rows < 2:
        return None
    ends = confusion.sum(axis=1) + confusion.sum(axis=0)
    occur = ends > 0
    f1 = np.divide(2 * confusion.diagonal(), ends, out=np.zeros(len(ends)), where=occur)
    each = np.divide(1.0, ends * occur.sum(), out=np.zeros(len(ends)), where=occur)
    loss = f1 * each  # for every row that belongs to a class or is predicted as it
    influence = 2 * np.diag(each) - loss[:, None] - loss
    return math.sqrt(float((confusion * influence**2).sum()) * rows / (rows - 1))
