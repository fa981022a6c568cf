"""Figures of the benchmarks: losses side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shoestring.report.figures import _HELDOUT, _apart, _labels, _line, layers

PALETTE = ("#c8553d", "#e0a458", _HELDOUT, "#6a994e", "#888")


def loss_curves(losses: Mapping[str, Sequence[float]], unit: str, what: str) -> dict[str, Any]:
    """Loss by epoch, or by another unit of time, a curve for each name."""
    values: list[dict[str, Any]] = [
        {"epoch": epoch, "loss": loss, "what": name}
        for name, curve in losses.items()
        for epoch, loss in enumerate(curve, start=1)
    ]
    last = max((v["epoch"] for v in values), default=1)
    ends = [{**v, "label": f"{v['what']} {v['loss']:.3f}"} for v in values if v["epoch"] == last]
    scale = {"domain": list(losses), "range": list(PALETTE[: len(losses)])}
    colour = {"field": "what", "type": "nominal", "legend": None, "scale": scale}
    x = {"field": "epoch", "type": "quantitative", "title": unit, "scale": {"domain": [1, last], "nice": False}}
    y = {"field": "loss", "type": "quantitative", "title": f"{what}, nats per token", "scale": {"zero": False}}
    lines = [_line(values, name, 2.0, x, y, colour) for name in losses]
    return layers([*lines, _labels(_apart(ends, values), x, y, colour)])
