"""The expected speed-up of several workers over one, with its reason."""

from __future__ import annotations

from shoestring.core.errors import PlanError
from shoestring.core.parallel import Parallel
from shoestring.core.recipe import Recipe
from shoestring.core.records import Profile
from shoestring.core.units import Seconds, counted
from shoestring.planning.simulate import Cluster, Work, play
from shoestring.planning.split import Split, choose_split

_STEPS = 1000
"""Steps that are played."""


def speed_up_lines(recipe: Recipe, profile: Profile, split: Split) -> list[tuple[str, str, str]]:
    """How much faster the workers of a split are than one; none where one alone could not take the steps."""
    workers, parallel = split.devices, recipe.parallel or Parallel()
    if workers == 1 or parallel.shard:
        return []
    if profile.machine.device == "cpu" and recipe.workers > 1:
        threads = counted(profile.machine.threads, "thread")
        return [("speed-up", "about 1×", f"{workers} workers on this machine divide the {threads} that one has alone")]
    if profile.sharing is not None:
        return [("speed-up", "about 1×", f"{profile.sharing} workers take turns on one GPU")]
    try:
        one = choose_split(profile, recipe.batch, recipe.train.per_device, recipe.budget.memory)
    except PlanError:
        return []
    work = work_of(profile, split, _STEPS)
    together = play(parallel.shares, work, Cluster(workers), parallel).seconds / _STEPS
    rise = one.step_seconds / together
    parts = [f"passes {_short(work.share_seconds)}", f"update {_short(work.update_seconds)}"]
    if parallel.shares != "async":
        parts.append(_sum_part(work, parallel))
    alone, now = _short(one.step_seconds), _short(together)
    return [("speed-up", f"{rise:.2g}×", f"a step takes {alone} alone and {now} with {workers}: {', '.join(parts)}")]


def work_of(profile: Profile, split: Split, steps: int) -> Work:
    """The steps of a split as its workers see them, with the sum over them if that was measured."""
    measured = profile.sum_seconds if profile.sum_workers == split.devices else None
    update = profile.update_seconds
    return Work(steps, split.step_seconds - update, update, 4 * profile.cost.total_parameters, measured)


def _sum_part(work: Work, parallel: Parallel) -> str:
    if work.sum_seconds is None:
        return "sums over the workers not counted; shoestring measure times them"
    if parallel.shares == "sync":
        return f"a sum of gradients {_short(work.sum_seconds)}"
    return f"an average {_short(work.sum_seconds)} every {counted(parallel.every, 'step')}"


def _short(seconds: float) -> str:
    return Seconds(seconds).short()
