"""`shoestring plan --simulate`: the strategies of `[parallel]` on a cluster that is not here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shoestring.core.parallel import Parallel
from shoestring.core.units import Seconds
from shoestring.planning.simulate import Cluster, table
from shoestring.planning.speed_up import work_of
from shoestring.planning.split import choose_split

if TYPE_CHECKING:
    from shoestring.cli import options
    from shoestring.core.recipe import Recipe
    from shoestring.core.records import Plan, Profile

HEAD = ("strategy", "training", "speed-up", "sent by each", "reason")


def simulate(
    terminal: options.Terminal, recipe: Recipe, profile: Profile, cluster_text: str, plan: Callable[[], Plan]
) -> dict[str, Any]:
    """Show the training seconds of each strategy, by the step that the profile measured."""
    recipe.need_network("--simulate: is for networks; the strategies are theirs")
    cluster, parallel = Cluster.parse(cluster_text), recipe.parallel or Parallel()
    train, memory = recipe.train, recipe.budget.memory
    one = choose_split(profile, recipe.batch, train.per_device, memory)
    each = choose_split(profile, recipe.batch, train.per_device, memory, cluster.workers)
    steps = plan().steps or 1
    update = profile.update_seconds
    work, alone = work_of(profile, each, steps), one.step_seconds
    if cluster.step is not None:
        work, alone = work._replace(share_seconds=cluster.step / cluster.workers), cluster.step + update
    played = table(work, cluster, parallel, steps * alone)
    terminal.table(f"{steps:,} steps on {cluster_text}", HEAD, [row for _, row in played])
    known = f"as {profile.how} on {profile.machine.device_name}"
    passes = f"passes of {Seconds(cluster.step).short()}, updates" if cluster.step is not None else "steps"
    terminal.say(f"speed-up over one such worker; {passes} {known}")
    return {
        "cluster": cluster._asdict(),
        "work": work._asdict(),
        "alone_seconds": steps * alone,
        "strategies": [result._asdict() for result, _ in played],
    }
