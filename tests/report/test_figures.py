"""Figures: valid pictures with their labels, from any metrics a run can leave."""

import builtins
import re
import sys
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest

from shoestring.core.errors import MissingExtra
from shoestring.report.figures import NoSpace, loss_curve, position_curve, svg
from shoestring.report.page import drawn

BASELINES = {"uniform": 5.57, "unigram": 3.125, "bigram": 2.5}
METRICS: list[dict[str, Any]] = [
    {"step": 1, "tokens": 100, "loss": 5.5, "lr": 0.1, "grad_norm": 1.0},
    {"step": 2, "tokens": 200, "loss": 3.5, "lr": 0.1, "grad_norm": 1.0},
    {"step": 2, "heldout_loss": 3.75},
    {"step": 3, "event": "shortened", "total": 4, "was": 9},
    {"step": 4, "tokens": 400, "loss": 2.25, "lr": 0.1, "grad_norm": 1.0},
    {"step": 4, "heldout_loss": 2.375},
]

drawing = pytest.importorskip("vl_convert")


def texts(picture: str) -> list[str]:
    """The labels of a picture; raises where it is not XML."""
    root = ElementTree.fromstring(picture)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    return [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]


def test_the_loss_curve_names_its_lines_and_baselines() -> None:
    found = texts(svg(loss_curve(METRICS, BASELINES)))
    for label in ("training 2.25", "held out 2.38", "uniform 5.57", "unigram 3.12", "bigram 2.50"):
        assert label in found
    assert any("positions of training" in text for text in found)
    assert any("nats" in text for text in found)


def test_the_loss_curve_holds_every_point() -> None:
    layers = loss_curve(METRICS, BASELINES)["layer"]
    points = {
        (v["what"], v["tokens"], v["loss"])
        for layer in layers
        for v in layer["data"]["values"]
        if "at" not in v and "tokens" in v
    }
    assert points == {
        ("training", 100, 5.5),
        ("training", 200, 3.5),
        ("training", 400, 2.25),
        ("held out", 200, 3.75),
        ("held out", 400, 2.375),
    }


def test_named_texts_have_curves_and_colours_of_their_own() -> None:
    """Names that other lines have too are told apart."""
    named = {"training": 3.5, "unigram": 3.25, "news": 4.5}
    scored = {"heldout_loss": 3.5} | {f"heldout_loss/{name}": loss for name, loss in named.items()}
    drawn = loss_curve([*METRICS[:2], {"step": 2, **scored}], BASELINES)
    points = [(v["what"], v["loss"]) for v in drawn["layer"][-2]["data"]["values"]]
    assert points == [(f"heldout_loss/{name}", loss) for name, loss in named.items()]
    colours = drawn["layer"][0]["encoding"]["color"]["scale"]
    assert len(colours["domain"]) == len(set(colours["range"])) == 7
    found = texts(svg(drawn))
    assert {"training 3.50", "unigram 3.25", "unigram 3.12", "news 4.50"} <= {*found}
    assert not any(text.startswith("held out") for text in found)


def test_the_position_curve_has_a_point_for_each_position_and_no_uniform_line() -> None:
    specification = position_curve([5.0, 3.0, 2.0], BASELINES)
    lines = [layer for layer in specification["layer"] if layer["mark"]["type"] == "line"]
    assert [(v["position"], v["loss"]) for v in lines[0]["data"]["values"]] == [(1, 5.0), (2, 3.0), (3, 2.0)]
    found = texts(svg(specification))
    assert "bigram 2.50" in found
    assert "unigram 3.12" in found
    assert not any("uniform" in text for text in found)


@pytest.mark.parametrize(
    ("metrics", "baselines"),
    [
        ([], {}),
        ([], BASELINES),
        ([{"step": 1, "event": "shortened"}], {}),
        ([{"step": 1, "heldout_loss": 3.0}], {}),
        (METRICS[:1], {}),
        (METRICS, {"a baseline of one's own": 3.0}),
        (METRICS, {"<b>&": 3.0}),
    ],
)
def test_any_metrics_make_a_picture(metrics: list[dict[str, Any]], baselines: dict[str, float]) -> None:
    texts(svg(loss_curve(metrics, baselines)))


@pytest.mark.parametrize(("losses", "baselines"), [([], {}), ([], BASELINES), ([2.0], {}), ([2.0] * 300, BASELINES)])
def test_any_positions_make_a_picture(losses: list[float], baselines: dict[str, float]) -> None:
    texts(svg(position_curve(losses, baselines)))


@pytest.mark.parametrize("baselines", [{"unigram": 2.25, "bigram": 2.25}, {"uniform": 5.5, "bigram": 2.3}])
def test_labels_of_close_losses_do_not_lie_on_each_other(baselines: dict[str, float]) -> None:
    specification = loss_curve(METRICS, baselines)
    labels = next(layer for layer in specification["layer"] if layer["mark"]["type"] == "text")["data"]["values"]
    heights = sorted(label["at"] for label in labels)
    assert len(labels) == 4
    line = (5.5 - 2.25) * 12 / 320  # a line of text in a figure 320 pixels high, in the losses it spans
    assert all(high - low > line for low, high in pairwise(heights))


def test_a_picture_asks_for_nothing_from_outside() -> None:
    for picture in (svg(loss_curve(METRICS, BASELINES)), svg(position_curve([3.0, 2.0], BASELINES))):
        without = re.sub(r'xmlns(:\w+)?="[^"]*"', "", picture)
        assert "http" not in without
        assert "<image" not in without
        assert "<script" not in without


def test_a_missing_library_is_named_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(MissingExtra, match=r"vl-convert-python; install it with: pip install 'shoestring\[report\]'"):
        svg(loss_curve(METRICS, BASELINES))


def test_specifications_are_plain_data_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_import(name: str, *rest: Any) -> Any:
        assert name != "vl_convert"
        return original(name, *rest)

    original = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", no_import)
    assert loss_curve(METRICS, BASELINES)["layer"]


def test_a_process_with_little_address_space_draws_nothing_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The drawing library would end the process."""
    monkeypatch.setattr("shoestring.report.figures.address_space", lambda: 40 << 30)
    with pytest.raises(NoSpace, match=r"ulimit -v leaves 4[0-9.]+ G"):
        svg({})
    assert "ulimit -v" in drawn({})
