"""Standard errors of perplexity and bits per byte, against what drawing rows anew gives."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from shoestring.baselines.streams import Baselines
from shoestring.report.scores import bits_text, perplexity_text
from shoestring.runs.evaluate import make_evaluation


def test_errors_are_those_of_rows_drawn_anew() -> None:
    """The delta method beside a bootstrap over rows, whose lengths differ."""
    draw = np.random.default_rng(3)
    losses = draw.gamma(4.0, 0.5, (400, 12)) * draw.gamma(20.0, 0.05, (400, 1))
    predicted = np.arange(12) < draw.integers(4, 13, (400, 1))
    made = make_evaluation(losses, 7, 2.5, Baselines({}), predicted)
    sums, counts = np.where(predicted, losses, 0.0).sum(axis=1), predicted.sum(axis=1)
    again = draw.integers(400, size=(4000, 400))
    means = sums[again].sum(axis=1) / counts[again].sum(axis=1)
    assert made.perplexity == pytest.approx(math.exp(sums.sum() / counts.sum()))
    assert made.perplexity_error == pytest.approx(np.exp(means).std(), rel=0.05)
    assert made.bits_per_byte_error == pytest.approx((means / math.log(2) / 2.5).std(), rel=0.05)


def test_they_are_shown_with_the_digits_that_they_allow() -> None:
    made = make_evaluation(np.full((1, 4), 2.0), 1, None, Baselines({}))
    assert made.perplexity_error is None and perplexity_text(made) == "7.39" and bits_text(made) == ""
    assert perplexity_text(replace(made, perplexity=1234.5678, perplexity_error=12.3)) == "1,234.6 ± 12.3"
    assert perplexity_text(replace(made, perplexity=7.38906, perplexity_error=0.0123)) == "7.389 ± 0.012"
    assert bits_text(replace(made, bits_per_byte=1.5, bits_per_byte_error=0.01)) == "1.500 ± 0.010 bits per byte"
