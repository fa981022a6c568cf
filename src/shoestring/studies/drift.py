"""How fast runs drift from their first weights: overlap against steps, its rate of decrease, tables and a page.

Runs whose recipes differ in their seed alone are one group.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from shoestring.core.errors import UserError
from shoestring.core.files import make_folder, write_whole
from shoestring.core.recipe import Recipe, differences
from shoestring.core.run_folder import RunFolder
from shoestring.report.figures import OVERLAPS
from shoestring.report.sweep_figures import Line, step_curves
from shoestring.report.sweep_page import write_sweep_page
from shoestring.studies.effect import Difference
from shoestring.track import read_lines

PER = 100
"""Steps that a rate is given for."""
_RATE = f"rate_per_{PER}_steps"
SCORES = tuple(name + end for name in (*OVERLAPS, "overlap_kl") for end in ("", "_min", "_max"))
COLUMNS = ("group", "run", "seed", "step", *SCORES, "loss", "heldout_loss")
_FIGURES = {
    "overlap": "Least likely tokens shared with the first weights",
    "overlap_top": "Most likely tokens shared with the first weights",
    "overlap_kl": "KL from the first weights, nats",
    "heldout_loss": "Held-out loss, nats per token",
}


@dataclass(frozen=True)
class Drifted:
    """The metrics of one run, by step."""

    name: str
    recipe: Recipe
    lines: tuple[dict[str, Any], ...]
    """Those with an overlap, each with the last loss before it."""

    def places(self, score: str) -> list[tuple[float, float]]:
        return [(line["step"], line[score]) for line in self.lines if score in line]

    @property
    def rate(self) -> float:
        """By how much the overlap decreases in `PER` steps: the least-squares line through all its values."""
        steps, values = zip(*self.places("overlap"))
        return -PER * statistics.linear_regression(steps, values).slope


def steps_to_half(places: Sequence[tuple[float, float]]) -> float | None:
    """The step at which an overlap of 1 at step 0 has fallen to 0.5, between two values by a line; None: it has not."""
    for (step, value), (after, lower) in itertools.pairwise([(0.0, 1.0), *places]):
        if lower <= 0.5:
            return step + (after - step) * (value - 0.5) / (value - lower)
    return None


def read_drift(path: Path) -> Drifted:
    """The overlaps of a run; raises UserError where it has fewer than two."""
    folder = RunFolder.open(path)
    folder.check_records(folder.recipe, folder.metrics)
    lines, loss = [], None
    for line in read_lines(folder.metrics):
        loss = line.get("loss", loss)
        if "overlap" in line:
            lines.append({"loss": loss} | line)
    if len(lines) < 2:
        raise UserError(f"{path}: has no overlap to compare; it needs [evaluate] overlap and two evaluations")
    return Drifted(path.name, folder.read_recipe(), tuple(lines))


def grouped(runs: Sequence[Drifted]) -> dict[str, list[Drifted]]:
    """Runs of one recipe but for its seed, by the name of the first of them."""
    groups: dict[str, list[Drifted]] = {}
    for run in runs:
        same = (name for name, (first, *_) in groups.items() if not _apart(first.recipe, run.recipe))
        groups.setdefault(next(same, run.name), []).append(run)
    return groups


def _apart(one: Recipe, other: Recipe) -> list[str]:
    return differences(one, replace(other, run=replace(other.run, seed=one.run.seed)))


def summarize(groups: dict[str, list[Drifted]]) -> list[dict[str, Any]]:
    """For each group: mean and standard deviation over its runs of the rate and of the last values."""

    def spread(runs: list[Drifted], of: Callable[[Drifted], float]) -> dict[str, float | None]:
        values = [of(run) for run in runs]
        return {"mean": statistics.fmean(values), "sd": statistics.stdev(values) if len(values) > 1 else None}

    return [
        {
            "group": name,
            "source": str(runs[0].recipe.data.source),
            "runs": [run.name for run in runs],
            "seeds": [run.recipe.run.seed for run in runs],
            "steps": min(run.lines[-1]["step"] for run in runs),
            _RATE: spread(runs, lambda run: run.rate),
            "steps_to_half": [steps_to_half(run.places("overlap")) for run in runs],
            **{
                f"last_{score}": spread(runs, lambda run, score=score: run.places(score)[-1][1])  # type: ignore[misc]
                for score in ("overlap", "overlap_top", "overlap_kl", "heldout_loss")
            },
        }
        for name, runs in groups.items()
    ]


def verdict(summary: Sequence[dict[str, Any]]) -> str:
    """Which group drifts faster, and whether the seeds tell the two apart, with a probability of 95 %.

    By the steps to half, where all runs of a group fell so far: a rate over all steps says little of them, since an
    overlap that has reached 0 falls no further. By the rate where no group fell to half.
    """
    ranked = sorted(summary, key=lambda each: (not _halved(each), _time(each, _halved(each)).mean))
    by_half = _halved(ranked[0])
    said = _halves(ranked) if by_half else _rates(ranked)
    if len(ranked) < 2:
        return said
    fast, slow = ranked[:2]
    if min(len(fast["runs"]), len(slow["runs"])) < 2:
        return f"{said} Whether other seeds would say the same is not known."
    counts, means, variances = zip(*(_time(each, by_half) for each in (fast, slow)))
    found = Difference(counts, means, variances, None, 0.0)
    clear = found.effect > 0 and found.different
    return f"{said} {fast['group']} {'drifts faster' if clear else 'is not clearly faster'} than {slow['group']}."


class _Time(NamedTuple):
    """A number that is lower the faster a group drifts, over its runs."""

    runs: int
    mean: float
    variance: float


def _time(group: dict[str, Any], by_half: bool) -> _Time:
    """The logarithm of the steps to half, or minus the rate; a run that did not fall to half counts with all its steps,
    a lower bound."""
    if not by_half:
        return _Time(len(group["runs"]), -group[_RATE]["mean"], (group[_RATE]["sd"] or 0.0) ** 2)
    logs = [math.log(group["steps"] if half is None else half) for half in group["steps_to_half"]]
    return _Time(len(logs), statistics.fmean(logs), statistics.variance(logs) if len(logs) > 1 else 0.0)


def _halved(group: dict[str, Any]) -> bool:
    return None not in group["steps_to_half"]


def _mean_half(group: dict[str, Any]) -> float:
    """The geometric mean over runs, as logarithms are compared."""
    return math.exp(_time(group, by_half=True).mean)


def _halves(ranked: Sequence[dict[str, Any]]) -> str:
    def told(group: dict[str, Any]) -> str:
        if _halved(group):
            return f"{group['group']} fell to half after {_mean_half(group):.1f} steps"
        left, runs = group["steps_to_half"].count(None), len(group["runs"])
        some = "" if left == runs else f" in {left} of {runs} runs"
        return f"{group['group']} had not fallen to half after {group['steps']:,} steps{some}"

    return f"Overlap: {'; '.join(map(told, ranked))}."


def _rates(ranked: Sequence[dict[str, Any]]) -> str:
    shown = "; ".join(f"{each['group']} {each[_RATE]['mean']:.3f}" for each in ranked)
    return f"Overlap: no group fell to half in all its runs; decrease in {PER} steps: {shown}."


def as_csv(groups: dict[str, list[Drifted]]) -> str:
    """A line for every step of every run."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for name, runs in groups.items():
        for run in runs:
            named = {"group": name, "run": run.name, "seed": run.recipe.run.seed}
            writer.writerows(named | line for line in run.lines)
    return text.getvalue()


