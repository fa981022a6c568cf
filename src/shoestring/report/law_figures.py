"""Figures of a scaling law: the data with curves of equal compute, residuals, the best size by compute, loss curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shoestring.report.figures import axis, layers

_DARK, _BAND, _GREY = "#1d4e89", "#9db4c0", "#888"
_SCHEME = "viridis"


class LawPoint(NamedTuple):
    """A trained model, and the loss that the law predicts for it."""

    name: str
    params: float
    tokens: float
    flops: float
    loss: float
    predicted: float | None


class Curve(NamedTuple):
    """Loss along a line: (x, loss) in order, with the FLOPs of the line or a name."""

    places: Sequence[tuple[float, float]]
    flops: float | None = None
    name: str = ""


class SizeAtFlops(NamedTuple):
    """The best size for a compute, with its 95 % interval where there is one."""

    flops: float
    params: float
    low: float | None = None
    high: float | None = None


def loss_by_size(points: Sequence[LawPoint], curves: Sequence[Curve], best: Sequence[tuple[float, float]]) -> Any:
    """Losses by parameters, coloured by FLOPs; the law's `curves` of equal FLOPs, and its `best` (params, loss)."""
    losses = [point.loss for point in points]
    margin = 0.06 * (max(losses) - min(losses) or max(losses))
    inside = [min(losses) - margin, max(losses) + margin]
    x = _log("params", "parameters N", [place for curve in curves for place, _ in curve.places])
    y = axis("loss", "loss", scale={"domain": inside, "zero": False})
    colour = _colour("flops", "FLOPs", [point.flops for point in points])
    lines = [
        {"params": place, "loss": loss, "flops": curve.flops, "curve": index}
        for index, curve in enumerate(curves)
        for place, loss in curve.places
    ]
    optimum = [{"params": place, "loss": loss} for place, loss in best]
    same = colour | {"legend": None}  # the points have the one legend, a gradient
    figure = layers(
        [
            _drawn(lines, {"type": "line", "strokeWidth": 1.4, "clip": True}, x, y, same, detail="curve"),
            _drawn(optimum, {"type": "line", "strokeDash": [5, 4], "color": "#222", "clip": True}, x, y),
            _drawn(
                [point._asdict() for point in points],
                {"type": "point", "filled": True, "size": 42, "opacity": 0.9},
                x,
                y,
                colour,
            ),
        ]
    )
    return figure | {"resolve": {"scale": {"color": "independent"}, "legend": {"color": "independent"}}}


def residuals(points: Sequence[LawPoint]) -> Any:
    """The law's error on each loss in percent, above (+) or below (-), by compute; coloured by parameters."""
    shown = [point for point in points if point.predicted is not None]
    values = [{**p._asdict(), "off": 100 * ((p.predicted or p.loss) / p.loss - 1)} for p in shown]
    x = _log("flops", "FLOPs", [point.flops for point in shown])
    y = axis("off", "law - loss, %")
    colour = _colour("params", "parameters", [point.params for point in shown], "~s")
    zero = {"data": {"values": [{"off": 0}]}, "mark": {"type": "rule", "color": _GREY}, "encoding": {"y": y}}
    return layers([zero, _drawn(values, {"type": "point", "filled": True, "size": 42}, x, y, colour)])


def best_size(line: Sequence[SizeAtFlops], optima: Mapping[str, Sequence[tuple[float, float]]]) -> Any:
    """Parameters of the best model by compute: the law with its interval, and minima as (FLOPs, params)."""
    found = [pair for pairs in optima.values() for pair in pairs]
    x = _log("flops", "FLOPs", [*(b.flops for b in line), *(flops for flops, _ in found)])
    y = _log("params", "best number of parameters", [*(b.params for b in line), *(params for _, params in found)])
    values = [b._asdict() for b in line]
    banded = [value for value in values if value["low"] is not None]
    band = {
        "data": {"values": banded},
        "mark": {"type": "area", "color": _BAND, "opacity": 0.35},
        "encoding": {"x": x, "y": y | {"field": "low"}, "y2": {"field": "high"}},
    }
    minima = [{"flops": f, "params": p, "what": name} for name, pairs in optima.items() for f, p in pairs]
    scale = {"domain": list(optima), "range": ["#c8553d", "#3a7d44"][: len(optima)]}
    colour = {"field": "what", "type": "nominal", "title": None, "scale": scale}
    drawn = [band] if banded else []
    drawn.append(_drawn(values, {"type": "line", "color": _DARK, "strokeWidth": 2}, x, y))
    if minima:
        drawn.append(_drawn(minima, {"type": "point", "filled": True, "size": 48}, x, y, colour))
    return layers(drawn)


def loss_by_flops(curves: Sequence[Curve]) -> Any:
    """Held-out loss of runs by the compute spent."""
    names = [curve.name for curve in curves]
    values: list[dict[str, Any]] = [
        {"flops": place, "loss": loss, "run": curve.name}
        for curve in curves
        for place, loss in curve.places
        if place > 0
    ]
    x = _log("flops", "FLOPs", [value["flops"] for value in values])
    y = axis("loss", "held-out loss, nats per token", scale={"zero": False})
    scheme = {"scheme": "tableau10" if len(names) <= 10 else _SCHEME, "domain": names}
    colour = {"field": "run", "type": "nominal", "title": None, "scale": scheme}
    if len(names) > 24:  # the list of names would be longer than the figure
        colour["legend"] = None
    return layers(
        [
            _drawn(values, {"type": "line", "strokeWidth": 1.6}, x, y, colour),
            _drawn(values, {"type": "point", "filled": True, "size": 16}, x, y, colour),
        ]
    )


def _log(field: str, title: str, values: Sequence[float]) -> dict[str, Any]:
    """A logarithmic axis; parameters are written 10M, FLOPs 1e+18."""
    scale = {"type": "log", "nice": False, "zero": False, "padding": 12}
    return axis(field, title, scale=scale, axis=_ticks(values, ".0e" if field == "flops" else "~s"))


def _ticks(values: Sequence[float], text: str, beyond: float = 0.15) -> dict[str, Any]:
    """Ticks at powers of ten, and at 2 and 5 times these over a short range; 10⁹ is written B.

    A tick may lie `beyond` powers of ten outside the values.
    """
    low, high = math.log10(min(values)), math.log10(max(values))
    steps = (1,) if high - low > 2.5 else (1, 2, 5)
    places = [step * 10.0**power for power in range(math.floor(low), math.ceil(high) + 1) for step in steps]
    inside = [place for place in places if low - beyond <= math.log10(place) <= high + beyond]
    every = max(1, len(inside) // 8)
    return {"values": inside[::every], "labelExpr": f"replace(format(datum.value, '{text}'), 'G', 'B')"}


def _colour(field: str, title: str, values: Sequence[float], text: str = ".0e") -> dict[str, Any]:
    low, high = min(values), max(values)
    scale = {"type": "log", "scheme": _SCHEME, "domain": [low, high] if high > low else [low / 2, high * 2]}
    legend = {"type": "gradient", "title": title} | _ticks(values, text, beyond=0.0)
    return {"field": field, "type": "quantitative", "scale": scale, "legend": legend}


def _drawn(
    values: Sequence[Mapping[str, Any]], mark: Mapping[str, Any], x: Any, y: Any, colour: Any = None, detail: str = ""
) -> dict[str, Any]:
    encoding = {"x": x, "y": y}
    if colour is not None:
        encoding["color"] = colour
    if detail:
        encoding["detail"] = {"field": detail, "type": "nominal"}
    return {"data": {"values": list(values)}, "mark": dict(mark), "encoding": encoding}
