"""The page of a scaling law, law.html, and its tables, which the terminal shows too."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from shoestring.core.files import write_whole
from shoestring.core.law_record import Estimate, Law
from shoestring.core.units import Count, Interval, counted
from shoestring.report.page import drawn, section, table, whole_page

_MEANINGS = {
    "E": "irreducible loss",
    "A": "times N^-alpha: loss due to the finite model",
    "B": "times D^-beta: loss due to the finite data",
    "alpha": "exponent of parameters",
    "beta": "exponent of tokens",
    "a_opt": "beta / (alpha + beta): the best N grows as C^a_opt",
}
_SHOWN = 5
"""Lines on what was left out; law.json has all of them."""
APPROACHES = {
    0: "the given minima",
    1: "approach 1, envelope of the curves",
    2: "approach 2, parabolas at equal FLOPs",
}


def show_estimate(estimate: Estimate, printer: Callable[[float], str] = lambda value: f"{value:.4g}") -> str:
    """The value with its interval, as in 0.514 (0.48 – 0.556)."""
    if not estimate.identified:
        return f"{printer(estimate.value)} (not identified)"
    if estimate.low is None or estimate.high is None:
        return printer(estimate.value)
    return Interval(estimate.low, estimate.value, estimate.high).show(printer)


def coefficient_rows(law: Law) -> list[tuple[str, str, str, str]]:
    """(coefficient, value, 95 % interval, meaning) of the surface, then of the power laws of the approaches."""
    rows = [(name, *_parts(estimate), _MEANINGS[name]) for name, estimate in law.coefficients.items()]
    for found in law.allocations:
        about = f"{APPROACHES[found.approach]}; {len(found.optima)} minima"
        given = "given, not fitted"
        estimates = {
            "N ~ C^a, a": found.params_exponent,
            "N = k C^a, k": found.params_factor,
            "D ~ C^b, b": found.tokens_exponent,
            "D = k C^b, k": found.tokens_factor,
        }
        number = f" ({found.approach})" if found.approach else ""
        rows += [
            (f"{name}{number}", *_parts(each), given if found.fixed and "~" in name else about)
            for name, each in estimates.items()
        ]
    return rows


def _parts(estimate: Estimate) -> tuple[str, str]:
    known = estimate.low is not None and estimate.high is not None
    unknown = "" if estimate.identified else "not identified"
    return f"{estimate.value:.6g}", f"{estimate.low:.4g} – {estimate.high:.4g}" if known else unknown


def fit_rows(law: Law) -> list[tuple[str, str]]:
    """(label, text) rows on how the fit went."""
    rows = [
        ("points", f"{law.points}, of {law.flops[0]:.3g} to {law.flops[1]:.3g} FLOPs"),
        ("N, D and C", law.count),
    ]
    if law.objective is not None:
        rows.append(("penalty", f"{law.penalty} of ln(law / loss), {law.objective:.6g} in total"))
    if law.starts is not None and law.failed_starts is not None:
        rows.append(
            ("starts", f"{law.starts} from a grid; the most promising are pursued, and the lowest minimum is kept")
        )
    if law.boundary:
        rows.append(("at a bound", f"{', '.join(law.boundary)}: the data do not determine this term"))
    if law.resamples:
        rows.append(("intervals", _intervals(law)))
    if law.heldout_error is not None:
        points = f"the {counted(law.heldout_points or 0, 'point')} of most compute"
        far = (
            f", on average {math.exp(law.heldout_distance):.2g} times outside the others"
            if law.heldout_distance
            else ""
        )
        rows.append(("held out", f"{law.heldout_error:.2%} mean relative error on {points}{far}"))
    for found in law.allocations:
        rows += [(f"approach {found.approach}, left out", line) for line in found.left_out[:_SHOWN]]
        if len(found.left_out) > _SHOWN:
            rows.append((f"approach {found.approach}, left out", f"… and {len(found.left_out) - _SHOWN} more"))
    return rows + [("note", line) for line in law.notes]


def _intervals(law: Law) -> str:
    """How the 95 % intervals came about."""
    if law.edge:
        noise = "each row" if law.groups is None else f"each of {counted(law.groups, 'run')}"
        laws = f"{law.resamples - law.failed_resamples:,} laws at the edge of the 95 % region"
        return f"the range over {laws}, for normal noise of {noise}"
    of_runs = "" if law.groups is None else f" of {counted(law.groups, 'run')}"
    left_out = f"{law.failed_resamples:,} left out: they did not converge, or had too few sizes"
    return f"{law.resamples:,} resamples{of_runs}; {left_out}"


def optimum_row(flops: float, params: Estimate, tokens: Estimate, loss: Estimate | None) -> tuple[str, str, str, str]:
    """(FLOPs, N, D, loss) of the best model."""
    size, data = (show_estimate(each, lambda value: Count(value).short()) for each in (params, tokens))
    return f"{flops:.3g}", size, data, "unknown" if loss is None else show_estimate(loss, lambda value: f"{value:.3f}")


OPTIMUM_HEAD = ("FLOPs", "parameters", "tokens", "loss")


def write_law_page(
    path: Path,
    law: Law,
    optima: Sequence[tuple[str, str, str, str]],
    figures: Mapping[str, Mapping[str, Any]],
    said: Sequence[str],
) -> None:
    """Write law.html; `figures` are Vega-Lite specifications by title, `said` are notes on the data."""
    sections = []
    if law.coefficients or law.allocations:
        rows = coefficient_rows(law)
        sections.append(section("Coefficients", table(("", "value", "95 %", "meaning"), rows)))
    if optima:
        sections.append(section("The best model by compute", table(OPTIMUM_HEAD, optima)))
    sections += [section(title, f"<figure>{drawn(figure)}</figure>") for title, figure in figures.items()]
    sections.append(section("How it was fitted", table((), fit_rows(law), "prose")))
    if said:
        sections.append(section("The data", "".join(f"<p>{escape(line)}</p>" for line in said)))
    write_whole(path, whole_page(f"Scaling law · {law.source}", _summary(law), sections))


def _summary(law: Law) -> str:
    text = f"{law.points} trained models"
    if "a_opt" in law.coefficients:
        grows = show_estimate(law.coefficients["a_opt"], lambda value: f"{value:.3f}")
        text += f": the best size grows as compute to the {grows}"
    return escape(text + ".")


def write_comparison(
    path: Path, title: str, verdict: str, figure: Mapping[str, Any], rows: Sequence[Sequence[str]]
) -> None:
    """Write the page that compares runs at equal compute; the first of `rows` is the head."""
    head, *body = rows
    sections = [
        section("Held-out loss by compute", f"<figure>{drawn(figure)}</figure>"),
        section("Loss at equal compute", table(head, body)),
    ]
    write_whole(path, whole_page(title, escape(verdict), sections))
