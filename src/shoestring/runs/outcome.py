"""The record of a finished run."""

from __future__ import annotations

from shoestring.core.files import folder_bytes
from shoestring.core.results import Evaluation, Outcome
from shoestring.core.run_folder import RunFolder
from shoestring.core.units import Seconds
from shoestring.probe.trials import Usage
from shoestring.report.forecast import recorded_forecast
from shoestring.report.verdicts import verdicts_of
from shoestring.runs.best_weights import Taken
from shoestring.runs.earlier_curves import runs_beside
from shoestring.runs.timeline import parts_of, rate_of, seconds_of
from shoestring.runs.trainee import Trainee
from shoestring.track import read_lines
from shoestring.track.curve import Curve
from shoestring.training.checkpoint import Checkpoints, State


def outcome_of(
    trainee: Trainee,
    checkpoints: Checkpoints,
    folder: RunFolder,
    state: State,
    evaluation: Evaluation,
    usage: Usage | None,
    written: int,
    taken: Taken,
) -> Outcome:
    """The record of a finished run that has written so many bytes besides its checkpoints."""
    lines = read_lines(folder.timings)
    rate = rate_of(lines)
    story = _story(trainee, state.step, trainee.tokens_per_step / rate if rate else None)
    earlier: list[str] = next((line["runs"] for line in lines if line.get("event") == "earlier"), [])
    beside = runs_beside(folder, trainee.recipe, earlier)
    checkpoint_bytes = max(checkpoints.peak_bytes, folder_bytes(folder.checkpoints))
    return Outcome(
        steps=taken.steps,
        tokens=taken.tokens,
        predictions=taken.predictions,
        seconds=seconds_of(lines),
        timeline=parts_of(lines),
        segments=sum(line.get("event") == "start" for line in lines),
        tokens_per_second=rate,
        disk_bytes=trainee.data_bytes + checkpoint_bytes + written,
        peak_bytes=None if usage is None else usage.reserved,
        loss=evaluation.loss,
        delivered=None if evaluation.step == taken.label else evaluation.step,
        shortened=state.shortened and f"{story}; last change at {state.shortened}",
        lengthened=state.lengthened and f"{story}; last change at {state.lengthened}",
        skipped=state.skipped,
        verdicts=verdicts_of(folder),
        sharing=trainee.sharing(state),
        grown=trainee.grown(),
        forecast=recorded_forecast(Curve.of(read_lines(folder.metrics)), beside),
    )


def _story(trainee: Trainee, taken: int, seconds: float | None) -> str:
    """The planned and the taken steps, with their seconds."""

    def at(each: float | None) -> str:
        return "" if each is None else f" at {Seconds(each).short()}"

    unit = trainee.step_unit
    planned = f"{trainee.planned_steps:,} {unit}s were planned{at(trainee.plan.step_seconds)}"
    return f"{planned}, {taken:,} were taken{at(seconds)}"
