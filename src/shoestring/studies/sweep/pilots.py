"""Short runs before a sweep: its own recipes with few steps, as many at a time as the sweep will have.

They are real runs in a folder of their own, which is removed: no other measurement can drift from what a run does. What
they took is kept for a day.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shoestring.core import recipe_file
from shoestring.core.errors import ShoestringError
from shoestring.core.files import cache_folder, make_folder
from shoestring.core.recipe import Recipe, fingerprint
from shoestring.core.records import Plan, Profile
from shoestring.core.run_folder import RunFolder
from shoestring.core.run_sections import Budget
from shoestring.core.units import Count, Seconds, counted
from shoestring.probe.load import load, used_by_others
from shoestring.runs.profile_cache import code_fingerprint
from shoestring.studies.sweep.crowd import QUIET, VALID, children
from shoestring.studies.sweep.plans import work_key
from shoestring.studies.sweep.slots import Slots
from shoestring.studies.sweep.taken import Seen, Taken, taken

WORTH = 60.0
"""Seconds of a sweep from which on short runs are worth their time."""
_SHARE = 0.05
"""Of the sweep, what they may take."""
_ROUND = 10.0
"""Seconds that short runs take, about, besides what is planned for them."""
_MOST_ROUNDS = 3
_STEPS_SECONDS = 2.0
"""For which a short run takes steps."""
_FEWEST_STEPS, _FEWEST_EPOCHS = 8, 2
_LAYER_SECONDS = 0.005
"""About, of a layer in a step, however small it is."""
_COMPILES = 3.0
"""Seconds of a set-up in which something was compiled."""
_PATIENCE = 6.0
"""How many times as long as expected a short run may take, before it is ended."""
_LOOK_AGAIN = 0.02


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A run of the sweep that may be tried."""

    recipe: Recipe
    """With numbers in place of "auto"."""
    plan: Plan
    profile: Profile

    @property
    def key(self) -> str:
        return work_key(self.recipe)

    @property
    def step(self) -> float:
        """Planned seconds."""
        assert self.plan.step_seconds is not None
        return self.plan.step_seconds


@dataclass(frozen=True, kw_only=True)
class Pilots:
    """What short runs showed."""

    seen: Seen
    keys: frozenset[str]
    """Of the kinds that were tried."""
    seconds: float
    """That they took; 0: they were taken before."""
    others: float | None
    """Processors that other processes used meanwhile; None: unknown."""

    def shown(self) -> str:
        """For people."""
        busy = "; the machine is busy, so that will change" if _disturbed(self.others) else ""
        runs = counted(len(self.keys), "short run")
        when = "taken before" if not self.seconds else f"in {Seconds(self.seconds).short()}"
        return f"measured: by {runs} {when}{busy}"


def fly(candidates: Sequence[Candidate], slots: Slots, total: float) -> Pilots | None:
    """Take short runs of some of the candidates, of a sweep of `total` seconds; None: not worth it, or they failed."""
    by_key = {each.key: each for each in candidates if each.plan.binding != "time"}
    if not by_key or total < WORTH:
        return None
    machine = next(iter(by_key.values())).profile.machine.fingerprint
    files = {key: _file(machine, slots, key) for key in by_key}
    known = {key: found for key, file in files.items() if (found := _read(file)) is not None}
    rounds = min(_MOST_ROUNDS, max(1, int(_SHARE * total / _ROUND)))
    if slots.at_once == 1 and total >= 2 * WORTH:  # one run says nothing of how steps grow
        rounds = max(rounds, 2)
    limit = max(_ROUND, _SHARE * total / rounds)
    chosen = _chosen([each for each in by_key.values() if short(each, limit) is not None], rounds * slots.at_once)
    missing = [each for each in chosen if each.key not in known]
    began, before, own = time.perf_counter(), load(), children()
    for first in range(0, len(missing), slots.at_once):
        group = missing[first : first + slots.at_once]
        together = [group[place % len(group)] for place in range(slots.at_once)]
        for each, found in zip(group, _twice(together, slots, limit)):
            if found is not None:
                known[each.key] = found
    after = load()
    others = used_by_others(before, after._replace(own=after.own + children() - own))
    if missing and not _disturbed(others):
        for each in missing:
            if each.key in known:
                _keep(known[each.key], files[each.key])
    if not known:
        return None
    runs = [(by_key[key].step, found) for key, found in known.items()]
    return Pilots(
        seen=Seen(runs),
        keys=frozenset(known),
        seconds=time.perf_counter() - began if missing else 0.0,
        others=others if missing else None,
    )


