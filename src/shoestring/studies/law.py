"""Fit a scaling law to trained models: the surface, and power laws through the best models by compute."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoestring.core.errors import UserError
from shoestring.core.law_record import Law
from shoestring.laws.extrapolation import together
from shoestring.laws.form import Surface
from shoestring.laws.limits import apart, clustered
from shoestring.laws.surface import fit_surface, heldout_error, spread_surface
from shoestring.studies.allocation import by_envelope, by_parabolas, ends_of, even_choice
from shoestring.studies.law_data import Given
from shoestring.studies.law_options import Asked
from shoestring.studies.optimum import estimate

HELDOUT_SHARE = 0.8
"""Share of the points, by ascending compute, that a law is fitted to for its error on the others."""


class Fitted(NamedTuple):
    """A law, and what else its figures need."""

    law: Law
    predicted: NDArray[np.float64] | None
    """The loss of each point by the surface."""


def fit_law(given: Given, asked: Asked) -> Fitted:
    """The law of the points by the requested approaches; raises UserError where all of them fail."""
    points = given.points
    law = Law(
        source=asked.name or given.source,
        count=given.count,
        counting=given.counting,
        flops_per_product=given.flops_per_product,
        points=len(points),
        params=ends_of(points.params),
        tokens=ends_of(points.tokens),
        flops=ends_of(points.flops),
        penalty=asked.penalty,
        delta=asked.delta if asked.penalty == "huber" else None,
        groups=None if points.given_groups is None else points.group_count,
    )
    notes: list[str] = []
    predicted, allocations = None, {1: by_envelope, 2: by_parabolas}
    for approach in asked.approaches:
        try:
            if approach == 3:
                law, predicted = _with_surface(law, given, asked)
            else:
                law = replace(law, allocations=(*law.allocations, allocations[approach](given, asked)))
        except UserError as cause:
            notes.append(f"approach {approach}: {cause}")
    if not law.coefficients and not law.allocations:
        advice = "; two runs are compared by: shoestring law compare RUN RUN" if len(points) < 5 else ""
        raise UserError("\n  ".join([f"no law can be fitted to {given.source}{advice}", *notes]))
    return Fitted(replace(law, notes=(*law.notes, *notes)), predicted)


def _with_surface(law: Law, given: Given, asked: Asked) -> tuple[Law, NDArray[np.float64]]:
    """Approach 3: the surface E + A / N^alpha + B / D^beta."""
    points = given.points
    fit = fit_surface(points, asked.penalty, asked.delta)
    notes = [] if fit.converged else ["the fit of the surface did not converge to the last digit"]
    spread = None
    if asked.resamples:
        try:
            spread = spread_surface(points, fit, asked.resamples, asked.seed)
        except UserError as cause:
            notes.append(str(cause))
    notes += [warning] if (warning := clustered(points, fit.residuals)) else []
    separate = apart(points)
    notes += together(separate)
    values = dict(zip(Surface._fields, map(float, fit.surface)))
    if min(fit.surface.A * fit.surface.alpha, fit.surface.B * fit.surface.beta) > 0:
        values["a_opt"] = fit.surface.a_opt
    ends = spread.interval() if spread is not None else {}
    law = replace(
        law,
        coefficients={name: estimate(value, ends.get(name)) for name, value in values.items()},
        objective=fit.objective,
        starts=fit.starts,
        failed_starts=fit.failed,
        boundary=fit.boundary,
        resamples=0 if spread is None else len(spread.samples),
        edge=spread is not None and spread.edge,
        apart=separate,
        failed_resamples=0 if spread is None else spread.failed,
        samples=() if spread is None else even_choice(spread.samples[spread.converged]),
        notes=(*law.notes, *notes),
    )
    try:
        held = heldout_error(points, HELDOUT_SHARE, asked.penalty, asked.delta)
        far = float(held.distances.mean())
        law = replace(
            law, heldout_error=held.mean_absolute, heldout_points=held.predicted, heldout_distance=far or None
        )
    except UserError as cause:  # too few points to hold some out
        law = replace(law, notes=(*law.notes, f"held-out error: {cause}"))
    return law, np.exp(fit.residuals) * points.loss
