"""A run delivers its best weights; one that overfits returns to them, and ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from shoestring.core.errors import StorageError
from shoestring.core.units import Seconds, counted
from shoestring.runs.trainee import Trainee
from shoestring.track import LineFile
from shoestring.training.checkpoint import Checkpoints, State
from shoestring.training.deadline import Deadline
from shoestring.training.hooks import PATIENCE, Wanted
from shoestring.training.loop import Report

DECAY_SHARE = 0.2
"""Of the steps to the best weights: over so many more the learning rate decays from there."""
LEAST_DECAY = 10
"""Steps."""


@dataclass
class EndOverfitting:
    """Where evaluations show overfitting: back to the best weights, with the learning rate that they had, which then
    decays over some more steps. Where none decays, or for the second time, the run ends at once. Time that is left is
    free. Within the first epoch a held-out loss that rises is no overfitting, and nothing ends.
    """

    trainee: Trainee
    checkpoints: Checkpoints
    metrics: LineFile
    wanted: Wanted
    deadline: Deadline
    say: Callable[[str], None]

    def __call__(self, state: State, report: Report) -> State:
        if state.worse < PATIENCE or not report.settled(state.step) or state.step >= state.schedule.total:
            return state
        if not self.trainee.repeats(state):  # an unstable start, not a text that is learned by heart
            return replace(state, worse=0)
        was, steps = state.schedule.total, self._decay(state)
        if steps and restored(self.trainee, self.checkpoints, state, self.say) is not None:
            progress = max(state.best_progress or 0.0, 1 - (state.schedule.cooldown or 1.0))
            total, at = state.step + steps, state.step
            schedule = replace(state.schedule, total=total, anchor_step=at, anchor_progress=progress)
            what = f"back to its weights, and {counted(steps, 'step')} more while the learning rate decays"
            ended = replace(state, schedule=schedule, turned=state.step, worse=0)
        else:
            ended, what = replace(state, schedule=replace(state.schedule, total=state.step)), "the run ends"
        total = ended.schedule.total
        self.wanted.taken(ended.step, ended.schedule)
        self.metrics.add(
            step=self.trainee.label(state), event="overfitting", best=state.best_step, total=total, was=was
        )
        why = f"overfitting since {self.trainee.step_unit} {state.best_step:,}"
        free = self.deadline.seconds_left(was - total, state.schedule.progress(total))
        rest = f"; about {Seconds(free).short()} of the time stay free" if free else ""
        self.say(f"{self.trainee.step_unit} {state.step:,}: {why}; {what}{rest}")
        return ended

    def _decay(self, state: State) -> int:
        """How many more steps are to be taken from the best weights on."""
        if state.turned is not None or not self.trainee.decays or self.trainee.recipe.train.schedule == "constant":
            return 0
        wanted = max(LEAST_DECAY, round(DECAY_SHARE * (state.best_step or 0)))
        return min(wanted, state.schedule.total - state.step)


def restored(trainee: Trainee, checkpoints: Checkpoints, state: State, say: Callable[[str], None]) -> State | None:
    """Put the best weights in place of those of `state`; returns the state that they were saved with.

    None where its checkpoint is damaged, which is said; all processes call this.
    """
    assert state.best_step is not None, "there was an evaluation"
    trainee.group.on_all(checkpoints.wait)  # the others read what the first process writes
    try:
        kept = checkpoints.restore(state.best_step, trainee.saveable, state.recipe, state.data)
    except StorageError as cause:
        say(f"left out: {cause}")
        return None
    trainee.put_values(kept.task)
    return kept


def delivered(trainee: Trainee, checkpoints: Checkpoints, state: State, say: Callable[[str], None]) -> State:
    """The state whose weights a run delivers: the best one. The trainee has them from here on."""
    if state.best_step in (None, state.step):
        return state
    kept = restored(trainee, checkpoints, state, say)
    if kept is None:
        say("the weights of the last step are delivered")
        return state
    say(f"the weights of {trainee.unit} {trainee.label(kept):,} are delivered: the held-out loss was lowest there")
    return kept


class Taken(NamedTuple):
    """What a run has done, whichever of its weights it delivers."""

    steps: int
    tokens: int
    predictions: int | None
    label: int
    """Of its last step."""

    @classmethod
    def by(cls, trainee: Trainee, state: State) -> Taken:
        return cls(
            trainee.steps_taken(state),
            trainee.tokens_seen(state),
            trainee.predictions_made(state),
            trainee.label(state),
        )
