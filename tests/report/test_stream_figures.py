"""Figures of a run on a stream: baselines by position, the entropy rate, divergences, and how much was learned."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from test_figures import texts
from test_page import EVALUATION, OUTCOME, Page, finished

from shoestring.core.run_folder import RunFolder
from shoestring.report.figures import divergence_curves, loss_curve, position_curve, svg
from shoestring.report.page import draw, write_page

LOSSES = (3.0, 2.5, 2.25)
BY_POSITION = {
    "uniform": (3.5, 3.5, 3.5),
    "unigram_in_context": (3.25, 3.0, 2.75),
    "bigram_in_context": (3.5, 2.875, 2.5),
    "unigram_corpus": (3.1, 3.1, 3.1),
    "bigram_corpus": (2.9, 2.9, 2.9),
    "oracle": (2.5, 2.0, 1.75),
}
MEANS = {name: sum(curve) / 3 for name, curve in BY_POSITION.items()}
RATE = 1.5
KLS = {"kl_of_unigram_in_context": (0.5, 0.25), "kl_of_oracle": (1.25, 0.75), "kl_of_bigram_in_context": (0.375, 0.5)}


def metrics_of(evaluated: tuple[int, ...] = (2, 4), logged: tuple[int, ...] = (1, 2, 3, 4)) -> list[dict[str, Any]]:
    """A line for every step that was logged, 100 tokens each, and one for every step that was evaluated."""
    lines: list[dict[str, Any]] = []
    for step in range(1, 5):
        if step in logged:
            lines.append({"step": step, "tokens": step * 100, "loss": 4.0 - step / 2, "lr": 0.1, "grad_norm": 1.0})
        if step in evaluated:
            kls = {name: values[evaluated.index(step)] for name, values in KLS.items()}
            lines.append({"step": step, "heldout_loss": 4.0 - step / 4} | kls)
    return lines


def layers_of(specification: dict[str, Any], kind: str) -> list[list[dict[str, Any]]]:
    """The values of every layer with this mark."""
    return [layer["data"]["values"] for layer in specification["layer"] if layer["mark"]["type"] == kind]


def colours_of(specification: dict[str, Any]) -> dict[str, str]:
    """By what they stand for; the same in every layer."""
    scales = [layer["encoding"]["color"]["scale"] for layer in specification["layer"]]
    assert all(scale == scales[0] for scale in scales)
    return dict(zip(scales[0]["domain"], scales[0]["range"], strict=True))


# --- loss by position


def test_baselines_by_position_are_curves_from_the_first_prediction_on() -> None:
    lines = layers_of(position_curve(LOSSES, MEANS, BY_POSITION, RATE), "line")
    curves = {values[0]["what"]: [(v["position"], v["loss"]) for v in values] for values in lines}
    shown = {name: curve for name, curve in BY_POSITION.items() if not name.endswith("_corpus")}
    assert curves == {name: list(enumerate(curve, 1)) for name, curve in (shown | {"held out": LOSSES}).items()}
    assert len(lines) == len(curves)
    assert lines[-1][0]["what"] == "held out", "drawn last, on top of the others"


def test_the_entropy_rate_is_a_line_across() -> None:
    rules = layers_of(position_curve(LOSSES, MEANS, BY_POSITION, RATE), "rule")
    assert rules == [[{"loss": RATE, "what": "entropy rate"}]]
    assert layers_of(position_curve(LOSSES, MEANS, BY_POSITION), "rule") == [[]]


def test_a_corpus_has_lines_where_a_stream_has_curves() -> None:
    specification = position_curve(LOSSES, {"uniform": 3.5, "unigram": 3.0, "bigram": 2.5}, {}, None)
    assert len(layers_of(specification, "line")) == 1
    assert [rule["what"] for rule in layers_of(specification, "rule")[0]] == ["unigram", "bigram"]


def test_everything_in_the_figure_has_a_colour_and_the_oracle_that_of_the_rate() -> None:
    specification = position_curve(LOSSES, MEANS, BY_POSITION, RATE)
    colours = colours_of(specification)
    drawn = {v["what"] for layer in specification["layer"] for v in layer["data"]["values"]}
    assert drawn == colours.keys()
    assert colours["oracle"] == colours["entropy rate"]
    others = [colour for name, colour in colours.items() if name != "entropy rate"]
    assert len(set(others)) == len(others)


def test_the_position_curve_names_its_lines() -> None:
    found = texts(svg(position_curve(LOSSES, MEANS, BY_POSITION, RATE)))
    for label in ("held out 2.25", "uniform 3.50", "unigram 2.75", "bigram 2.50", "oracle 1.75", "entropy rate 1.50"):
        assert label in found
    assert not any("corpus" in text or "context" in text for text in found)
    assert any("position in the row" in text for text in found)


def test_labels_do_not_lie_on_each_other() -> None:
    close = {"oracle": (2.0, 1.5), "unigram_in_context": (2.5, 1.5), "bigram_in_context": (2.5, 1.51)}
    (labels,) = layers_of(position_curve((2.5, 1.52), {}, close, 1.49), "text")
    heights = sorted(label["at"] for label in labels)
    assert len(labels) == 5
    line = (2.5 - 1.49) * 12 / 320  # a line of text in a figure 320 pixels high, in the losses it spans
    assert all(high - low > line for low, high in pairwise(heights))


@pytest.mark.parametrize(
    ("losses", "by_position", "rate"),
    [
        ([2.0], {"oracle": [1.0]}, 0.5),
        ([2.0], {"oracle": [2.0]}, 2.0),
        ([0.0, 0.0], {"oracle": [0.0, 0.0]}, 0.0),
        ([2.0] * 300, {"oracle": [1.0] * 300, "unigram_corpus": [3.0] * 300}, None),
        ([2.0, 1.0], {"a baseline of <one's> own": [2.0, 1.5]}, None),
    ],
)
def test_any_positions_make_a_picture(losses: list[float], by_position: dict[str, list[float]], rate: Any) -> None:
    assert any("held out" in text for text in texts(svg(position_curve(losses, {}, by_position, rate))))


# --- divergences


def test_divergences_are_curves_over_tokens() -> None:
    specification = divergence_curves(metrics_of())
    assert specification is not None
    lines = layers_of(specification, "line")
    curves = {values[0]["what"]: [(v["tokens"], v["loss"]) for v in values] for values in lines}
    assert curves == {name.removeprefix("kl_of_"): [(200, a), (400, b)] for name, (a, b) in KLS.items()}
    assert colours_of(specification).keys() == curves.keys()


def test_divergences_are_named_in_the_picture() -> None:
    specification = divergence_curves(metrics_of())
    assert specification is not None
    found = texts(svg(specification))
    for label in ("unigram 0.25", "bigram 0.50", "oracle 0.75"):
        assert label in found
    assert any("KL(baseline ‖ model)" in text for text in found)
    assert any("positions of training" in text for text in found)


@pytest.mark.parametrize(
    "metrics",
    [
        [],
        [{"step": 1, "tokens": 100, "loss": 1.0}, {"step": 1, "heldout_loss": 2.0}],
        [{"step": 1, "event": "shortened", "total": 4, "was": 9}],
        [{"step": 1, "heldout_loss": 2.0, "kl_of_oracle": 0.5}],
    ],
)
def test_without_a_comparison_there_is_no_figure(metrics: list[dict[str, Any]]) -> None:
    assert divergence_curves(metrics) is None


def test_a_model_that_predicts_as_the_oracle_does_makes_a_picture() -> None:
    lines = [{"step": 1, "tokens": 100, "loss": 1.0}, {"step": 1, "heldout_loss": 1.0, "kl_of_oracle": 0.0}]
    specification = divergence_curves(lines)
    assert specification is not None
    assert "oracle 0.00" in texts(svg(specification))


def test_an_evaluation_between_two_lines_of_metrics_is_drawn() -> None:
    """Long runs write a line for some steps only, and evaluate at others."""
    metrics = metrics_of(evaluated=(2, 3), logged=(1, 4))
    specification = divergence_curves(metrics)
    assert specification is not None
    assert {v["tokens"] for values in layers_of(specification, "line") for v in values} == {200, 300}
    heldout = [values for values in layers_of(loss_curve(metrics, {}), "line") if values[0]["what"] == "held out"]
    assert [v["tokens"] for v in heldout[0]] == [200, 300]


# --- the page


STREAM = replace(
    EVALUATION,
    loss=2.5,
    perplexity=math.exp(2.5),
    bits_per_byte=None,
    loss_by_position=LOSSES,
    baselines={"uniform": 3.5, "unigram_in_context": 3.0, "oracle": 2.0},
    baselines_by_position=BY_POSITION,
    entropy_rate=1.5,
    entropy_rate_error=0.0125,
)


def run_on_a_stream(path: Path, **changes: Any) -> RunFolder:
    folder = finished(path)
    loss = changes.get("loss", STREAM.loss)
    replace(STREAM, **changes, perplexity=math.exp(loss)).write(folder.evaluation)
    folder.metrics.write_text("".join(f"{json.dumps(line)}\n" for line in metrics_of()))
    return folder


def words_of(folder: RunFolder) -> Page:
    """The page without its figures."""
    write_page(folder, {}, OUTCOME)
    return Page(folder.report.read_text(encoding="utf-8"))


def test_the_page_says_how_much_of_the_possible_was_learned(tmp_path: Path) -> None:
    page = words_of(run_on_a_stream(tmp_path))
    assert "This model has learned 66.7% of the 1.500 nats between a uniform guess and the oracle" in page.plain
    assert "The source's entropy rate is 1.500 ± 0.013 nats per token." in page.plain
    assert [row[:2] for row in page.rows if row and row[0] == "oracle"] == [["oracle", "2.000"]]


def test_a_rate_that_nobody_knows_is_not_named(tmp_path: Path) -> None:
    page = words_of(run_on_a_stream(tmp_path, entropy_rate=None, entropy_rate_error=None))
    assert "This model has learned 66.7% of" in page.plain
    assert "entropy rate" not in page.plain


def test_a_model_worse_than_a_guess_has_learned_less_than_nothing(tmp_path: Path) -> None:
    assert "This model has learned -33.3% of" in words_of(run_on_a_stream(tmp_path, loss=4.0)).plain


@pytest.mark.parametrize("baselines", [{}, {"uniform": 3.5}, {"oracle": 2.0}, {"uniform": 2.0, "oracle": 2.0}])
def test_where_nothing_can_be_learned_nothing_is_said(baselines: dict[str, float], tmp_path: Path) -> None:
    assert "has learned" not in words_of(run_on_a_stream(tmp_path, baselines=baselines)).plain


def test_the_figures_of_a_stream_are_pictures_in_the_page(tmp_path: Path) -> None:
    folder = run_on_a_stream(tmp_path)
    figures = draw(folder)
    assert list(figures) == ["Loss", "Loss by position", "What it predicts like"]
    write_page(folder, figures, OUTCOME)
    page = Page(folder.report.read_text(encoding="utf-8"))
    assert page.titles[:4] == ["Held-out loss", "Loss", "Loss by position", "What it predicts like"]
    pictures = {title: re.findall("<svg.*</svg>", figure, re.DOTALL)[0] for title, figure in figures.items()}
    assert "entropy rate 1.50" in texts(pictures["Loss by position"])
    assert "oracle 0.75" in texts(pictures["What it predicts like"])


def test_an_evaluation_with_its_curves_survives_being_written(tmp_path: Path) -> None:
    STREAM.write(tmp_path / "evaluation.json")
    assert type(STREAM).read(tmp_path / "evaluation.json") == STREAM
