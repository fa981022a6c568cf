"""Figures as Vega-Lite specifications, drawn to SVG by vl-convert without a browser or a network.

A specification is plain data, so no plotting library is needed between a record and its figure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle
from typing import Any

from shoestring.core.errors import MissingExtra, UserError
from shoestring.core.host import address_space
from shoestring.core.numeric import interpolate
from shoestring.core.units import Bytes

_HELDOUT = "#1d4e89"
_COLOURS = {
    "training": "#9db4c0",
    "held out": _HELDOUT,
    "entropy rate": "#3a7d44",
    "uniform": "#b8b8b8",
    "unigram": "#e0a458",
    "bigram": "#c8553d",
    "unigram_in_context": "#e0a458",
    "bigram_in_context": "#c8553d",
    "oracle": "#3a7d44",
    "unigram_corpus": "#d8c49a",
    "bigram_corpus": "#d9a193",
    "least likely": _HELDOUT,
    "most likely": "#c8553d",
}
_TEXT = "heldout_loss/"
"""What the names of the metrics of named texts begin with."""
_TEXT_COLOURS = (_HELDOUT, "#7b2d8b", "#2a9d8f", "#b5651d", "#d6336c", "#5f7a1f")


_ADDRESSES = 80 << 30
"""Bytes of address space that vl-convert reserves at most; it ends the process where it gets fewer."""


class NoSpace(UserError):
    """A process whose address space is too small for drawing."""

    def __init__(self, room: int):
        self.room = room
        super().__init__(
            f"drawing a figure needs {Bytes(_ADDRESSES).short()} of address space, and ulimit -v leaves "
            f"{Bytes(room).short()}; `shoestring report` draws it where there is no such limit"
        )

    def __reduce__(self) -> tuple[type, tuple[int]]:
        return type(self), (self.room,)


def svg(specification: Mapping[str, Any]) -> str:
    """The SVG of a specification."""
    room = address_space()
    if room is not None and room < _ADDRESSES:
        raise NoSpace(room)
    try:
        import vl_convert
    except ImportError as cause:
        raise MissingExtra("drawing a figure", "vl-convert-python", "report") from cause
    return str(vl_convert.vegalite_to_svg(json.dumps(specification)))


def loss_curve(
    metrics: Sequence[Mapping[str, Any]], baselines: Mapping[str, float], predicted: str = "token"
) -> dict[str, Any]:
    """Training and held-out loss by tokens, with a curve per named text, and a line per baseline."""
    tokens = _tokens_by_step(metrics)
    training = [{"tokens": m["tokens"], "loss": m["loss"], "what": "training"} for m in metrics if "loss" in m]
    named = list(dict.fromkeys(name for m in metrics for name in m if name.startswith(_TEXT)))
    columns = {name: name for name in named} or {"held out": "heldout_loss"}
    curves = {
        what: [{"tokens": tokens(m["step"]), "loss": m[name], "what": what} for m in metrics if name in m]
        for what, name in columns.items()
    }
    heldout = [point for curve in curves.values() for point in curve]
    values = training + heldout
    rules = [{"loss": loss, "what": name} for name, loss in baselines.items()]
    last = max((v["tokens"] for v in values), default=1)
    ends = [max(curve, key=lambda v: v["tokens"]) for curve in (training, *curves.values()) if curve]
    labels = _labelled([*ends, *({**rule, "tokens": last} for rule in rules)])
    x, y, colour = _token_axis(last), _loss_axis(predicted), _colour(["training", *curves, *baselines])
    points = {
        "data": {"values": heldout},
        "mark": {"type": "point", "filled": True, "size": 40, "opacity": 1},
        "encoding": {"x": x, "y": y, "color": colour},
    }
    lines = [_line(values, "training", 1.2, x, y, colour), *(_line(values, what, 2.5, x, y, colour) for what in curves)]
    return layers([_rules(rules, y, colour), *lines, points, _labels(_apart(labels, values), x, y, colour)])


def position_curve(
    loss_by_position: Sequence[float | None],
    baselines: Mapping[str, float],
    by_position: Mapping[str, Sequence[float]] | None = None,
    entropy_rate: float | None = None,
) -> dict[str, Any]:
    """Held-out loss by position in the row, which shows the value of context.

    Baselines `by_position` are curves, with a line for the entropy rate; without them, `baselines` are lines.
    """
    curves = {name: curve for name, curve in (by_position or {}).items() if not name.endswith("_corpus")}
    values: list[dict[str, Any]] = [
        {"position": place, "loss": loss, "what": what}
        for what, curve in {"held out": loss_by_position, **curves}.items()
        for place, loss in enumerate(curve, start=1)
        if loss is not None
    ]
    last = max((v["position"] for v in values), default=0)
    if by_position:
        levels, ends = {"entropy rate": entropy_rate}, [v for v in values if v["position"] == last]
    else:
        levels, ends = {name: loss for name, loss in baselines.items() if name != "uniform"}, []
    levels = {name: loss for name, loss in levels.items() if loss is not None}
    rules = [{"loss": loss, "what": name} for name, loss in levels.items()]
    labels = _labelled([*ends, *({**rule, "position": last} for rule in rules)])
    colour = _colour(["held out", *curves, *levels])
    x, y = axis("position", "position in the row", scale={"nice": False}), _loss_axis()
    lines = [_line(values, name, 1.5, x, y, colour) for name in reversed(curves)]
    lines.append(_line(values, "held out", 2.5 if by_position else 1.5, x, y, colour))
    return layers([_rules(rules, y, colour), *lines, _labels(_apart(labels, values), x, y, colour)])


def divergence_curves(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Divergence of the model from each baseline during training; None where the metrics have none."""
    tokens = _tokens_by_step(metrics)
    compared = [line for line in metrics if any(name.startswith("kl_of_") for name in line)]
    found = [name for line in compared for name in line if name.startswith("kl_of_")]
    names = [name.removeprefix("kl_of_") for name in dict.fromkeys(found)]
    if not names or not any("tokens" in line for line in metrics):
        return None
    values = [
        {"tokens": tokens(line["step"]), "loss": max(line[f"kl_of_{name}"], 1e-4), "what": name}
        for line in compared
        for name in names
        if f"kl_of_{name}" in line
    ]
    last = max(v["tokens"] for v in values)
    x, colour = _token_axis(last), _colour(names)
    y = axis("loss", "KL(baseline ‖ model), nats per token", scale={"zero": True})
    labels = _labelled(v for v in values if v["tokens"] == last)
    lines = [_line(values, name, 2.0, x, y, colour) for name in names]
    return layers([*lines, _labels(_apart(labels, values), x, y, colour)])


