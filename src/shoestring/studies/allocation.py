"""Approaches 1 and 2, and given minima: power laws N = k C^a and D = k C^b through the best models by compute."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shoestring.core.errors import UserError
from shoestring.core.law_record import Allocation, Law
from shoestring.core.units import counted
from shoestring.laws.envelope import Curve, Minimum, bootstrap_envelope, fit_envelope
from shoestring.laws.isoflop import GroupOptimum, bootstrap_isoflop, fit_isoflop
from shoestring.laws.points import check_two, read_numbers, third_of_three
from shoestring.laws.power import PowerBootstrap, PowerLaw, fit_power, linear_factor, resample_power, rest
from shoestring.studies.law_data import Columns, Given
from shoestring.studies.law_options import Asked
from shoestring.studies.optimum import estimate
from shoestring.studies.run_results import COUNTS

LEAST_MINIMA = 3
"""Of an envelope: a power law goes through any two."""
KEPT_SAMPLES = 1000
"""Resampled fits that law.json keeps."""


def by_envelope(given: Given, asked: Asked) -> Allocation:
    """Approach 1: the envelope of the runs' curves."""
    curves = [
        Curve(
            params=float(run.params),
            tokens=np.array([tokens for tokens, _ in run.curve]),
            loss=np.array([loss for _, loss in run.curve]),
            name=run.name,
        )
        for run in given.runs
        if len(run.curve) > 1
    ]
    if not curves:
        raise UserError("needs the loss curves of runs; a table has none" if not given.runs else "no run has a curve")
    per_token = given.flops_per_product
    found = fit_envelope(curves, per_token=per_token, exponent=asked.exponent)
    if len(found.minima) < LEAST_MINIMA:
        raise UserError(
            f"{counted(len(found.minima), 'size')} with the best loss somewhere; a law needs {LEAST_MINIMA}"
        )
    resampled = None
    said: tuple[str, ...] = ()
    if asked.resamples:
        try:
            resampled = bootstrap_envelope(
                curves, asked.resamples, asked.seed, per_token=per_token, exponent=asked.exponent
            )
        except UserError as cause:
            said = (f"its intervals: {cause}",)
    return _allocation(1, (found.params_law, found.tokens_law), found.minima, resampled, asked, said)


def by_parabolas(given: Given, asked: Asked) -> Allocation:
    """Approach 2: parabolas at equal FLOPs."""
    found = fit_isoflop(given.points, asked.window, asked.exponent)
    count = asked.resamples
    resampled = bootstrap_isoflop(found, count, asked.seed, asked.exponent) if count else None
    return _allocation(2, (found.params_law, found.tokens_law), found.optima, resampled, asked, found.left_out)


def _allocation(
    approach: int,
    laws: tuple[PowerLaw, PowerLaw],
    minima: Sequence[Minimum | GroupOptimum],
    resampled: tuple[PowerBootstrap, PowerBootstrap] | None,
    asked: Asked,
    left_out: tuple[str, ...] = (),
) -> Allocation:
    params, tokens = laws
    of_params, of_tokens = ({}, {}) if resampled is None else (one.interval() for one in resampled)
    if asked.exponent is not None:  # given, so not uncertain
        of_params.pop("a", None)
        of_tokens.pop("a", None)
    return Allocation(
        approach=approach,
        params_factor=estimate(params.k, of_params.get("k")),
        params_exponent=estimate(params.a, of_params.get("a")),
        tokens_factor=estimate(tokens.k, of_tokens.get("k")),
        tokens_exponent=estimate(tokens.a, of_tokens.get("a")),
        optima=tuple((one.flops, one.params, one.tokens) for one in minima),
        left_out=left_out,
        fixed=asked.exponent is not None,
        samples=() if resampled is None else _kept_powers(*resampled),
    )


