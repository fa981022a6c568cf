"""Scores as text and tables, for the console and the page."""

from __future__ import annotations

import math

from shoestring.core.results import Evaluation

CLASS_HEAD = ("class", "rows", "precision", "recall", "F1")
ERROR_NOTE = "± is one standard error over the scored rows, for the model as it is."
SHOWN_CLASSES = 12
"""Most classes whose confusion matrix fits a terminal."""


def with_error(value: float, error: float | None) -> str:
    """A score with its standard error, where that is known."""
    return f"{value:.3f}" if error is None else f"{value:.3f} ± {error:.3f}"


def perplexity_text(evaluation: Evaluation) -> str:
    """The perplexity with its standard error, where that is known: as many digits as the error allows."""
    value, error = evaluation.perplexity, evaluation.perplexity_error
    digits = 2 if not error else min(4, max(1, 1 - math.floor(math.log10(error))))
    return f"{value:,.{digits}f}" if error is None else f"{value:,.{digits}f} ± {error:,.{digits}f}"


def bits_text(evaluation: Evaluation) -> str:
    """Bits per byte with their standard error; nothing where the tokenizer does not keep every byte."""
    if evaluation.bits_per_byte is None:
        return ""
    return f"{with_error(evaluation.bits_per_byte, evaluation.bits_per_byte_error)} bits per byte"


def class_scores(evaluation: Evaluation) -> str:
    """The scores of a classifier, beside those of always choosing the most frequent class."""
    accuracy = f"{evaluation.accuracy or 0:.1%}"
    if evaluation.accuracy_error is not None:
        accuracy += f" ± {evaluation.accuracy_error:.1%}"
    return (
        f"Accuracy {accuracy}, macro-F1 {with_error(evaluation.macro_f1 or 0, evaluation.macro_f1_error)}; always "
        f"choosing the most frequent class gives {evaluation.majority_accuracy or 0:.1%} and "
        f"{evaluation.majority_macro_f1 or 0:.3f}."
    )


def class_rows(evaluation: Evaluation) -> list[tuple[str, ...]]:
    """A row per class, with its number of scored rows, precision, recall and F1."""
    return [
        (str(each.label), f"{each.rows:,}", *(_score(value) for value in (each.precision, each.recall, each.f1)))
        for each in evaluation.classes
    ]


def _score(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"


def text_table(evaluation: Evaluation) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The head and rows of a table with a line per text of data.validation."""
    scores = {
        f"nats per {'token' if evaluation.macro_f1 is None else 'row'}": ("loss", "loss_error"),
        "bits per byte": ("bits_per_byte", "bits_per_byte_error"),
        "accuracy": ("accuracy", "accuracy_error"),
        "macro-F1": ("macro_f1", "macro_f1_error"),
    }
    kept = {head: pair for head, pair in scores.items() if getattr(evaluation, pair[0]) is not None}
    rows = [
        (
            each.name,
            f"{each.rows:,}",
            f"{each.tokens:,}",
            *(with_error(getattr(each, value), getattr(each, error)) for value, error in kept.values()),
            each.text,
        )
        for each in evaluation.texts
    ]
    return ("name", "rows", "predictions", *kept, "source"), rows


def first_note(evaluation: Evaluation) -> str:
    """Which text of several decides."""
    return f"The first, {evaluation.texts[0].name}, decides the best checkpoint."


def confusion_table(evaluation: Evaluation) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The head and rows of the confusion matrix: true classes down, predicted ones across."""
    head = ("true \\ predicted", *(str(label) for label in range(len(evaluation.confusion))))
    rows = [(str(label), *(f"{count:,}" for count in counts)) for label, counts in enumerate(evaluation.confusion)]
    return head, rows