def _chosen(candidates: Sequence[Candidate], most: int) -> list[Candidate]:
    """The shortest and the longest steps, and others evenly between them."""
    ordered = sorted(candidates, key=lambda each: each.step)
    if len(ordered) <= most:
        return ordered
    if most == 1:
        return [ordered[len(ordered) // 2]]
    places = {round(number * (len(ordered) - 1) / (most - 1)) for number in range(most)}
    return [ordered[place] for place in sorted(places)]


def short(each: Candidate, limit: float) -> Recipe | None:
    """The recipe with a few steps or epochs, one evaluation and no tracker; None: they would take too long."""
    recipe, plan = each.recipe, each.plan
    steps = plan.steps or 1
    if recipe.hmm is not None:
        epochs = max(1.0, plan.epochs or 1.0)
        epoch = plan.parts["train"] / epochs
        few = min(round(epochs), max(_FEWEST_EPOCHS, int(_STEPS_SECONDS / epoch)))
        budget, seconds = Budget(epochs=float(few)), few * epoch
    else:
        about = each.step + _LAYER_SECONDS * (1 + recipe.model.layers)
        few = min(steps, max(_FEWEST_STEPS, int(_STEPS_SECONDS / about)))
        budget, seconds = Budget(steps=Count(few)), few * each.step + plan.parts.get("prepare", 0.0)
    if seconds > limit:
        return None
    kept = replace(budget, memory=recipe.budget.memory)
    return replace(recipe, budget=kept, evaluate=replace(recipe.evaluate, every=1.0), track=None)


def _twice(group: Sequence[Candidate], slots: Slots, limit: float) -> list[Taken | None]:
    """As `_take`; on GPUs once more where set-up takes long: then kernels are compiled, which later runs find."""
    first = _take(group, slots, limit)
    slow = max((each.setup for each in first if each is not None), default=0.0)
    if not slots.gpus or slow < _COMPILES:
        return first
    again = _take(group, slots, limit)
    return [
        one or other if one is None or other is None else replace(other, late=max(0.0, one.setup - other.setup))
        for one, other in zip(first, again)
    ]


def _take(group: Sequence[Candidate], slots: Slots, limit: float) -> list[Taken | None]:
    """Run the candidates at the same time, one in each place; None for those that failed."""
    with tempfile.TemporaryDirectory(prefix="shoestring-") as place:
        folder = Path(place)
        folders = [_write(each, folder / str(number), limit) for number, each in enumerate(group)]
        walls = _walls([folder / str(number) / "recipe.toml" for number in range(len(group))], slots, limit)
        return [None if wall is None else taken(own, wall) for own, wall in zip(folders, walls)]


def _write(each: Candidate, folder: Path, limit: float) -> RunFolder:
    """Write the short recipe, with its profile if the run would measure one; stores that there are can be read."""
    recipe = short(each, limit)
    assert recipe is not None, "chosen"
    stores = folder / "stores"
    stores.mkdir(parents=True)
    for store in Path(recipe.data.folder).resolve().glob("[!.]*/"):
        (stores / store.name).symlink_to(store)
    recipe = replace(
        recipe,
        run=replace(recipe.run, folder=str(folder / "runs"), name="pilot"),
        data=replace(recipe.data, folder=str(stores)),
    )
    (folder / "recipe.toml").write_text(recipe_file.dump(recipe))
    own = RunFolder.of(recipe)
    hand_over(each.profile, recipe, own)
    return own


def hand_over(profile: Profile, recipe: Recipe, folder: RunFolder) -> None:
    """Write a profile into the folder of a run that has not begun, if the run would measure it again.

    A counted one is made again at once, and a run with a time measures by itself, because its length depends on it.
    """
    scaled_on_gpu = profile.estimated and profile.machine.device == "cuda"  # its memory is unknown
    if recipe.hmm is None or recipe.budget.time is not None or scaled_on_gpu:
        return
    with contextlib.suppress(ShoestringError):
        own = Profile.read_if_there(folder.profile)
        if own is not None and own.workload == profile.workload and own.busy is None:
            return
    disturbed = "" if profile.busy is None else f"; {profile.busy}"
    with folder.lock(), folder.claiming(recipe):
        folder.write(folder.profile, replace(profile, busy=None, stopped=profile.stopped + disturbed))


def _walls(recipes: Sequence[Path], slots: Slots, limit: float) -> list[float | None]:
    """Seconds that the processes live; None for one that fails, or takes far too long."""
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(_process(recipe, slots, place)) for place, recipe in enumerate(recipes)]
        found: dict[int, float | None] = {}
        while len(found) < len(processes):
            time.sleep(_LOOK_AGAIN)
            now = time.monotonic() - began
            for number, process in enumerate(processes):
                if number not in found and (code := process.poll()) is not None:
                    found[number] = now if code == 0 else None
                elif now > _PATIENCE * (_ROUND + limit):
                    found.setdefault(number, None)
    return [found[number] for number in range(len(processes))]


@contextlib.contextmanager
def _process(recipe: Path, slots: Slots, place: int) -> Iterator[subprocess.Popen[bytes]]:
    environment: Mapping[str, str] = os.environ | {"NO_COLOR": "1"} | slots.environment(place)
    command = [sys.executable, "-m", "shoestring", "train", str(recipe), "--json"]
    silent = subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=silent, stdout=silent, stderr=silent, env=environment)  # noqa: S603
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _disturbed(others: float | None) -> bool:
    return others is not None and others > QUIET * (os.cpu_count() or 1)


def _file(machine: str, slots: Slots, key: str) -> Path:
    about = [machine, code_fingerprint(), slots.at_once, slots.threads, sys.executable, key]
    return cache_folder() / "pilots" / f"{fingerprint(about)}.json"


def _read(file: Path) -> Taken | None:
    with contextlib.suppress(ShoestringError, OSError):
        if file.is_file() and 0 <= time.time() - file.stat().st_mtime < VALID:
            return Taken.read(file)
    return None


def _keep(found: Taken, file: Path) -> None:
    with contextlib.suppress(ShoestringError):
        make_folder(file.parent)
        found.write(file)
