"""What a scaling law reads from run folders: sizes, predictions, compute, held-out losses and their curves.

D counts predictions, as training did: not padding, and of a Perceiver AR or a masked model only what is predicted. For
a run that did not count them, it is what its rows would make without padding. FLOPs are exact (`core.records.Cost`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Literal, NamedTuple

from shoestring.core.errors import ShoestringError, UserError
from shoestring.core.family import family_of
from shoestring.core.numeric import interpolate
from shoestring.core.recipe import Recipe
from shoestring.core.records import Plan, Profile
from shoestring.core.results import Evaluation
from shoestring.core.run_folder import RunFolder
from shoestring.cost.transformer import Transformer
from shoestring.studies.effect import Difference, Scored, scored_of
from shoestring.track import read_lines, read_outcome

Count = Literal["total", "no-embeddings"]
COUNTS: dict[Count, str] = {
    "total": "every parameter; a tied output matrix once",
    "no-embeddings": "every parameter but the token and position tables and the output matrix",
}
_DIFFERENCES = 5
"""Second differences of a curve that `wobble` needs."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A finished run as a point of a law, with its loss curve."""

    name: str
    params: int
    tokens: float
    """Predictions in training, up to the weights that the run delivers."""
    loss: float
    """Held out, of the weights that the run delivers, in nats per prediction."""
    flops_per_token: float
    """Training FLOPs per prediction."""
    curve: tuple[tuple[float, float], ...]
    """(predictions, held-out loss) at every evaluation."""
    heldout: str
    """What determines the held-out rows: losses of runs that differ in it cannot be compared."""
    setting: str = ""
    """Its recipe but for the seed: runs with the same one are equal."""
    scored: Scored | None = None
    """The last evaluation; None: not known."""

    @property
    def flops(self) -> float:
        return self.flops_per_token * self.tokens


@dataclass(frozen=True, kw_only=True)
class TableCurve:
    """A loss curve of which there is no run folder."""

    name: str
    places: tuple[tuple[float, float], ...]
    """(FLOPs, loss), ascending."""
    params: float | None = None
    tokens: float | None = None


@dataclass(frozen=True, kw_only=True)
class CurveColumns:
    """How tables of losses are read: the column of compute is one of FLOPs, steps and tokens."""

    loss: str | None = None
    flops: str | None = None
    step: str | None = None
    """With the FLOPs of a step."""
    tokens: str | None = None
    """With parameters: C = 6 N D."""
    group: str | None = None
    """Rows with the same text there are of one curve; None: a table is a curve."""
    where: tuple[str, ...] = ()
    flops_per_step: str | None = None
    """Numbers with commas between them: one for each curve, or one for all."""
    params: str | None = None
    """Likewise."""
    names: str | None = None
    """Of the curves, with commas between them; default: their file or group."""
    skip_bad: bool = False


def row_predictions(recipe: Recipe) -> int:
    """Predictions per row without padding: what D counts."""
    family, length = family_of(recipe.model), recipe.data.length
    if family.predicts_hidden(recipe.model):
        return max(1, round(length * recipe.data.masked))
    return family.last_predictions(recipe.model) or length


def count_params(profile: Profile, recipe: Recipe, count: Count) -> int:
    """N of a measured model, in one of the two common conventions."""
    total, groups = profile.cost.total_parameters, profile.cost.parameters
    if count == "total":
        return total
    family = family_of(recipe.model)
    if not isinstance(family, Transformer) or family.predicts_hidden(recipe.model):
        raise UserError(f'--count no-embeddings: not known for model.family = "{recipe.model.family}"; use total')
    return total - groups["embedding"] - groups["head"]


def tokens_flops(profile: Profile, recipe: Recipe) -> float:
    """Exact training FLOPs per prediction."""
    return profile.cost.train_flops_per_token * recipe.data.length / row_predictions(recipe)


def read_trained(path: Path, count: Count) -> Trained:
    """Read a finished run; raises UserError with the reason where it cannot be a point of a law."""
    folder = RunFolder.open(path)
    recipe = folder.read_recipe()
    recipe.need_network(f"{path} is the fit of an HMM; scaling laws are for networks")
    for file, missing in ((folder.done, "is not finished"), (folder.evaluation, "has no evaluation")):
        if not file.is_file():
            raise UserError(f"{path} {missing}: it has no {file.name}; continue with: shoestring train {folder.recipe}")
    if not folder.profile.is_file():
        raise UserError(f"{path} has no profile.json, which counts its parameters; run: shoestring measure RECIPE")
    folder.check_records()
    outcome, evaluation = read_outcome(folder), Evaluation.read(folder.evaluation)
    assert outcome is not None, "its file is there"
    delivered = outcome.steps if outcome.delivered is None else outcome.delivered
    if evaluation.step != delivered:
        raise UserError(
            f"{folder.evaluation} is of step {evaluation.step:,}, and the run delivers step {delivered:,}; "
            f"score that with: shoestring evaluate {path} --force"
        )
    if evaluation.macro_f1 is not None:
        raise UserError(f"{path} is a classifier: its loss is per class, not per token")
    profile, step = Profile.read(folder.profile), float(recipe.batch * row_predictions(recipe))
    if outcome.predictions is not None:
        step = outcome.predictions / outcome.steps
    lines = [line for line in read_lines(folder.metrics) if "heldout_loss" in line]
    return Trained(
        name=recipe.run.name,
        params=count_params(profile, recipe, count),
        tokens=delivered * step,
        loss=evaluation.loss,
        flops_per_token=profile.cost.train_flops_per_token * recipe.batch * recipe.data.length / step,
        curve=tuple((float(line["step"] * step), float(line["heldout_loss"])) for line in lines),
        heldout=_heldout(recipe, Plan.read(folder.plan), evaluation),
        setting=setting_of(folder.written_recipe()),
        scored=scored_of(evaluation),
    )


