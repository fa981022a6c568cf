"""Trained: what a scaling law reads from run folders: sizes, predictions, compute, held-out losses and their curves.

D counts predictions: all positions of a row, or the latents of a Perceiver AR. FLOPs are exact (`core.facts.Cost`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Literal, NamedTuple

from shoestring.core.errors import ShoestringError, UserError
from shoestring.core.facts import Evaluation, Outcome, Plan, Profile
from shoestring.core.recipe import Recipe
from shoestring.core.run_folder import RunFolder
from shoestring.track import read_lines

Count = Literal["total", "no-embeddings"]
COUNTS: dict[Count, str] = {
    "total": "every parameter; a tied output matrix once",
    "no-embeddings": "every parameter but the token and position tables and the output matrix",
}
_DIFFERENCES = 5
"""Second differences of a curve that are needed to tell how much it wobbles."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A finished run as a point of a law, and the curve that led there."""

    name: str
    params: int
    tokens: float
    """Predictions it was trained on."""
    loss: float
    """Held out, at the end, in nats a prediction."""
    flops_per_token: float
    """Training FLOPs of a prediction."""
    curve: tuple[tuple[float, float], ...]
    """(predictions, held-out loss) at every evaluation."""
    heldout: str
    """What decides the held-out rows: losses of runs that differ in it cannot be compared."""

    @property
    def flops(self) -> float:
        return self.flops_per_token * self.tokens


def row_predictions(recipe: Recipe) -> int:
    """Predictions of a row: what D counts."""
    return recipe.model.latents or recipe.data.length


def count_params(profile: Profile, recipe: Recipe, count: Count) -> int:
    """N of a model that was measured, by one of the two ways that people mix."""
    groups = profile.cost.parameters
    if count == "total":
        return profile.cost.total_parameters
    if recipe.model.family in ("hf", "masked_lm"):
        raise UserError(f'--count no-embeddings: not known for model.family = "{recipe.model.family}"; take total')
    return profile.cost.total_parameters - groups["embedding"] - groups["head"]


def tokens_flops(profile: Profile, recipe: Recipe) -> float:
    """Training FLOPs of a prediction, exact."""
    return profile.cost.train_flops_per_token * recipe.data.length / row_predictions(recipe)


def read_trained(path: Path, count: Count) -> Trained:
    """A finished run; raises UserError with the reason where it cannot be a point of a law."""
    folder = RunFolder.open(path)
    recipe = folder.read_recipe()
    if recipe.hmm is not None:
        raise UserError(f"{path} is the fit of an HMM, which laws of networks say nothing about")
    for file, missing in ((folder.done, "is not finished"), (folder.evaluation, "has no evaluation")):
        if not file.is_file():
            raise UserError(f"{path} {missing}: it has no {file.name}; go on with: shoestring train {path}/recipe.toml")
    if not folder.profile.is_file():
        raise UserError(f"{path} has no profile.json, which counts its parameters; run: shoestring measure RECIPE")
    outcome, evaluation = Outcome.read(folder.done), Evaluation.read(folder.evaluation)
    if evaluation.macro_f1 is not None:
        raise UserError(f"{path} is a classifier: its loss is that of a class, not of a token")
    profile, predictions = Profile.read(folder.profile), row_predictions(recipe)
    step = recipe.batch * predictions
    lines = [line for line in read_lines(folder.metrics) if "heldout_loss" in line]
    return Trained(
        name=recipe.run.name,
        params=count_params(profile, recipe, count),
        tokens=float(outcome.steps * step),
        loss=evaluation.loss,
        flops_per_token=tokens_flops(profile, recipe),
        curve=tuple((float(line["step"] * step), float(line["heldout_loss"])) for line in lines),
        heldout=_heldout(recipe, Plan.read(folder.plan), evaluation),
    )


def _heldout(recipe: Recipe, plan: Plan, evaluation: Evaluation) -> str:
    """The first rows of a split that is chosen by number: how many documents were read matters to words alone, whose
    vocabulary is counted in them."""
    data = recipe.data
    fields = (data.source, data.stream, data.tokenizer, data.length, data.packing, data.heldout, recipe.run.seed)
    counted = plan.entries if data.tokenizer.startswith("words:") else None
    return repr((*fields, counted, evaluation.rows, evaluation.tokens))


