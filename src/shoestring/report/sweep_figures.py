"""Figures of a sweep: a heat map over two fields, curves, and parallel coordinates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shoestring.report.figures import axis, layers

_SCHEME = "viridis"
_MOST_COLOURS = 10
"""Values of a field that colours can tell apart."""


class Cell(NamedTuple):
    """A result for one pair of values; None: it is not known."""

    x: Any
    y: Any
    value: float | None


class Line(NamedTuple):
    """A curve of a run."""

    run: str
    group: Any
    """What its colour stands for."""
    places: Sequence[tuple[float, float]]


AXES = {"tokens": "positions of training", "seconds": "seconds", "flops": "training FLOPs"}


def heat_map(cells: Sequence[Cell], x: str, y: str, what: str) -> dict[str, Any]:
    """A result over two fields, each with its values in order."""
    known = [cell for cell in cells if cell.value is not None]
    xs, ys = (ordered([cell[at] for cell in cells]) for at in (0, 1))
    values = [{"x": str(cell.x), "y": str(cell.y), "value": cell.value} for cell in known]
    middle = sum(cell.value or 0.0 for cell in known) / len(known) if known else 0.0
    place = {
        "x": {"field": "x", "type": "ordinal", "title": x, "sort": xs, "axis": {"labelAngle": 0, "grid": False}},
        "y": {"field": "y", "type": "ordinal", "title": y, "sort": ys, "axis": {"grid": False}},
    }
    colour = {"field": "value", "type": "quantitative", "title": what, "scale": {"scheme": _SCHEME, "reverse": True}}
    text = {"condition": {"test": f"datum.value > {middle}", "value": "#fff"}, "value": "#222"}
    figure = layers(
        [
            {"data": {"values": values}, "mark": {"type": "rect"}, "encoding": {**place, "color": colour}},
            {
                "data": {"values": values},
                "mark": {"type": "text", "fontSize": 12},
                "encoding": {
                    **place,
                    "text": {"field": "value", "type": "quantitative", "format": ".4~g"},
                    "color": text,
                },
            },
        ]
    )
    size = {"width": max(200, min(700, 90 * len(xs))), "height": max(80, min(420, 44 * len(ys)))}
    return figure | size | {"resolve": {"scale": {"color": "independent"}}}


def curves(lines: Sequence[Line], against: str, group: str) -> dict[str, Any]:
    """Held-out loss of every run; the colour is the value of the field `group`."""
    values: list[dict[str, Any]] = [
        {"x": x, "loss": loss, "run": line.run, "group": str(line.group)} for line in lines for x, loss in line.places
    ]
    names = ordered([line.group for line in lines])
    scheme = "tableau10" if len(names) <= _MOST_COLOURS else _SCHEME
    colour: dict[str, Any] = {
        "field": "group",
        "type": "nominal",
        "title": group,
        "sort": names,
        "scale": {"scheme": scheme},
    }
    if len(names) > 2 * _MOST_COLOURS:  # the list of names would be longer than the figure
        colour["legend"] = None
    losses = sorted(value["loss"] for value in values)
    top = losses[int(0.98 * (len(losses) - 1))]
    hides = losses[-1] - losses[0] > 2 * (top - losses[0]) > 0  # a few losses, of first steps, would hide the others
    scale = {"zero": False} | ({"domain": [losses[0], top]} if hides else {})
    x = axis("x", AXES[against], axis={"format": "~s", "tickCount": 6}, scale={"nice": False})
    y = axis("loss", "held-out loss, nats per token", scale=scale)
    width = 1.8 if len(lines) <= 20 else 0.8
    mark = {"type": "line", "strokeWidth": width, "clip": True, "opacity": 0.85}
    encoding = {"x": x, "y": y, "color": colour, "detail": {"field": "run", "type": "nominal"}}
    return layers([{"data": {"values": values}, "mark": mark, "encoding": encoding}])


def step_curves(lines: Sequence[Line], title: str, by: str = "step") -> dict[str, Any]:
    """A score by step, or by what else, for every run, coloured by its group."""
    values = [{by: x, "y": y, "run": line.run, "group": str(line.group)} for line in lines for x, y in line.places]
    colour = {"field": "group", "type": "nominal", "title": None, "scale": {"scheme": "tableau10"}}
    encoding = {
        "x": axis(by, by, axis={"format": "~s"}, scale={"nice": False}),
        "y": axis("y", title, scale={"zero": False}),
        "color": colour,
        "detail": {"field": "run", "type": "nominal"},
    }
    mark = {"type": "line", "strokeWidth": 1.8, "opacity": 0.85, "point": {"size": 18}}
    return layers([{"data": {"values": values}, "mark": mark, "encoding": encoding}])


def parallel(settings: Sequence[Mapping[str, Any]], fields: Sequence[str], what: str) -> dict[str, Any]:
    """A line for each setting through its values of all fields, and through the result `what`, which colours it."""
    known = [setting for setting in settings if setting[what] is not None]
    low, high = (end(setting[what] for setting in known) for end in (min, max))
    heights: dict[str, dict[str, float]] = {}
    for field in fields:
        names = ordered([setting[field] for setting in known])
        heights[field] = {name: index / max(1, len(names) - 1) for index, name in enumerate(names)}

    def places(setting: Mapping[str, Any]) -> list[tuple[str, float]]:
        at = [(field, heights[field][str(setting[field])]) for field in fields]
        return [*at, (what, (setting[what] - low) / (high - low) if high > low else 0.5)]

    values = [
        {"field": field, "at": at, "setting": number, "value": setting[what]}
        for number, setting in enumerate(known)
        for field, at in places(setting)
    ]
    marks = [{"field": field, "at": at, "text": name} for field in fields for name, at in heights[field].items()]
    marks += [{"field": what, "at": at, "text": f"{end:.4g}"} for at, end in ((0.0, low), (1.0, high))]
    x = {"field": "field", "type": "ordinal", "sort": [*fields, what], "title": None, "axis": {"labelAngle": 0}}
    y = {"field": "at", "type": "quantitative", "axis": None}
    colour = {"field": "value", "type": "quantitative", "title": what, "scale": {"scheme": _SCHEME, "reverse": True}}
    line = {"type": "line", "strokeWidth": 1.2, "opacity": 0.7}
    text = {"type": "text", "align": "left", "dx": 5, "fontSize": 11, "color": "#333"}
    return layers(
        [
            {
                "data": {"values": values},
                "mark": line,
                "encoding": {"x": x, "y": y, "color": colour, "detail": {"field": "setting", "type": "nominal"}},
            },
            {"data": {"values": marks}, "mark": text, "encoding": {"x": x, "y": y, "text": {"field": "text"}}},
        ]
    )


def ordered(values: Sequence[Any]) -> list[str]:
    """Each value once, as a text: numbers in their order, others as they come."""
    unique = list(dict.fromkeys(values))
    if all(isinstance(value, int | float) for value in unique):
        unique.sort()
    return [str(value) for value in unique]