def setting_of(recipe: Recipe) -> str:
    """The recipe but for its name and seed."""
    return replace(recipe, run=replace(recipe.run, seed=0)).fingerprint


def _heldout(recipe: Recipe, plan: Plan, evaluation: Evaluation) -> str:
    """What determines the held-out rows.

    The number of documents matters only for a tokenizer that is fitted to them, and the seed where rows or stories are
    computed.
    """
    data = recipe.data
    seed = recipe.run.seed if data.stream is not None or data.source.kind == "stories" else None
    fields = (data.source, data.stream, data.tokenizer, data.length, data.packing, data.heldout, seed)
    counted = plan.entries if data.tokenizer.fitted is not None else None
    scored = counted, evaluation.tokens, recipe.evaluate.context
    if data.validation is not None:
        return repr((next(iter(data.scored.values())), data.tokenizer, data.length, data.packing, *scored))
    return repr((*fields, evaluation.rows, *scored))


def read_all(paths: Sequence[Path], count: Count, skip_bad: bool = False) -> tuple[list[Trained], list[str]]:
    """All runs, and notes: which ones cannot be used (one error without `skip_bad`), and how they differ."""
    runs: list[Trained] = []
    bad: list[str] = []
    for path in paths:
        try:
            runs.append(read_trained(path, count))
        except ShoestringError as cause:
            bad.append(str(cause))
    if bad and not skip_bad:
        raise UserError("\n  ".join([f"{len(bad)} of {len(paths)} runs cannot be used", *bad] if bad[1:] else bad))
    said = [f"left out: {text}" for text in bad]
    if len({run.heldout for run in runs}) > 1:
        said.append(
            "the runs were scored on held-out rows of more than one kind (another source, tokenizer, vocabulary, "
            "length, seed or number of rows): that alone makes their losses differ"
        )
    return runs, said


def wobble(curve: Sequence[tuple[float, float]]) -> float | None:
    """How much the held-out loss varies from one evaluation to the next, as a standard deviation.

    It comes from second differences over the last half of the curve, where a smooth decrease leaves little in them. It
    says nothing about another seed. None where the curve is too short.
    """
    losses = [loss for _, loss in curve[len(curve) // 2 :]]
    seconds = [a - 2 * b + c for a, b, c in zip(losses, losses[1:], losses[2:])]
    return math.sqrt(fmean(d * d for d in seconds) / 6) if len(seconds) >= _DIFFERENCES else None


class Comparison(NamedTuple):
    """Two runs over the same compute."""

    first: Trained | TableCurve
    second: Trained | TableCurve
    rows: list[tuple[float, float, float]]
    """(FLOPs, loss of the first, loss of the second) over the compute that both have."""
    noise: float | None
    """Standard deviation of a difference, from the wobble of both."""
    crossings: list[float]
    """FLOPs at which a run that was clearly behind is clearly ahead."""
    verdict: str
    difference: Difference | None = None
    """What the rows and seeds say about the last losses; None: there is one run of either, on other rows."""


_SURE = 2.0
"""Standard deviations from which a difference counts."""


def compare(first: Trained | TableCurve, second: Trained | TableCurve) -> Comparison:
    """Compare the curves of two runs over compute; a difference within the noise does not count.

    Both are interpolated where either was evaluated, linearly in the logarithm of compute.
    """
    a, b = (over_flops(run) for run in (first, second))
    if min(len(a), len(b)) < 2:
        raise UserError(f"{first.name} and {second.name}: a curve needs at least two evaluations; see evaluate.every")
    low, high = max(a[0][0], b[0][0]), min(a[-1][0], b[-1][0])
    places = sorted({flops for flops, _ in (*a, *b) if low <= flops <= high})
    if not places:
        raise UserError(f"{first.name} and {second.name}: their evaluations have no compute in common")
    x, y = ([(math.log(flops), loss) for flops, loss in curve] for curve in (a, b))
    rows = [(flops, interpolate(x, math.log(flops)), interpolate(y, math.log(flops))) for flops in places]
    wobbles = [wobble(curve) for curve in (a, b)]
    noise = None if None in wobbles else math.hypot(*(value or 0.0 for value in wobbles))
    ahead, crossings = 0, []
    for flops, one, other in rows:
        sign = 0 if abs(one - other) <= _SURE * (noise or 0.0) else (1 if one < other else -1)
        if sign and ahead and sign != ahead:
            crossings.append(flops)
        ahead = sign or ahead
    return Comparison(first, second, rows, noise, crossings, _verdict(first, second, rows, noise, crossings))


def _verdict(
    first: Trained | TableCurve,
    second: Trained | TableCurve,
    rows: list[tuple[float, float, float]],
    noise: float | None,
    crossings: list[float],
) -> str:
    _, x, y = rows[-1]
    best = first.name if x <= y else second.name
    end = f"at the end {best} is ahead by {abs(x - y):.4f} nats"
    if noise is None:
        size = "too few evaluations to tell how much of it is noise"
    else:
        size = f"{'within' if abs(x - y) <= _SURE * noise else 'beyond'} the noise, ± {_SURE * noise:.4f}"
    crossed = f"cross, the last time at {crossings[-1]:.3g} FLOPs" if crossings else "do not cross"
    return f"The curves {crossed}; {end} ({size})."


def over_flops(run: Trained | TableCurve) -> list[tuple[float, float]]:
    """The curve of a run as (FLOPs, held-out loss)."""
    if isinstance(run, TableCurve):
        return list(run.places)
    return [(tokens * run.flops_per_token, loss) for tokens, loss in run.curve]
