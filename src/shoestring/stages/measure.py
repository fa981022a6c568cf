"""Measure: what this machine does with this recipe's training, and how dense its corpus is."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from shoestring.core import recipe as recipes
from shoestring.core.errors import Fault, UserError
from shoestring.core.facts import Profile
from shoestring.core.files import write_whole
from shoestring.core.recipe import Recipe
from shoestring.core.run_folder import RunFolder
from shoestring.core.schema import encode
from shoestring.data.density import measure_density
from shoestring.data.sources import open_source
from shoestring.probe.child import listen
from shoestring.probe.measure import candidate_batches
from shoestring.stages.voice import Voice

_TIMEOUT = 900.0


def ensure_profile(recipe: Recipe, folder: RunFolder, voice: Voice, seconds: float, fresh: bool = False) -> Profile:
    """The profile in the run folder, measured anew where it is missing or of another workload."""
    if folder.profile.is_file() and not fresh:
        profile = Profile.read(folder.profile)
        if profile.workload == recipe.workload:
            return profile
    profile = measure_recipe(recipe, seconds)
    profile.write(folder.profile)
    voice.measured(profile)
    return profile


def measure_recipe(recipe: Recipe, seconds: float) -> Profile:
    """About `seconds` of passes at growing batch sizes, in a child process; a child that dies costs its last size."""
    given = recipe.train.per_device
    if recipe.hmm is not None:
        batches = [recipe.batch >> shift for shift in range(10, -1, -2)]
    else:
        batches = candidate_batches(recipe.batch) if given is None else [given]
    findings, points, trouble = _trial(recipe, batches, seconds)
    if "refused" in findings:
        raise UserError(f"measuring failed: {findings['refused']}")
    if trouble and points:  # it died in mid-way: stay with the sizes that worked
        findings, points, again = _trial(recipe, [point["batch"] for point in points], seconds)
        findings["stopped"] = f"the next batch ended the process ({trouble})"
        trouble = again
    if trouble or not points:
        raise Fault(f"measuring failed: {trouble or findings.get('stopped')}")
    findings.pop("point")
    density = None
    if recipe.data.stream is None and not recipe.data.source.startswith("store:"):
        density = measure_density(open_source(recipe.data, recipe.run.seed), recipe.data, recipe.run.seed)
    values = findings | {"schema": Profile.SCHEMA, "workload": recipe.workload, "length": recipe.data.length}
    return Profile.from_dict(values | {"points": points, "density": encode(density)}, "the measurement")


def _trial(
    recipe: Recipe, batches: list[int], seconds: float
) -> tuple[dict[str, Any], list[dict[str, Any]], str | None]:
    """Everything the child told, the points among it, and what ended it if it did not end well."""
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "recipe.toml"
        write_whole(file, recipes.dump(recipe))
        arguments = [str(file), ",".join(map(str, batches)), str(seconds)]
        told, trouble = listen([sys.executable, "-m", "shoestring.stages.trial", *arguments], _TIMEOUT)
    findings: dict[str, Any] = {}
    for finding in told:
        findings |= finding
    return findings, [finding["point"] for finding in told if "point" in finding], trouble