def one_table(paths: Sequence[Path], approach: str, drop_largest: int) -> Path:
    """The one table of best models; options that need losses are refused."""
    if len(paths) != 1 or not paths[0].is_file():
        raise UserError(f"--optima: needs one table, not {', '.join(map(str, paths))}")
    if approach != "all" or drop_largest:
        raise UserError("--optima: the table has no losses, so --approach and --drop-largest do not apply")
    return paths[0]


def fit_optima(
    path: Path, columns: Columns, where: Sequence[str], count: str, skip_bad: bool, asked: Asked
) -> tuple[Law, tuple[str, ...]]:
    """The laws N = k C^a and D = k C^b through a table of the best models by compute, and what was left out of it."""
    if columns.loss is not None or columns.group is not None:
        raise UserError("--optima: each row is a best model; --loss and --group are for tables of trained models")
    if count not in COUNTS:
        raise UserError(f"--count {count}: must be {' or '.join(COUNTS)}")
    roles = {"params": columns.params, "tokens": columns.tokens, "flops": columns.flops}
    check_two(path, roles)
    found = read_numbers(path, roles, skip_bad=skip_bad, where=where)
    needed = 2 if asked.exponent is None else 1
    if len(found.groups) < needed:
        raise UserError(f"{path}{found.where}: {found.usable} can be used; this law needs {needed} or more")
    all_three = third_of_three(found.numbers)
    flops, params, tokens = (all_three[name] for name in ("flops", "params", "tokens"))
    powers = ((params, asked.exponent), (tokens, rest(asked.exponent)))
    on_params, on_tokens = (fit_power(flops, values, power) for values, power in powers)
    drawn = [resample_power(flops, values, power, asked.resamples, asked.seed) for values, power in powers]
    minima = [Minimum(*row) for row in zip(flops.tolist(), params.tolist(), tokens.tolist())]
    resampled = (drawn[0], drawn[1]) if asked.resamples and not drawn[0].failed else None
    named = [letter for letter, name in zip("NDC", (columns.params, columns.tokens, columns.flops)) if name]
    law = Law(
        source=asked.name or path.name + "".join(f", {text}" for text in where),
        count=f"{'N, D and C' if named[2:] else ' and '.join(named) + ' (C = 6 N D)'} are columns of {path.name}",
        counting=count,
        flops_per_product=float(np.median(flops / params / tokens)),
        points=len(flops),
        params=ends_of(params),
        tokens=ends_of(tokens),
        flops=ends_of(flops),
        penalty="squares",
        resamples=0 if resampled is None else asked.resamples,
        allocations=(_allocation(0, (on_params, on_tokens), minima, resampled, asked),),
        notes=tuple(_linear_note(flops, params, tokens, asked.exponent)),
    )
    return law, tuple(f"left out: {text}" for text in found.problems)


def _linear_note(
    flops: NDArray[np.float64], params: NDArray[np.float64], tokens: NDArray[np.float64], exponent: float | None
) -> list[str]:
    if exponent is None:
        return []
    k_params, k_tokens = linear_factor(flops, params, exponent), linear_factor(flops, tokens, 1 - exponent)
    return [
        f"the factors fit ln N and ln D, in which all rows count alike; a fit of N and D themselves, in which the "
        f"largest count most, has {k_params:.6g} and {k_tokens:.6g}"
    ]


def _kept_powers(params: PowerBootstrap, tokens: PowerBootstrap) -> tuple[tuple[float, ...], ...]:
    rows = np.stack((params.k, params.a, tokens.k, tokens.a), 1)
    return even_choice(rows[np.isfinite(rows).all(1)])


def even_choice(rows: NDArray[np.float64]) -> tuple[tuple[float, ...], ...]:
    """`KEPT_SAMPLES` of the rows at most, evenly chosen, to seven digits."""
    chosen = rows[np.unique(np.linspace(0, len(rows) - 1, KEPT_SAMPLES).round().astype(int))] if len(rows) else rows
    return tuple(tuple(float(f"{value:.7g}") for value in row) for row in chosen)


def ends_of(values: NDArray[np.float64]) -> tuple[float, float]:
    """The least and the most."""
    return float(values.min()), float(values.max())
