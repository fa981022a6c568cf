"""How a session begins: the model, with what its newest checkpoint holds."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from shoestring.core.recipe import Recipe
from shoestring.runs.reporter import Reporter
from shoestring.runs.trainee import Trainee
from shoestring.training.checkpoint import Checkpoints, State
from shoestring.training.schedule import Schedule


def build(trainee: Trainee, checkpoints: Checkpoints, reporter: Reporter) -> int | None:
    """Build the model, and find the step of the newest intact checkpoint; None: there is none.

    On one GPU a thread reads that checkpoint meanwhile, and keeps it; not on a CPU, whose memory is measured.
    """
    group = trainee.group
    cuda = group.device.type == "cuda"
    if not (cuda and group.world == 1 and checkpoints.steps()):
        step, damaged = group.on_first(checkpoints.latest, cuda)
        _prepare(trainee, step is None, reporter)
    else:
        with ThreadPoolExecutor(1) as thread:
            reading = thread.submit(checkpoints.latest, True)
            _prepare(trainee, False, reporter)
            step, damaged = reading.result()
        if step is None:  # all are damaged
            _prepare(trainee, True, reporter)
    for line in damaged:
        reporter.say(f"left out: {line}")
    return step


def _prepare(trainee: Trainee, fresh: bool, reporter: Reporter) -> None:
    trainee.build(fresh=fresh, say=reporter.say)
    trainee.warm_up()


def restore(recipe: Recipe, checkpoints: Checkpoints, step: int | None, trainee: Trainee, reporter: Reporter) -> State:
    """Restore the checkpoint of this step; without one, the state of a run that begins."""
    if step is None:
        cooldown = recipe.train.cooling if trainee.decays else None
        schedule = Schedule(total=trainee.planned_steps, warmup=trainee.warmup(), cooldown=cooldown)
        return State(recipe=recipe.fingerprint, data=trainee.data, schedule=schedule, predictions=0)
    state = checkpoints.restore(step, trainee.saveable, recipe.fingerprint, trainee.data)
    trainee.group.on_first(checkpoints.drop_older, state)
    trainee.put_values(state.task)
    reporter.say(f"resuming after step {state.step:,} of {state.schedule.total:,}")
    return state
