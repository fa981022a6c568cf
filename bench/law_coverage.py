"""How often the 95 % intervals of a law hold the truth: simulated data sets of a known law, with normal noise.

    python bench/law_coverage.py [--trials 100] [--resamples 200] [--only NAME] [--processes N] [--out FOLDER]

Each design is drawn anew in every trial: sizes and tokens far and wide, tokens close to 20 per parameter, checkpoints
of runs whose noise is that of the run, budgets with five sizes each for parabolas, and curves for an envelope. The
binomial error of a coverage of 95 % is 0.22 / sqrt(trials). A quantity that is said not to be identified has no
interval that could be wrong: it counts as held, and the share of the data sets that identify it is given beside.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import record
from threadpoolctl import threadpool_limits

from shoestring.laws.envelope import Curve, bootstrap_envelope
from shoestring.laws.form import Surface
from shoestring.laws.isoflop import bootstrap_isoflop, fit_isoflop
from shoestring.laws.points import Points
from shoestring.laws.resampling import interval
from shoestring.laws.surface import fit_surface, spread_surface

TRUE = Surface(1.7, 400.0, 900.0, 0.34, 0.31)
NOISE, BUDGET, ASKED = 5e-3, 1e21, (1e10, 1e11)
DESIGNS = {
    "6 points": 6, "8 points": 8, "16 points": 16, "60 points": 60,
    "16 points, near-collinear": 16, "60 points, near-collinear": 60,
    "6 runs of 10 checkpoints": 6, "8 runs of 10 checkpoints": 8, "16 runs of 10 checkpoints": 16,
    "22 runs of 10 checkpoints": 22, "60 runs of 10 checkpoints": 60,
    "parabolas, 4 budgets of 5 sizes": 5, "envelope of 16 runs": 16,
}  # fmt: skip


def drawn(name: str, generator: np.random.Generator) -> Points:
    """One data set."""
    count = DESIGNS[name]
    groups = np.arange(count)
    params, tokens = 10 ** generator.uniform(7, 10, count), 10 ** generator.uniform(9, 12, count)
    if "collinear" in name:
        params = np.geomspace(1e7, 1e10, count)
        tokens = 20 * params * np.exp(0.15 * generator.normal(size=count))
    noise = NOISE * generator.normal(size=count)
    if "checkpoints" in name:
        groups = np.repeat(groups, 10)
        params = np.geomspace(1e7, 1e10, count)[groups]
        tokens = (10 ** generator.uniform(10, 11.5, count))[groups] * np.tile(np.linspace(0.1, 1, 10), count)
        noise = noise[groups] + NOISE / 5 * generator.normal(size=len(groups))
    return Points(params=params, tokens=tokens, loss=TRUE.loss(params, tokens) * np.exp(noise), given_groups=groups)


class Hit(NamedTuple):
    held: bool
    identified: bool


def hit(ends: tuple[float, float], truth: float) -> Hit:
    identified = not math.isnan(ends[0])
    return Hit(not identified or ends[0] <= truth <= ends[1], identified)


def surface_hits(name: str, seed: int, resamples: int) -> dict[str, Hit]:
    """Whether each interval of one data set holds the truth."""
    points = drawn(name, np.random.default_rng(seed))
    fit = fit_surface(points)
    spread = spread_surface(points, fit, resamples, seed)
    params, _, loss = TRUE.optimum(BUDGET)
    truth = {**TRUE._asdict(), "a_opt": TRUE.a_opt}
    ends: dict[str, Any] = {**spread.interval()}
    best = spread.optimum_interval(BUDGET)
    ends |= {"best params": best["params"], "best loss": best["loss"]}
    ends["predicted loss"] = spread.loss_interval(*ASKED)
    truth |= {"best params": params, "best loss": loss, "predicted loss": TRUE.loss(*ASKED)}
    return {key: hit(ends[key], value) for key, value in truth.items()}


def parabola_hits(name: str, seed: int, resamples: int) -> dict[str, Hit]:
    """As `surface_hits`, for true parabolas whose minima are at C^0.5."""
    logs, budgets = np.tile(np.linspace(-1, 1, DESIGNS[name]), 4), np.geomspace(1e18, 1e21, 4).repeat(DESIGNS[name])
    params = np.sqrt(budgets) * np.exp(logs)
    loss = 3 + 0.1 * logs**2 + 2 * NOISE * np.random.default_rng(seed).normal(size=len(logs))
    points = Points(params=params, tokens=budgets / 6 / params, loss=loss, given_flops=budgets)
    law, _ = bootstrap_isoflop(fit_isoflop(points, math.inf), resamples, seed)
    ends = law.interval()
    return {"N ~ C^a, a": hit(ends["a"], 0.5), "N = k C^a, k": hit(ends["k"], 1.0)}


def envelope_hits(name: str, seed: int, resamples: int) -> dict[str, Hit]:
    """As `surface_hits`, for curves of 30 evaluations each, from 2 to 200 tokens per parameter."""
    generator, curves = np.random.default_rng(seed), []
    for params in np.geomspace(1e7, 1e10, DESIGNS[name]):
        tokens = params * np.geomspace(2, 200, 30)
        noise = NOISE * generator.normal() + NOISE / 5 * generator.normal(size=30)
        curves.append(Curve(params=float(params), tokens=tokens, loss=TRUE.loss(params, tokens) * np.exp(noise)))
    law, _ = bootstrap_envelope(curves, resamples, seed)
    ends, asked = law.interval(), np.sqrt(curves[0].params * curves[-1].params) ** 2 * 120
    sizes = interval(law.k * asked**law.a)
    return {"N ~ C^a, a": hit(ends["a"], TRUE.a_opt), "best params": hit(sizes, TRUE.optimum(asked)[0])}


def coverage(
    name: str, trials: int, resamples: int, each: Callable[..., Iterable[Any]]
) -> dict[str, tuple[float, float]]:
    """For each quantity, how often it is held and how often identified."""
    special = {"parabolas": parabola_hits, "envelope": envelope_hits}
    hits = special.get(name.split(maxsplit=1)[0].rstrip(","), surface_hits)
    found = list(each(partial(hits, name, resamples=resamples), range(trials)))
    return {key: tuple(np.mean([one[key] for one in found], 0).tolist()) for key in found[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100, help="data sets of each design")
    parser.add_argument("--resamples", type=int, default=200, help="of each data set")
    parser.add_argument("--only", action="append", choices=DESIGNS, help="a design by name; may be repeated")
    parser.add_argument("--processes", type=int, default=1, help="data sets at the same time")
    parser.add_argument("--out", type=Path, default=None, help="write the record here instead of results/")
    arguments = parser.parse_args()
    found = {}
    began = time.monotonic()
    with ProcessPoolExecutor(arguments.processes, initializer=threadpool_limits, initargs=(1,)) as pool:
        for name in arguments.only or DESIGNS:
            found[name] = coverage(name, arguments.trials, arguments.resamples, partial(pool.map, chunksize=4))
            shown = {key: f"{held:.1%} ({known:.0%})" for key, (held, known) in found[name].items()}
            print(f"{time.monotonic() - began:.0f} s  {name}", shown, flush=True)
    values = {
        "trials": arguments.trials,
        "resamples": arguments.resamples,
        "noise": NOISE,
        "law": TRUE._asdict(),
        "binomial_error": math.sqrt(0.95 * 0.05 / arguments.trials),
        "coverage": {name: {key: held for key, (held, _) in one.items()} for name, one in found.items()},
        "identified": {name: {key: known for key, (_, known) in one.items()} for name, one in found.items()},
    }
    record.write("law_coverage", values, arguments.out)


if __name__ == "__main__":
    main()
