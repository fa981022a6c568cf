"""The page of a fitted law, with figures of its points and its record."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoestring.core.law_record import Law
from shoestring.report.law_figures import (
    Curve,
    LawPoint,
    SizeAtFlops,
    best_size,
    loss_by_flops,
    loss_by_size,
    residuals,
)
from shoestring.report.law_page import optimum_row, write_law_page
from shoestring.studies.law import Fitted
from shoestring.studies.law_data import Given
from shoestring.studies.optimum import best_for_flops
from shoestring.studies.run_results import over_flops
from shoestring.studies.sizing import has_optimum, surface_of

_LEVELS = 9
"""Curves of equal FLOPs, at most."""
_PLACES = 60
"""Points of a drawn curve."""
_BEYOND = 30.0
"""How far beyond the data the best size is drawn."""


def write_report(path: Path, given: Given, fitted: Fitted) -> None:
    """Write law.html."""
    law, points = fitted.law, _points(given, fitted)
    figures: dict[str, Any] = {}
    if law.coefficients:
        levels = flops_levels(given.points.flops)
        curves = [Curve(_equal_flops(law, flops), flops=flops) for flops in levels]
        minima = _minima(law) if has_optimum(law) else []
        title = "Loss by size; lines are the law at equal FLOPs, dashed through its minima"
        figures[title] = loss_by_size(points, curves, minima)
        figures["What the law leaves over"] = residuals(points)
    optima = {f"approach {found.approach}": [(f, n) for f, n, _ in found.optima] for found in law.allocations}
    if has_optimum(law) or optima:
        figures["The best size by compute, with 95 %"] = best_size(_best(law), optima)
    if curves := [Curve(over_flops(run), name=run.name) for run in given.runs if len(run.curve) > 1]:
        figures["Held-out loss of the runs"] = loss_by_flops(curves)
    write_law_page(path, law, optimum_rows(law), figures, given.said)


def write_optima_report(path: Path, law: Law, said: Sequence[str]) -> None:
    """Write the page of a law through given minima."""
    minima = {"given": [(flops, params) for found in law.allocations for flops, params, _ in found.optima]}
    figures = {"The best size by compute, with 95 %": best_size(_best(law), minima)}
    write_law_page(path, law, optimum_rows(law), figures, said)


def optimum_rows(law: Law) -> list[tuple[str, str, str, str]]:
    """The best model for the largest compute of the data, and for 10 and 100 times as much."""
    if not has_optimum(law) and not law.allocations:
        return []
    found = [best_for_flops(law, factor * law.flops[1]) for factor in (1, 10, 100)]
    return [optimum_row(best.flops, best.params, best.tokens, best.loss) for best in found]


def flops_levels(flops: NDArray[np.float64]) -> list[float]:
    """The FLOPs of the drawn curves: those of the groups in the data, or evenly spaced where these are many."""
    logs = np.sort(np.log(flops))
    groups = np.split(logs, np.flatnonzero(np.diff(logs) > 0.25) + 1)
    if len(groups) > _LEVELS or max(group[-1] - group[0] for group in groups) > 0.5:
        return list(map(float, np.exp(np.linspace(logs[0], logs[-1], _LEVELS))))
    return [float(np.exp(group.mean())) for group in groups]


def _points(given: Given, fitted: Fitted) -> list[LawPoint]:
    points, names = given.points, given.points.names or ("",) * len(given.points)
    predicted = [None] * len(points) if fitted.predicted is None else fitted.predicted.tolist()
    columns = (column.tolist() for column in (points.params, points.tokens, points.flops, points.loss))
    return [LawPoint(*values) for values in zip(names, *columns, predicted)]


def _equal_flops(law: Law, flops: float) -> list[tuple[float, float]]:
    sizes = np.geomspace(law.params[0] / 1.5, law.params[1] * 1.5, _PLACES)
    losses = surface_of(law).loss(sizes, flops / law.flops_per_product / sizes)
    return list(zip(sizes.tolist(), losses.tolist()))


def _minima(law: Law) -> list[tuple[float, float]]:
    surface = surface_of(law)
    found = (surface.optimum(flops, law.flops_per_product) for flops in np.geomspace(*law.flops, _PLACES))
    return [(params, loss) for params, _, loss in found]


def _best(law: Law) -> list[SizeAtFlops]:
    if not has_optimum(law) and not law.allocations:
        return []
    found = (best_for_flops(law, flops) for flops in np.geomspace(law.flops[0], law.flops[1] * _BEYOND, 24))
    return [SizeAtFlops(best.flops, best.params.value, best.params.low, best.params.high) for best in found]
