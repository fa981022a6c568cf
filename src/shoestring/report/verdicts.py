"""Verdicts on a run: what its numbers say, in plain sentences.

Each rule looks at the curve, and at the evaluation where there is one, and says nothing where the evidence is not
there. A difference counts where it is more than `SIGMAS` standard errors.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from shoestring.core.recipe import Recipe
from shoestring.core.records import Plan
from shoestring.core.results import Evaluation, Outcome, Verdict
from shoestring.core.run_folder import RunFolder
from shoestring.core.units import counted
from shoestring.report.forecast import verdicts_by_law
from shoestring.track import read_lines
from shoestring.track.curve import Curve, HeldoutLine, TrainingLine

SIGMAS = 2.0
"""Standard errors that a difference must exceed."""
LEAST_LOSS = 0.01
"""Nats that count: a text that is known to the end has a loss of nearly 0, and so have predictions by counting."""
UNKNOWN_ERROR = 0.005
"""Relative standard error of a held-out loss whose error was not recorded."""
_STEADY = 3
"""Evaluations that must all be above the best where the rise is within the error."""
FEWEST_LINES = 40
"""Training lines below which nothing is said about spikes and the learning rate."""
_WINDOW = 16
"""Lines before a line that it is compared with."""
_SPIKE_SIGMAS, _SPIKE_SHARE = 8.0, 0.05
"""A spike of the loss exceeds the median of the window by that many standard deviations, and by that share."""
_NORM_FACTOR = 10.0
"""A spike of the gradient norm exceeds the median of the window by this factor."""
_FEWEST_SPIKES = 3
"""Fewer spikes are no verdict: a few odd rows make them too."""
_CLIPPED = 0.5
"""Share of clipped steps from which on the updates are all of one length."""
_COUNTS = ("unigram", "bigram", "majority")
"""What the names of the baselines that only count begin with."""


def verdicts_of(folder: RunFolder, outcome: Outcome | None = None) -> tuple[Verdict, ...]:
    """The verdicts on a run as its outcome has them, or by its records: those of its curve while it has no outcome."""
    if outcome is not None and outcome.verdicts:
        return outcome.verdicts
    recipe, curve = folder.read_recipe(), Curve.of(read_lines(folder.metrics))
    evaluation, plan = Evaluation.read_if_there(folder.evaluation), Plan.read_if_there(folder.plan)
    if evaluation is None:
        counted = [line["loss"] for line in read_lines(folder.timings) if line.get("event") == "counted"]
        return live_verdicts(curve, *clip_and_unit(recipe), counted=counted[-1] if counted else None)
    by_law = verdicts_by_law(curve, None if plan is None else plan.step_seconds)
    return verdicts(curve, evaluation, *clip_and_unit(recipe), more=by_law)


def clip_and_unit(recipe: Recipe) -> tuple[float | None, str]:
    """The largest gradient norm, and what its metrics count."""
    return (None, "epoch") if recipe.kind == "hmm" else (recipe.train.clip, "step")


def live_verdicts(
    curve: Curve, clip: float | None = None, unit: str = "step", counted: float | None = None
) -> tuple[Verdict, ...]:
    """The verdicts that the curve alone allows; `clip` is the largest gradient norm, and `counted` the held-out loss of
    predictions by how often tokens occur, once the run should be below it."""
    kept = curve.delivered()
    unstable = _unstable(kept, unit)
    found = (_nothing_yet(curve, unit, counted), _overfitting(curve, unit), unstable, _too_high(kept, unstable, clip))
    return tuple(verdict for verdict in found if verdict is not None)


def verdicts(
    curve: Curve,
    evaluation: Evaluation | None,
    clip: float | None = None,
    unit: str = "step",
    more: Sequence[Verdict] = (),
) -> tuple[Verdict, ...]:
    """All verdicts on a finished run; `more` are those of other sources, such as a forecast."""
    scored = () if evaluation is None else (_counting(curve, evaluation), _noise(evaluation))
    live = live_verdicts(curve, clip, unit)
    more = [] if live else more  # a law says nothing about a run with a fault
    found = (*scored[:1], *live, *more, *scored[1:])
    return tuple(verdict for verdict in found if verdict is not None)


def error_of(line: HeldoutLine) -> float:
    """The standard error of a held-out loss."""
    return UNKNOWN_ERROR * abs(line.loss) if line.error is None else line.error


def _counting(curve: Curve, evaluation: Evaluation) -> Verdict | None:
    """Whether counting tokens or pairs of them would have done as well.

    The best loss of the run decides: a run that overfits has learned something.
    """
    counting = {name: loss for name, loss in evaluation.baselines.items() if name.startswith(_COUNTS)}
    best = min([evaluation.loss, *(line.loss for line in curve.heldout)])
    error = UNKNOWN_ERROR * abs(best) if evaluation.loss_error is None else evaluation.loss_error
    beaten = [name for name, loss in counting.items() if _beaten(best, error, loss)]
    if len(beaten) == len(counting):
        return None
    others = [name for name in counting if name not in beaten]
    if beaten:
        first, second = min(beaten, key=counting.__getitem__), min(others, key=counting.__getitem__)
        text = (
            f"Little beyond counting: the held-out loss {best:.3f} ± {error:.3f} is below that of the {_named(first)} "
            f"({counting[first]:.3f}), and not clearly below that of the {_named(second)} ({counting[second]:.3f})."
        )
        return Verdict(kind="only_counting", text=text)
    name = max(others, key=counting.__getitem__)
    text = (
        f"Learned nothing beyond counting: the held-out loss is {best:.3f} ± {error:.3f}, and the {_named(name)} "
        f"reaches {counting[name]:.3f}. Try more time, a longer warm-up, or another learning rate."
    )
    return Verdict(kind="learned_nothing", text=text)


def _nothing_yet(curve: Curve, unit: str, counted: float | None) -> Verdict | None:
    """Whether a run that trains has not come below the frequencies of tokens."""
    best = curve.best
    if counted is None or best is None or _beaten(best.loss, error_of(best), counted):
        return None
    text = (
        f"Nothing learned beyond counting by {unit} {curve.heldout[-1].step:,}: the held-out loss is {best.loss:.3f} ± "
        f"{error_of(best):.3f}, and predictions by how often tokens occur reach {counted:.3f}. "
        "Try more time, a longer warm-up, or another learning rate."
    )
    return Verdict(kind="learned_nothing", text=text)


def _beaten(loss: float, error: float, counted: float) -> bool:
    """Whether a loss is below one of counting, or both are as good as none."""
    return loss < counted - SIGMAS * error or max(loss, counted) < LEAST_LOSS


def _named(baseline: str) -> str:
    return baseline.replace("_", " ")


def _overfitting(curve: Curve, unit: str) -> Verdict | None:
    """Whether the held-out loss rose from its best by more than its error while the training loss fell.

    A run that noticed it itself may have fallen below that best since: what it saw then counts.
    """
    if curve.turn is not None:
        curve = curve.until(curve.turn.step)
    best, last = curve.best, curve.heldout[-1] if curve.heldout else None
    if best is None or last is None or not _rose(curve.heldout, best):
        return None
    then, end = _training_near(curve, best.step), _training_near(curve, last.step)
    if then is None or end is None or end >= then:
        return None
    text = (
        f"Overfitting since {unit} {best.step:,}: the held-out loss rose from {best.loss:.3f} to {last.loss:.3f}, "
        f"while the training loss fell from {then:.3f} to {end:.3f}. Get more text, or take a smaller model, dropout, "
        "more weight decay, or fewer epochs."
    )
    return Verdict(kind="overfitting", text=text)


def _rose(heldout: Sequence[HeldoutLine], best: HeldoutLine) -> bool:
    """Whether the loss rose beyond its error; or less, but steadily.

    All evaluations are of the same rows, so that one differs from the next by much less than their error. Where the
    last ones are all above the best by four times that scatter, the rise is no chance.
    """
    if heldout[-1].loss - best.loss > SIGMAS * error_of(best):
        return True
    losses = [line.loss for line in heldout]
    after = losses[losses.index(best.loss) + 1 :][-_STEADY:]
    bends = [abs(a - 2 * b + c) for a, b, c in zip(losses, losses[1:], losses[2:])][-3 * _STEADY :]
    if len(after) < _STEADY or len(bends) < _STEADY:
        return False
    scatter = statistics.median(bends) / (0.6745 * math.sqrt(6))
    return min(after) - best.loss > max(4 * scatter, UNKNOWN_ERROR * best.loss)


def _training_near(curve: Curve, step: int) -> float | None:
    """The mean training loss of the lines up to a step; None: there are none."""
    before = [line.loss for line in curve.training if line.step <= step]
    few = before[-max(1, len(curve.training) // 20) :]
    return statistics.fmean(few) if few else None


class _Spike(NamedTuple):
    line: TrainingLine
    before: float
    """The median loss before it."""


def _unstable(curve: Curve, unit: str) -> Verdict | None:
    """Whether the training loss ends well above its lowest, or had spikes on its way."""
    lines = curve.training
    if len(lines) < FEWEST_LINES:
        return None
    lowest, end = _risen(lines)
    if end is not None:
        text = (
            f"Diverging: the training loss was {lowest.before:.3f} near {unit} {lowest.line.step:,}, and is {end:.3f} "
            f"at {unit} {lines[-1].step:,}."
        )
        return Verdict(kind="diverging", text=text)
    spikes = _spikes(lines)
    if len(spikes) < _FEWEST_SPIKES:
        return None
    worst = max(spikes, key=lambda spike: spike.line.loss - spike.before)
    text = (
        f"Unstable: {counted(len(spikes), 'spike')} of the training loss or the gradient norm, the first at {unit} "
        f"{spikes[0].line.step:,}; the largest raised the loss from {worst.before:.3f} to {worst.line.loss:.3f}."
    )
    return Verdict(kind="unstable", text=text)


def _deviation(lines: Sequence[TrainingLine]) -> float:
    """The standard deviation of a line's loss from its neighbours', without regard to a few large ones."""
    steps = [abs(after.loss - before.loss) for before, after in itertools.pairwise(lines)]
    return statistics.median(steps) / (0.6745 * math.sqrt(2)) if steps else 0.0


def _spikes(lines: Sequence[TrainingLine]) -> list[_Spike]:
    """Lines whose loss or gradient norm is far above those of the window before; neighbours are one spike."""
    found: list[_Spike] = []
    last = -_WINDOW
    for index in range(_WINDOW, len(lines)):
        line, window = lines[index], lines[index - _WINDOW : index]
        level = statistics.median(each.loss for each in window)
        norms = [each.grad_norm for each in window if each.grad_norm is not None]
        high = line.loss - level > max(_SPIKE_SIGMAS * _deviation(window), _SPIKE_SHARE * level, LEAST_LOSS)
        steep = bool(norms) and (line.grad_norm or 0.0) > _NORM_FACTOR * statistics.median(norms)
        if high or steep:
            if index - last > _WINDOW // 2:
                found.append(_Spike(line, level))
            last = index
    return found


def _risen(lines: Sequence[TrainingLine]) -> tuple[_Spike, float | None]:
    """The lowest mean of a window, and that of the last window where it is clearly above: by five standard errors of
    the difference, and by `_SPIKE_SHARE`."""
    width = max(_WINDOW, len(lines) // 20)
    sums = [0.0]
    for line in lines:
        sums.append(sums[-1] + line.loss)
    means = [(sums[end] - sums[end - width]) / width for end in range(width, len(lines) + 1)]
    at = min(range(len(means)), key=means.__getitem__)
    lowest, end = _Spike(lines[at + width - 1], means[at]), means[-1]
    spread = _deviation(lines[-width:]) * math.sqrt(2 / width)
    clear = end - lowest.before > max(5 * spread, _SPIKE_SHARE * lowest.before, LEAST_LOSS)
    return lowest, end if clear else None


def _too_high(curve: Curve, unstable: Verdict | None, clip: float | None) -> Verdict | None:
    """Whether what is unstable happened at a high learning rate.

    That is all that one run can show: at a rate that is only somewhat too high its curve looks like any other.
    """
    lines = [line for line in curve.training if line.lr is not None]
    peak = max((line.lr or 0.0 for line in lines), default=0.0)
    if unstable is None or peak == 0:
        return None
    where = [spike.line for spike in _spikes(lines)] if unstable.kind == "unstable" else [_risen(lines)[0].line]
    high = sum((line.lr or 0.0) >= peak / 2 for line in where)
    if high < 0.6 * len(where):
        return None
    norms = [line.grad_norm for line in lines if line.grad_norm is not None]
    clipped = sum(norm > clip for norm in norms) / len(norms) if clip is not None and norms else 0.0
    also = f", and {clipped:.0%} of the gradients were clipped" if clipped > _CLIPPED else ""
    text = (
        f"Learning rate too high: the loss is {unstable.kind} at {peak / 2:.2g} to {peak:.2g}{also}. Try "
        f"train.lr = {peak / 3:.1g}, or a longer warm-up."
    )
    return Verdict(kind="lr_too_high", text=text)


def _noise(evaluation: Evaluation) -> Verdict | None:
    if evaluation.loss_error is None:
        return None
    text = (
        f"Held-out loss {evaluation.loss:.3f} ± {evaluation.loss_error:.3f}: one standard error over "
        f"{counted(evaluation.rows, 'row')}."
    )
    return Verdict(kind="noise", text=text)
