"""The fit of a scaling law and its bootstrap, beside the customary way with SciPy, on the 240 Chinchilla points.

    python bench/laws.py [--whole] [--out FOLDER]

The customary way is BFGS from the 4,500 starts of Hoffmann et al.'s grid, and one start for each resample. By default a
part of both is run, drawn evenly, and its time scaled to the whole; the record says how many. --whole runs all starts.
Tolerances are generous to it: gradients are exact, and the objective is scaled so that BFGS does not stop early. BLAS
has one thread for both ways: with more, SciPy's L-BFGS-B waits for them far longer than it computes.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import record
import scipy
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from shoestring.laws.descent import Floats, penalties
from shoestring.laws.points import Points, read_points
from shoestring.laws.resampling import draw_counts
from shoestring.laws.surface import COEFFICIENTS, bootstrap_surface, fit_surface

TABLE = record.ROOT.parent / "shared/data/scaling/chinchilla_epoch_svg_extracted.csv"
DELTA, RESAMPLES = 1e-3, 4000
STARTS_RUN, RESAMPLES_RUN = 150, 200
EXPONENTS, LEVELS, FACTORS = (0, 0.5, 1, 1.5, 2), (-1, -0.5, 0, 0.5, 1), (0, 5, 10, 15, 20, 25)
METHODS = ("BFGS", "L-BFGS-B")
_REPEATS = 7


def objective(theta: Floats, n: Floats, d: Floats, y: Floats, weights: Floats) -> tuple[float, Floats]:
    """The mean Huber penalty over δ at (ln A, ln B, ln E, α, β), and its gradient."""
    terms = np.stack([theta[0] - theta[3] * n, theta[1] - theta[4] * d, np.full_like(n, theta[2])])
    top = terms.max(0)
    shares = np.exp(terms - top)
    total = shares.sum(0)
    shares /= total
    r = top + np.log(total) - y
    scale = weights / weights.sum() / DELTA
    pull = scale * np.clip(r, -DELTA, DELTA)
    gradient = [pull @ shares[0], pull @ shares[1], pull @ shares[2], -pull @ (shares[0] * n), -pull @ (shares[1] * d)]
    return float(scale @ penalties(r, DELTA)), np.array(gradient)


def descend(start: Any, points: Points, weights: Floats, method: str) -> tuple[Floats, float]:
    """Where SciPy ends, and the sum of the penalties there."""
    logs = np.log(points.params), np.log(points.tokens), np.log(points.loss)
    with np.errstate(all="ignore"):
        found = minimize(objective, start, (*logs, weights), method=method, jac=True)
    return found.x, float(found.fun) * DELTA * float(weights.sum())


def timed(work: Callable[[], Any], repeats: int = 1, share: float = 1.0) -> tuple[dict[str, float], Any]:
    """Median seconds by the clock, and of processors; `share` is the part of the whole work that is done."""
    clock, processor = [], []
    for _ in range(repeats):
        started = time.perf_counter(), time.process_time()
        result = work()
        clock.append(time.perf_counter() - started[0])
        processor.append(time.process_time() - started[1])
    return {"seconds": statistics.median(clock) / share, "cpu_seconds": statistics.median(processor) / share}, result


def grid() -> list[tuple[float, ...]]:
    """(ln A, ln B, ln E, α, β) of the 4,500 starts."""
    return list(itertools.product(FACTORS, FACTORS, LEVELS, EXPONENTS, EXPONENTS))


def peer_fits(points: Points, run: int) -> dict[str, Any]:
    starts = grid()
    chosen = [starts[i] for i in np.linspace(0, len(starts) - 1, run).astype(int)]
    found = {}
    for method in METHODS:
        one = np.ones(len(points))
        spent, ends = timed(lambda: [descend(start, points, one, method) for start in chosen], share=run / len(starts))
        values = np.array([value for _, value in ends])
        lowest = float(np.nanmin(values))
        found[method] = {
            "starts": len(starts),
            "starts_run": run,
            **spent,
            "scaled": run < len(starts),
            "objective": lowest,
            "starts_within_1e-6": float(np.mean(values <= lowest * (1 + 1e-6))),
        }
    return found


def peer_bootstrap(points: Points, start: Floats, counts: Floats) -> tuple[dict[str, Any], Floats]:
    spent, values = timed(
        lambda: [descend(start, points, row, "BFGS")[1] for row in counts], share=len(counts) / RESAMPLES
    )
    return {"resamples": RESAMPLES, "resamples_run": len(counts), **spent, "scaled": True}, np.array(values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--whole", action="store_true", help="all starts of the customary way")
    parser.add_argument("--out", type=Path, default=None, help="write the record here instead of results/")
    arguments = parser.parse_args()
    points = read_points(TABLE, params="Model Size", flops="Training FLOP", loss="loss")[0].take(slice(5, None))
    fit_surface(points)  # NumPy's own first calls
    fit_spent, fit = timed(lambda: fit_surface(points), _REPEATS)
    bootstrap_spent, bootstrap = timed(lambda: bootstrap_surface(points, fit, RESAMPLES), 3)
    print("ours", fit_spent, bootstrap_spent, flush=True)

    peers = peer_fits(points, len(grid()) if arguments.whole else STARTS_RUN)
    print(peers, flush=True)
    E, A, B, alpha, beta = fit.surface
    counts = draw_counts(len(points), RESAMPLES, 0, size=len(points) - COEFFICIENTS)[:RESAMPLES_RUN]
    warm = np.array([np.log(A), np.log(B), np.log(E), alpha, beta])
    peer, values = peer_bootstrap(points, warm, counts)
    ours = []
    for (e, a, b, al, be), row in zip(bootstrap.samples, counts, strict=False):
        r = np.log((e + a * points.params**-al + b * points.tokens**-be) / points.loss)
        ours.append(float(row @ penalties(r, DELTA)))
    excess = np.array(ours) / values - 1
    low, high = bootstrap.interval()["a_opt"]
    record.write(
        "laws",
        {
            "scipy": scipy.__version__,
            "points": len(points),
            "fit": {
                **fit_spent,
                "objective": fit.objective,
                "surface": fit.surface._asdict(),
                "a_opt": fit.surface.a_opt,
            },
            "bootstrap": {
                "resamples": RESAMPLES,
                **bootstrap_spent,
                "failed": bootstrap.failed,
                "checked": bootstrap.checked,
                "moved": bootstrap.moved,
                "standard_errors": {n: float(np.nanstd(v, ddof=1)) for n, v in bootstrap.values().items()},
                "a_opt_95": [low, high],
                "most_above_peer": float(excess.max()),
                "most_below_peer": float(-excess.min()),
            },
            "peer_fit": peers,
            "peer_bootstrap": peer,
        },
        arguments.out,
    )


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