OVERLAPS = {"overlap": "least likely", "overlap_top": "most likely"}
"""Metrics that compare a model with its first weights."""


def overlap_curves(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Overlap with the first weights by step, with the range over prompts; None where the metrics have none."""
    lines = [line for line in metrics if "overlap" in line]
    if not lines:
        return None
    values = [
        {
            "step": line["step"],
            "loss": line[name],
            "least": line[f"{name}_min"],
            "most": line[f"{name}_max"],
            "what": what,
        }
        for line in lines
        for name, what in OVERLAPS.items()
    ]
    x = axis("step", "step", axis={"format": "~s"}, scale={"nice": False})
    y = axis("loss", "shared with the first weights", scale={"domain": [0, 1]}, axis={"format": "%"})
    colour, last = _colour(list(OVERLAPS.values())), max(v["step"] for v in values)
    ends = [{**v, "label": f"{v['what']} {v['loss']:.0%}"} for v in values if v["step"] == last]
    band = {
        "data": {"values": values},
        "mark": {"type": "area", "opacity": 0.15},
        "encoding": {"x": x, "y": y | {"field": "least"}, "y2": {"field": "most"}, "color": colour},
    }
    drawn = [_line(values, what, 2.0, x, y, colour) for what in OVERLAPS.values()]
    return layers([band, *drawn, _labels(_apart(ends, values), x, y, colour)])


def _tokens_by_step(metrics: Sequence[Mapping[str, Any]]) -> Callable[[int], float]:
    """A function from steps to training tokens, interpolated between the metrics that have them."""
    known = sorted(({0: 0} | {line["step"]: line["tokens"] for line in metrics if "tokens" in line}).items())
    return lambda step: float(interpolate(known, step))


def axis(field: str, title: str, **more: Any) -> dict[str, Any]:
    """A quantitative axis."""
    return {"field": field, "type": "quantitative", "title": title, **more}


def _token_axis(last: float) -> dict[str, Any]:
    ticks, scale = {"format": "~s", "tickCount": 6}, {"domain": [0, last], "nice": False}
    return axis("tokens", "positions of training", axis=ticks, scale=scale)


def _loss_axis(predicted: str = "token") -> dict[str, Any]:
    return axis("loss", f"loss, nats per {predicted}", scale={"zero": False})


def _colour(names: Sequence[str]) -> dict[str, Any]:
    texts = dict(zip((name for name in names if name.startswith(_TEXT)), cycle(_TEXT_COLOURS)))
    scale = {"domain": list(names), "range": [(_COLOURS | texts).get(name, "#888") for name in names]}
    return {"field": "what", "type": "nominal", "legend": None, "scale": scale}


def _labelled(values: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{**v, "label": f"{named(v['what'])} {v['loss']:.2f}"} for v in values]


def named(baseline: str) -> str:
    """What a curve or level is called in a figure."""
    if baseline.startswith(_TEXT):
        return baseline.removeprefix(_TEXT)
    return baseline.replace("_in_context", "").replace("_", " ")


def _rules(rules: Sequence[Mapping[str, Any]], y: Any, colour: Any) -> dict[str, Any]:
    mark = {"type": "rule", "strokeDash": [4, 4]}
    return {"data": {"values": list(rules)}, "mark": mark, "encoding": {"y": y, "color": colour}}


def _labels(placed: Sequence[Mapping[str, Any]], x: Any, y: Any, colour: Any) -> dict[str, Any]:
    return {
        "data": {"values": list(placed)},
        "mark": {"type": "text", "align": "left", "dx": 8, "fontSize": 12},
        "encoding": {"x": x, "y": y | {"field": "at"}, "text": {"field": "label"}, "color": colour},
    }


def _line(values: Sequence[Mapping[str, Any]], what: str, width: float, x: Any, y: Any, colour: Any) -> dict[str, Any]:
    return {
        "data": {"values": [v for v in values if v["what"] == what]},
        "mark": {"type": "line", "strokeWidth": width, "clip": True},
        "encoding": {"x": x, "y": y, "color": colour},
    }


def _apart(labels: Sequence[Mapping[str, Any]], values: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Labels with a height `at`, moved apart where their values are close."""
    placed: list[dict[str, Any]] = []
    losses = [v["loss"] for v in (*labels, *values)] or [0.0]
    span = max(losses) - min(losses)
    for label in sorted(labels, key=lambda v: v["loss"]):
        floor = placed[-1]["at"] + 0.055 * span if placed else -1e9
        placed.append({**label, "at": max(label["loss"], floor)})
    return placed


def layers(drawn: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A figure of layers, the first at the bottom, in the common size and style."""
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
