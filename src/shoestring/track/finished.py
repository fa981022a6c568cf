"""What the records of a finished run say of each other: its outcome, its evaluation and its metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shoestring.core.consistency import differs
from shoestring.core.errors import RecordError
from shoestring.core.recipe import Recipe
from shoestring.core.results import Evaluation, Outcome
from shoestring.core.run_folder import RunFolder
from shoestring.track.lines import read_lines

_SCORED_AGAIN = 0.02
"""By how much losses of the same weights may differ: on another device, or in another precision."""


def read_outcome(folder: RunFolder) -> Outcome | None:
    """The outcome of a run, None while it has none; raises RecordError where it contradicts the other records."""
    outcome = Outcome.read_if_there(folder.done)
    if outcome is None:
        return None
    evaluation = Evaluation.read_if_there(folder.evaluation)
    lines = contradictions(folder.read_recipe(), outcome, evaluation, read_lines(folder.metrics))
    if lines:
        where = {"DONE": folder.done, "evaluation": folder.evaluation}
        shown = [f"{where[record]}: {text}" for record, text in lines]
        raise RecordError("\n  ".join([f"{folder.path}: its records contradict each other", *shown]))
    return outcome


def contradictions(
    recipe: Recipe, outcome: Outcome, evaluation: Evaluation | None, metrics: Sequence[Mapping[str, Any]]
) -> list[tuple[str, str]]:
    """(record, line) for each value that cannot be true beside the others; what is not recorded is not compared.

    An evaluation may be of an earlier step (`evaluate --force`) or made on another device. Steps of an HMM are updates,
    and its metrics count epochs: only its losses are compared.
    """
    steps = [int(line["step"]) for line in metrics if "step" in line]
    last = max(steps, default=outcome.steps)
    shown = last if outcome.delivered is None else outcome.delivered
    found = []
    if recipe.kind != "hmm":
        expected = outcome.steps * recipe.batch * recipe.data.length
        found += differs("tokens", outcome.tokens, expected, "steps × effective batch × data.length")
        found += differs("steps", outcome.steps, last, "the last step of metrics.jsonl")
        scores = [line["heldout_loss"] for line in metrics if line.get("step") == shown and "heldout_loss" in line]
        if scores:
            why = f"the held-out loss of step {shown:,} in metrics.jsonl"
            found += differs("loss", outcome.loss, scores[-1], why, _SCORED_AGAIN)
    lines = [("DONE", line) for line in found]
    if evaluation is not None and (steps or recipe.kind != "hmm"):
        if evaluation.step > last:
            lines.append(("evaluation", f"step = {evaluation.step!r}: the last step of the run is {last!r}"))
        elif evaluation.step == shown:
            said = differs("loss", evaluation.loss, outcome.loss, "that of DONE for this step", _SCORED_AGAIN)
            lines += [("evaluation", line) for line in said]
    return lines
