"""How good the forecasts of the held-out loss are: their 90 % intervals and errors after a fifth of a run.

    python bench/forecast.py                   20 runs of the built-in stories and of a stream, in a temporary folder
    python bench/forecast.py --steps 8000      the same, longer
    python bench/forecast.py --text PATH       the same on a text of one's own, one document per line
    python bench/forecast.py --runs FOLDER     what finished runs below a folder would have expected
    python bench/forecast.py --curves FILE     the same of the curves that bench/regret_gpu.py has kept

Wanted: at least 80 % of the intervals hold the loss at the end, and a median error of at most 2 % at a fifth. A run
whose interval says nothing yet has no forecast there: how many have one is printed and recorded too. Each run is asked
alone, and with the curves of the others on the same data, which are then its earlier runs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import record

import shoestring
from shoestring.core.results import Forecast
from shoestring.core.run_folder import RunFolder
from shoestring.laws.earlier import Shape
from shoestring.report.forecast import ALONE, Beside, forecast, heldout_shape, taken_path
from shoestring.runs.earlier_curves import MOST, runs_beside
from shoestring.track import read_lines
from shoestring.track.curve import Curve, HeldoutLine, TrainingLine, TurnLine

SHARES = (0.1, 0.2, 0.4, 0.7)


def grid(steps: int, text: str | None) -> Iterator[dict[str, Any]]:
    """Recipes that differ in family, learning rate, schedule, size, batch, length and data: two seeds of ten."""
    source = {"source": "stories"} if text is None else {"source": f"text:{text}", "heldout": 0.05}
    base: dict[str, Any] = {
        "data": {**source, "tokenizer": "bytes", "length": 64},
        "model": {"family": "llama", "width": 64, "layers": 2, "heads": 4},
        "train": {"batch": 16, "lr": 3e-3},
    }
    changes: list[dict[str, dict[str, Any]]] = [
        {},
        {"train": {"lr": 1e-3}},
        {"train": {"lr": 1e-2}},
        {"train": {"schedule": "linear"}},
        {"train": {"schedule": "constant"}},
        {"train": {"final_lr": 0.1, "batch": 8}},
        {"model": {"family": "gpt2"}, "train": {"lr": 2e-3}},
        {"model": {"width": 128, "layers": 3}, "train": {"lr": 2e-3}},
        {"data": {"tokenizer": "words:1000"}},
        {"data": {"stream": "markov:10"}},
    ]
    for number in range(2 * len(changes)):
        change = changes[number % len(changes)]
        recipe = {section: values | change.get(section, {}) for section, values in base.items()}
        if "stream" in recipe["data"]:
            recipe["data"] = {name: recipe["data"][name] for name in ("stream", "length")}
        length = steps * (2 if number >= len(changes) else 1)
        yield {"run": {"name": f"run{number:02d}", "seed": number}, "budget": {"steps": length}, **recipe}


def trained(recipes: Iterable[dict[str, Any]], folder: Path) -> list[Path]:
    """The folders of these runs, each trained to its end; those that are finished are taken as they are."""
    found = []
    for recipe in recipes:
        recipe["run"]["folder"] = str(folder / "runs")
        if "stream" not in recipe["data"]:
            recipe["data"]["folder"] = str(folder / "stores")
        path = folder / "runs" / recipe["run"]["name"]
        if not RunFolder(path).done.is_file():
            shoestring.train(recipe, show=False)
            print(path.name, flush=True)
        found.append(path)
    return found


def forecasts(folder: Path) -> dict[str, Any] | None:
    """As `asked_of`, of a run with the finished ones beside it."""
    own = RunFolder(folder)
    return asked_of(folder.name, Curve.of(read_lines(own.metrics)), others(own))


def asked_of(name: str, curve: Curve, others: Beside) -> dict[str, Any] | None:
    """What a run would have expected after each share of its steps, given its schedule; None where it has no curve.

    Both alone, and by up to eight of the other finished runs on the same data beside it.
    """
    path = taken_path(curve)
    if path is None or not curve.heldout:
        return None
    actual, steps = curve.heldout[-1].loss, curve.training[-1].step
    found: dict[str, Any] = {"run": name, "steps": steps, "loss": actual}
    for name, beside in (("forecasts", ALONE), ("beside", others)):
        parts = {share: forecast(curve.until(share * steps), path, beside) for share in SHARES}
        found[name] = {f"{share:g}": scored(made, actual) for share, made in parts.items() if made is not None}
    return found


def of_curves(file: Path) -> Iterator[dict[str, Any] | None]:
    """The same of curves in a file, each with the nearest of the others on the same text; runs that overfitted, which
    the schedule does not tell of, are left out."""
    for runs in json.loads(file.read_text()).values():
        shapes: dict[str, Shape] = {}
        curves = {name: curve for name, kept in runs.items() if (curve := kept_curve(kept)).turn is None}
        for name, curve in curves.items():
            path = taken_path(curve)
            shape = None if path is None else heldout_shape(curve, path, runs[name]["parameters"], runs[name]["rows"])
            if shape is not None:
                shapes[name] = shape
        for name, own in shapes.items():
            near = sorted(shapes, key=lambda other: own.setting.apart(shapes[other].setting))
            beside = {other: shapes[other] for other in near if other != name}
            nearest = dict(itertools.islice(beside.items(), MOST))
            yield asked_of(name, curves[name], Beside(own.setting.parameters, own.setting.rows, nearest))


def kept_curve(kept: dict[str, Any] | None) -> Curve:
    """The curve that a file has; of a run that failed, an empty one."""
    if kept is None:
        return Curve.of([])
    training = tuple(TrainingLine(*line, None) for line in kept["training"])
    turn = None if kept["turn"] is None else TurnLine(*kept["turn"])
    return Curve(training=training, heldout=tuple(HeldoutLine(*line) for line in kept["heldout"]), turn=turn)


def others(own: RunFolder) -> Beside:
    """The runs beside a run; none where it has no recipe."""
    return runs_beside(own, own.read_recipe()) if own.recipe.is_file() else ALONE


def scored(made: Forecast, actual: float) -> dict[str, Any]:
    """A forecast with its error, and whether its interval held."""
    error, held = actual / made.loss - 1, made.low <= actual <= made.high
    return {
        "loss": made.loss, "low": made.low, "high": made.high, "runs": made.runs, "error": error, "held": held,
    }  # fmt: skip


def summary(runs: Sequence[dict[str, Any]], name: str = "forecasts") -> dict[str, dict[str, float]]:
    """By share: how many runs had a forecast, the part whose interval held, and the median absolute error."""
    found = {}
    for share in map("{:g}".format, SHARES):
        made = [run[name][share] for run in runs if share in run[name]]
        errors = [abs(each["error"]) for each in made]
        if errors:
            held = sum(each["held"] for each in made) / len(made)
            width = statistics.median((each["high"] - each["low"]) / 2 / each["loss"] for each in made)
            found[share] = {
                "runs": len(made), "held": held, "median_error": statistics.median(errors), "median_half_width": width,
            }  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, help="a folder of finished runs")
    parser.add_argument("--curves", type=Path, help="a file of curves")
    parser.add_argument(
        "--steps", type=int, default=1000, help="steps of the first ten runs; the others have twice as many"
    )
    parser.add_argument("--text", help="a text of one's own")
    parser.add_argument("--keep", type=Path, help="where the runs are kept; those that are finished there are taken")
    parser.add_argument("--most", type=int, help="at most so many runs")
    parser.add_argument("--out", type=Path, help="folder of the record; default: results")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        if asked.curves is not None:
            made = of_curves(asked.curves)
        elif asked.runs is None:
            made = map(
                forecasts, trained(list(grid(asked.steps, asked.text))[: asked.most], asked.keep or Path(temporary))
            )
        else:
            made = map(forecasts, sorted(done.parent for done in asked.runs.rglob("DONE")))
        runs = [found for found in made if found is not None]
    compared = [run for run in runs if any(each["runs"] for each in run["beside"].values())]
    alone, beside = summary(runs), summary(compared, "beside")
    for how, shares, count in (("alone", alone, len(runs)), ("by the runs beside it", beside, len(compared))):
        for share, found in shares.items():
            print(
                f"{how}, after {float(share):.0%}: {found['runs']} of {count} runs have a forecast, "
                f"{found['held']:.0%} hold, median error {found['median_error']:.1%}, "
                f"half width {found['median_half_width']:.1%}"
            )
    name = "forecast" if asked.curves is None else "forecast_curves"
    record.write(name, {"shares": alone, "beside": beside, "runs": runs}, asked.out)


if __name__ == "__main__":
    main()
