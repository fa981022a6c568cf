"""How often the 95 % intervals of a law hold the truth: simulated data sets of a known law, with normal noise.

    python bench/law_coverage.py [--trials 100] [--resamples 300] [--only NAME] [--processes N] [--out FOLDER]

Each design is drawn anew in every trial: sizes and tokens far and wide, tokens close to 20 per parameter, checkpoints
of runs whose noise is that of the run, and budgets with five sizes each for parabolas. The binomial error of a
coverage of 95 % is 0.22 / sqrt(trials).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import record
from threadpoolctl import threadpool_limits

from shoestring.laws.form import Surface
from shoestring.laws.isoflop import bootstrap_isoflop, fit_isoflop
from shoestring.laws.points import Points
from shoestring.laws.surface import bootstrap_surface, fit_surface

TRUE = Surface(1.7, 400.0, 900.0, 0.34, 0.31)
NOISE, BUDGET, ASKED = 5e-3, 1e21, (1e10, 1e11)
DESIGNS = {
    "6 points": 6, "8 points": 8, "16 points": 16, "60 points": 60, "16 points, near-collinear": 16,
    "6 runs of 10 checkpoints": 6, "8 runs of 10 checkpoints": 8, "16 runs of 10 checkpoints": 16,
    "22 runs of 10 checkpoints": 22, "60 runs of 10 checkpoints": 60, "parabolas, 4 budgets of 5 sizes": 5,
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


def surface_hits(name: str, seed: int, resamples: int) -> dict[str, bool]:
    """Whether each interval of one data set holds the truth."""
    points = drawn(name, np.random.default_rng(seed))
    fit = fit_surface(points)
    spread = bootstrap_surface(points, fit, resamples, seed)
    params, _, loss = TRUE.optimum(BUDGET)
    truth = {**TRUE._asdict(), "a_opt": TRUE.a_opt}
    ends: dict[str, Any] = {**spread.interval()}
    best = spread.optimum_interval(BUDGET)
    ends |= {"best params": best["params"], "best loss": best["loss"]}
    ends["predicted loss"] = spread.loss_interval(*ASKED)
    truth |= {"best params": params, "best loss": loss, "predicted loss": TRUE.loss(*ASKED)}
    return {key: bool(ends[key][0] <= value <= ends[key][1]) for key, value in truth.items()}


def parabola_hits(name: str, seed: int, resamples: int) -> dict[str, bool]:
    """As `surface_hits`, for true parabolas whose minima are at C^0.5."""
    logs, budgets = np.tile(np.linspace(-1, 1, DESIGNS[name]), 4), np.geomspace(1e18, 1e21, 4).repeat(DESIGNS[name])
    params = np.sqrt(budgets) * np.exp(logs)
    loss = 3 + 0.1 * logs**2 + 2 * NOISE * np.random.default_rng(seed).normal(size=len(logs))
    points = Points(params=params, tokens=budgets / 6 / params, loss=loss, given_flops=budgets)
    law, _ = bootstrap_isoflop(fit_isoflop(points, math.inf), resamples, seed)
    ends = law.interval()
    return {"N ~ C^a, a": ends["a"][0] <= 0.5 <= ends["a"][1], "N = k C^a, k": ends["k"][0] <= 1 <= ends["k"][1]}


def coverage(name: str, trials: int, resamples: int, each: Callable[..., Iterable[Any]]) -> dict[str, float]:
    hits = parabola_hits if name.startswith("parabolas") else surface_hits
    found = list(each(partial(hits, name, resamples=resamples), range(trials)))
    return {key: float(np.mean([one[key] for one in found])) for key in found[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100, help="data sets of each design")
    parser.add_argument("--resamples", type=int, default=300, help="of each data set")
    parser.add_argument("--only", action="append", choices=DESIGNS, help="a design by name; may be repeated")
    parser.add_argument("--processes", type=int, default=1, help="data sets at the same time")
    parser.add_argument("--out", type=Path, default=None, help="write the record here instead of results/")
    arguments = parser.parse_args()
    found = {}
    with ProcessPoolExecutor(arguments.processes, initializer=threadpool_limits, initargs=(1,)) as pool:
        for name in arguments.only or DESIGNS:
            found[name] = coverage(name, arguments.trials, arguments.resamples, pool.map)
            print(name, {key: f"{value:.1%}" for key, value in found[name].items()}, flush=True)
    values = {
        "trials": arguments.trials,
        "resamples": arguments.resamples,
        "noise": NOISE,
        "law": TRUE._asdict(),
        "binomial_error": math.sqrt(0.95 * 0.05 / arguments.trials),
        "coverage": found,
    }
    record.write("law_coverage", values, arguments.out)


if __name__ == "__main__":
    main()
