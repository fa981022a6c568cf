"""Figures as Vega-Lite specifications, drawn to SVG by vl-convert with no browser and no network.

A specification is plain data, so no plotting library stands between a record and its picture.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shoestring.core.errors import MissingExtra

_STRATEGIES = {"uniform": "#b8b8b8", "unigram": "#e0a458", "bigram": "#c8553d"}
_STRATEGIES |= {"unigram_in_context": "#e0a458", "bigram_in_context": "#c8553d", "oracle": "#3a7d44"}
_STRATEGIES |= {"unigram_corpus": "#d8c49a", "bigram_corpus": "#d9a193"}
_TRAINING, _HELDOUT = "#9db4c0", "#1d4e89"


def svg(specification: Mapping[str, Any]) -> str:
    """The picture of a specification."""
    try:
        import vl_convert
    except ImportError as cause:
        raise MissingExtra("drawing a figure", "vl-convert-python", "report") from cause
    return str(vl_convert.vegalite_to_svg(json.dumps(specification)))


def loss_curve(metrics: Sequence[Mapping[str, Any]], strategies: Mapping[str, float]) -> dict[str, Any]:
    """Training and held-out loss over tokens, with a line for each strategy."""
    tokens = _tokens_by_step(metrics)
    values = [
        {"tokens": line["tokens"], "loss": line["loss"], "what": "training"} for line in metrics if "loss" in line
    ]
    values += [
        {"tokens": tokens(line["step"]), "loss": line["heldout_loss"], "what": "held out"}
        for line in metrics
        if "heldout_loss" in line
    ]
    rules = [{"loss": loss, "what": name, "label": f"{_named(name)} {loss:.2f}"} for name, loss in strategies.items()]
    names = ["training", "held out", *strategies]
    colours = [_TRAINING, _HELDOUT, *(_STRATEGIES.get(name, "#888") for name in strategies)]
    colour = {"field": "what", "type": "nominal", "scale": {"domain": names, "range": colours}, "legend": None}
    x = {
        "field": "tokens",
        "type": "quantitative",
        "title": "training tokens",
        "axis": {"format": "~s", "tickCount": 6},
    }
    y = {"field": "loss", "type": "quantitative", "title": "loss, nats a token", "scale": {"zero": False}}
    last = max((v["tokens"] for v in values), default=1)
    x["scale"] = {"domain": [0, last], "nice": False}
    ends = [
        max((v for v in values if v["what"] == what), key=lambda v: v["tokens"], default=None) for what in names[:2]
    ]
    labels = [{**end, "label": f"{end['what']} {end['loss']:.2f}"} for end in ends if end is not None]
    labels += [{**rule, "tokens": last} for rule in rules]
    return layers(
        [
            _rules(rules, y, colour),
            _line(values, "training", 1.2, x, y, colour),
            _line(values, "held out", 2.5, x, y, colour),
            {
                "data": {"values": [v for v in values if v["what"] == "held out"]},
                "mark": {"type": "point", "filled": True, "size": 40, "opacity": 1},
                "encoding": {"x": x, "y": y, "color": colour},
            },
            _labels(_apart(labels, values), x, y, colour),
        ]
    )


def position_curve(
    loss_by_position: Sequence[float | None],
    strategies: Mapping[str, float],
    by_position: Mapping[str, Sequence[float]] | None = None,
    entropy_rate: float | None = None,
) -> dict[str, Any]:
    """Held-out loss by position in the row: what context is worth, and how much of the possible was learned.

    Strategies that are given by position are curves, the others lines.
    """
    by_position = by_position or {}
    known = [(place, loss) for place, loss in enumerate(loss_by_position, start=1) if loss is not None]
    values: list[dict[str, Any]] = [{"position": place, "loss": loss, "what": "held out"} for place, loss in known]
    if by_position:
        return _position_curves(values, by_position, entropy_rate)
    shown = {name: loss for name, loss in strategies.items() if name != "uniform"}
    last = len(values)
    rules = [
        {"loss": loss, "what": name, "label": f"{name} {loss:.2f}", "position": last} for name, loss in shown.items()
    ]
    names = ["held out", *shown]
    colours = [_HELDOUT, *(_STRATEGIES.get(name, "#888") for name in shown)]
    colour = {"field": "what", "type": "nominal", "scale": {"domain": names, "range": colours}, "legend": None}
    x = {"field": "position", "type": "quantitative", "title": "position in the row", "scale": {"nice": False}}
    y = {"field": "loss", "type": "quantitative", "title": "loss, nats a token", "scale": {"zero": False}}
    return layers(
        [
            _rules(rules, y, colour),
            _line(values, "held out", 1.5, x, y, colour),
            _labels(_apart(rules, values), x, y, colour),
        ]
    )


def _position_curves(
    values: list[dict[str, Any]], by_position: Mapping[str, Sequence[float]], entropy_rate: float | None
) -> dict[str, Any]:
    shown = {name: curve for name, curve in by_position.items() if not name.endswith("_corpus")}
    for name, curve in shown.items():
        values = values + [{"position": i + 1, "loss": loss, "what": name} for i, loss in enumerate(curve)]
    names = ["held out", *shown]
    last = max(v["position"] for v in values)
    labels = [{**v, "label": f"{_named(v['what'])} {v['loss']:.2f}"} for v in values if v["position"] == last]
    colours = [_HELDOUT, *(_STRATEGIES.get(name, "#888") for name in shown)]
    rules = []
    if entropy_rate is not None:
        names, colours = [*names, "entropy rate"], [*colours, "#3a7d44"]
        rules = [{"loss": entropy_rate, "what": "entropy rate"}]
        labels += [{**rules[0], "position": last, "label": f"entropy rate {entropy_rate:.2f}"}]
    colour = {"field": "what", "type": "nominal", "scale": {"domain": names, "range": colours}, "legend": None}
    x = {"field": "position", "type": "quantitative", "title": "position in the row", "scale": {"nice": False}}
    y = {"field": "loss", "type": "quantitative", "title": "loss, nats a token", "scale": {"zero": False}}
    lines = [
        _line(values, name, 2.5 if name == "held out" else 1.5, x, y, colour) for name in reversed(["held out", *shown])
    ]
    return layers([_rules(rules, y, colour), *lines, _labels(_apart(labels, values), x, y, colour)])


def divergence_curves(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """How far each strategy is from the model while it learns: which of them it predicts like, and when.

    None where nobody compared them.
    """
    tokens = _tokens_by_step(metrics)
    seen = [line for line in metrics if any(name.startswith("kl_of_") for name in line)]
    names = [name for name in (seen[0] if seen else ()) if name.startswith("kl_of_")]
    if not names or not any("tokens" in line for line in metrics):
        return None
    values = [
        {"tokens": tokens(line["step"]), "loss": max(line[name], 1e-4), "what": name.removeprefix("kl_of_")}
        for line in seen
        for name in names
    ]
    shown = [name.removeprefix("kl_of_") for name in names]
    last = max(v["tokens"] for v in values)
    scale = {"domain": shown, "range": [_STRATEGIES.get(name, "#888") for name in shown]}
    colour = {"field": "what", "type": "nominal", "legend": None, "scale": scale}
    x = {
        "field": "tokens",
        "type": "quantitative",
        "title": "training tokens",
        "axis": {"format": "~s", "tickCount": 6},
    }
    x["scale"] = {"domain": [0, last], "nice": False}
    y = {
        "field": "loss",
        "type": "quantitative",
        "title": "KL(strategy ‖ model), nats a token",
        "scale": {"zero": True},
    }
    ends = [{**v, "label": f"{_named(v['what'])} {v['loss']:.2f}"} for v in values if v["tokens"] == last]
    lines = [_line(values, name, 2.0, x, y, colour) for name in shown]
    return layers([*lines, _labels(_apart(ends, values), x, y, colour)])


def _tokens_by_step(metrics: Sequence[Mapping[str, Any]]) -> Callable[[int], float]:
    """Training tokens behind a step, also of one between two lines that count them."""
    known = sorted({line["step"]: line["tokens"] for line in metrics if "tokens" in line}.items()) or [(0, 0)]
    steps = [step for step, _ in known]

    def tokens(step: int) -> float:
        at = bisect.bisect_left(steps, step)
        if at < len(steps) and steps[at] == step:
            return float(known[at][1])
        (a, x), (b, y) = known[at - 1] if at else (0, 0), known[min(at, len(known) - 1)]
        return float(x + (y - x) * (step - a) / (b - a)) if b > a else float(y)

    return tokens


def _named(strategy: str) -> str:
    return strategy.replace("_in_context", "").replace("_", " ")


def _rules(rules: Sequence[Mapping[str, Any]], y: Any, colour: Any) -> dict[str, Any]:
    mark = {"type": "rule", "strokeDash": [4, 4]}
    return {"data": {"values": list(rules)}, "mark": mark, "encoding": {"y": y, "color": colour}}


def _labels(placed: Sequence[Mapping[str, Any]], x: Any, y: Any, colour: Any) -> dict[str, Any]:
    return {
        "data": {"values": list(placed)},
        "mark": {"type": "text", "align": "left", "dx": 8, "fontSize": 12},
        "encoding": {"x": x, "y": y | {"field": "at"}, "text": {"field": "label"}, "color": colour},
    }


def epoch_curves(
    losses: Mapping[str, Sequence[float]], unit: str = "epoch", what: str = "held-out loss"
) -> dict[str, Any]:
    """Loss by epoch, or by another unit of time, a curve for each name."""
    values: list[dict[str, Any]] = [
        {"epoch": epoch, "loss": loss, "what": name}
        for name, curve in losses.items()
        for epoch, loss in enumerate(curve, start=1)
    ]
    last = max((v["epoch"] for v in values), default=1)
    ends = [{**v, "label": f"{v['what']} {v['loss']:.3f}"} for v in values if v["epoch"] == last]
    palette = ("#c8553d", "#e0a458", _HELDOUT, "#6a994e", "#888")
    scale = {"domain": list(losses), "range": list(palette[: len(losses)])}
    colour = {"field": "what", "type": "nominal", "legend": None, "scale": scale}
    x = {"field": "epoch", "type": "quantitative", "title": unit, "scale": {"domain": [1, last], "nice": False}}
    y = {"field": "loss", "type": "quantitative", "title": f"{what}, nats a token", "scale": {"zero": False}}
    lines = [_line(values, name, 2.0, x, y, colour) for name in losses]
    return layers([*lines, _labels(_apart(ends, values), x, y, colour)])


def _line(values: Sequence[Mapping[str, Any]], what: str, width: float, x: Any, y: Any, colour: Any) -> dict[str, Any]:
    return {
        "data": {"values": [v for v in values if v["what"] == what]},
        "mark": {"type": "line", "strokeWidth": width, "clip": True},
        "encoding": {"x": x, "y": y, "color": colour},
    }


def _apart(labels: Sequence[Mapping[str, Any]], values: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Labels with a height `at` of their own, pushed apart where their values lie close together."""
    placed: list[dict[str, Any]] = []
    losses = [v["loss"] for v in (*labels, *values)] or [0.0]
    span = max(losses) - min(losses)
    for label in sorted(labels, key=lambda v: v["loss"]):
        floor = placed[-1]["at"] + 0.055 * span if placed else -1e9
        placed.append({**label, "at": max(label["loss"], floor)})
    return placed


def layers(drawn: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A figure of layers, the first at the bottom, in the size and colours of all figures."""
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "width": 700,
        "height": 320,
        "padding": {"left": 5, "top": 5, "bottom": 5, "right": 90},
        "autosize": {"type": "pad"},
        "layer": list(drawn),
        "config": {
            "view": {"stroke": None},
            "font": "system-ui, sans-serif",
            "axis": {
                "grid": True,
                "gridColor": "#eee",
                "domainColor": "#bbb",
                "tickColor": "#bbb",
                "labelColor": "#555",
            },
        },
    }