def write_drift(paths: Sequence[Path], out: Path) -> dict[str, Any]:
    """Write overlap.csv, summary.json and drift.html for these runs; returns the summary."""
    groups = grouped([read_drift(path) for path in paths])
    found = summarize(groups)
    said = verdict(found)
    result = {"groups": found, "verdict": said}
    make_folder(out)
    write_whole(out / "overlap.csv", as_csv(groups))
    write_whole(out / "summary.json", json.dumps(result, indent=2, allow_nan=False) + "\n")
    figures = {title: _figure(groups, score, title) for score, title in _FIGURES.items()}
    write_sweep_page(out / "drift.html", "Drift from the first weights", said, {"Rates": table_of(found)}, figures)
    return result


def _figure(groups: dict[str, list[Drifted]], score: str, title: str) -> dict[str, Any]:
    lines = [Line(run.name, name, run.places(score)) for name, runs in groups.items() for run in runs]
    return step_curves([line for line in lines if line.places], title)


def table_of(summary: Sequence[dict[str, Any]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Head and rows for people."""
    scores = (_RATE, "last_overlap", "last_overlap_top", "last_overlap_kl", "last_heldout_loss")
    head = ("group", "runs", "steps to half", f"decrease in {PER} steps", "last overlap", "of the most likely", "KL")
    rows = [
        (each["group"], str(len(each["runs"])), _half_shown(each), *(_shown(each[score]) for score in scores))
        for each in summary
    ]
    return (*head, "held-out loss"), rows


def _half_shown(group: dict[str, Any]) -> str:
    return f"{_mean_half(group):.1f}" if _halved(group) else f"not in {group['steps']:,}"


def _shown(value: dict[str, float | None]) -> str:
    return f"{value['mean']:.3f}" + ("" if value["sd"] is None else f" ± {value['sd']:.3f}")