def read_all(paths: Sequence[Path], count: Count, skip_bad: bool = False) -> tuple[list[Trained], list[str]]:
    """All runs, and what is to be said of them: who cannot be used (one error without `skip_bad`), how they differ."""
    runs: list[Trained] = []
    bad: list[str] = []
    for path in paths:
        try:
            runs.append(read_trained(path, count))
        except ShoestringError as cause:
            bad.append(str(cause))
    if bad and not skip_bad:
        raise UserError("\n  ".join([f"{len(bad)} of {len(paths)} runs cannot be used", *bad]))
    said = [f"left out: {text}" for text in bad]
    if len({run.heldout for run in runs}) > 1:
        said.append(
            "the runs were scored on held-out rows of more than one kind (another source, tokenizer, vocabulary, "
            "length, seed or number of rows): that alone makes their losses differ"
        )
    return runs, said


def wobble(curve: Sequence[tuple[float, float]]) -> float | None:
    """How much the held-out loss goes up and down from one evaluation to the next: a standard deviation.

    From second differences over the last half of the curve, where a smooth fall leaves little in them. It says nothing
    about another seed. None where the curve is too short.
    """
    losses = [loss for _, loss in curve[len(curve) // 2 :]]
    seconds = [a - 2 * b + c for a, b, c in zip(losses, losses[1:], losses[2:])]
    return math.sqrt(fmean(d * d for d in seconds) / 6) if len(seconds) >= _DIFFERENCES else None


class Comparison(NamedTuple):
    """Two runs over the same compute."""

    first: Trained
    second: Trained
    rows: list[tuple[float, float, float]]
    """(FLOPs, loss of the first, loss of the second) where both were trained so far."""
    noise: float | None
    """Standard deviation of a difference, by the wobble of both."""
    crossings: list[float]
    """FLOPs at which the one that was clearly behind is clearly ahead."""
    verdict: str


_SURE = 2.0
"""Standard deviations from which a difference counts."""


def compare(first: Trained, second: Trained) -> Comparison:
    """Whether the curves of two runs cross, over compute; a difference within the noise is none.

    Both are read where either was evaluated, by straight lines in the logarithm of compute.
    """
    a, b = (over_flops(run) for run in (first, second))
    if min(len(a), len(b)) < 2:
        raise UserError(f"{first.name} and {second.name}: a curve needs two evaluations at least; see evaluate.every")
    low, high = max(a[0][0], b[0][0]), min(a[-1][0], b[-1][0])
    places = sorted({flops for flops, _ in (*a, *b) if low <= flops <= high})
    if not places:
        raise UserError(f"{first.name} and {second.name}: their evaluations have no compute in common")
    rows = [(flops, _at(a, flops), _at(b, flops)) for flops in places]
    wobbles = [wobble(run.curve) for run in (first, second)]
    noise = None if None in wobbles else math.hypot(*(value or 0.0 for value in wobbles))
    ahead, crossings = 0, []
    for flops, x, y in rows:
        sign = 0 if abs(x - y) <= _SURE * (noise or 0.0) else (1 if x < y else -1)
        if sign and ahead and sign != ahead:
            crossings.append(flops)
        ahead = sign or ahead
    return Comparison(first, second, rows, noise, crossings, _verdict(first, second, rows, noise, crossings))


def _verdict(
    first: Trained, second: Trained, rows: list[tuple[float, float, float]], noise: float | None, crossings: list[float]
) -> str:
    _, x, y = rows[-1]
    best = first.name if x <= y else second.name
    end = f"at the end {best} is ahead by {abs(x - y):.4f} nats"
    if noise is None:
        size = "too few evaluations to tell how much of it is noise"
    else:
        size = f"{'within' if abs(x - y) <= _SURE * noise else 'beyond'} the noise, ± {_SURE * noise:.4f}"
    if crossings:
        crossed = f"The curves cross, the last time at {crossings[-1]:.3g} FLOPs"
    else:
        crossed = "The curves do not cross"
    return f"{crossed}; {end} ({size})."


def over_flops(run: Trained) -> list[tuple[float, float]]:
    """The curve of a run as (FLOPs, held-out loss)."""
    return [(tokens * run.flops_per_token, loss) for tokens, loss in run.curve]


def _at(curve: Sequence[tuple[float, float]], flops: float) -> float:
    """The loss of a curve at some compute between its first and last."""
    for (x0, y0), (x1, y1) in itertools.pairwise(curve):
        if x0 <= flops <= x1:
            return y0 + (y1 - y0) * (math.log(flops / x0) / math.log(x1 / x0) if x1 > x0 else 1.0)
    raise AssertionError("asked for where the curve is")
