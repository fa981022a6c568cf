"""Figures that can be zoomed in a page: the same data as in their SVG, drawn by uPlot, which lies in the page."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from html import escape
from importlib import resources
from typing import Any

from shoestring.report.figures import named


def plot_data(specification: Mapping[str, Any]) -> dict[str, Any]:
    """The curves and levels of a figure of ours, at places that they share."""
    curves: dict[str, dict[float, float]] = {}
    look: dict[str, dict[str, Any]] = {}
    levels: dict[str, float] = {}
    titles = {"x": "", "y": ""}
    for layer in specification["layer"]:
        kind, encoding, values = layer["mark"]["type"], layer["encoding"], layer["data"]["values"]
        scale = encoding["color"]["scale"]
        colours = dict(zip(scale["domain"], scale["range"]))
        if kind == "rule":
            levels |= {value["what"]: value[encoding["y"]["field"]] for value in values}
        if kind == "line":
            titles = {name: encoding[name]["title"] for name in ("x", "y")}
            for value in values:
                place = float(value[encoding["x"]["field"]])
                curves.setdefault(value["what"], {})[place] = value[encoding["y"]["field"]]
        if kind in ("rule", "line"):
            look |= {value["what"]: {"colour": colours[value["what"]]} for value in values}
            for value in values if kind == "line" else ():
                look[value["what"]]["width"] = layer["mark"]["strokeWidth"]
    places = sorted({place for curve in curves.values() for place in curve})
    series = [
        {"label": named(name), **look[name], "y": [curve.get(x) for x in places]} for name, curve in curves.items()
    ]
    series += [
        {"label": f"{named(name)} {level:.2f}", **look[name], "dashed": True, "y": [level] * len(places)}
        for name, level in levels.items()
    ]
    return {"x": places, "series": series, "titles": titles}


def live_figure(specification: Mapping[str, Any], picture: str) -> str:
    """HTML of a figure: the picture, in whose place a script of the page puts one that can be zoomed."""
    data = json.dumps(plot_data(specification), allow_nan=False).replace("<", "\\u003c")
    return f'<div data-plot><div>{picture}</div><script type="application/json">{data}</script></div>'


@cache
def script() -> tuple[str, str]:
    """HTML that draws the figures of a page, and the policy that allows this script and nothing else."""
    static = resources.files("shoestring.report").joinpath("static")
    code = "\n".join(static.joinpath(name).read_text(encoding="utf-8") for name in ("uPlot.iife.min.js", "figure.js"))
    code = f"\n{code}\n"
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    style = static.joinpath("uPlot.min.css").read_text(encoding="utf-8")
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    return f"<style>{style}</style><script>{code}</script>", escape(policy)
