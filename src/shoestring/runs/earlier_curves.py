"""The curves of the finished runs beside a run, for the forecast of its held-out loss."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from pathlib import Path

from shoestring.core.errors import ShoestringError
from shoestring.core.recipe import Recipe
from shoestring.core.records import Profile
from shoestring.core.run_folder import RunFolder
from shoestring.core.schema import encode
from shoestring.laws.earlier import Shape
from shoestring.report.forecast import ALONE, Beside, heldout_shape, taken_path
from shoestring.runs.plan import LEARNED_RUNS, finished_runs, same_rows
from shoestring.track import read_some_lines
from shoestring.track.curve import Curve

MOST = 8
"""Curves that a run is compared with, the latest first; of the same family before others."""
LINES = 100
"""Lines of each for its learning rates, besides those of its evaluations."""


def runs_beside(own: RunFolder, recipe: Recipe, names: Sequence[str] | None = None) -> Beside:
    """The finished runs on the same data in the folder of a run, with their curves; `names`: of these alone."""
    if recipe.kind == "hmm" or not own.profile.is_file():
        return ALONE
    folder, shapes = own.path.parent, dict[str, Shape]()
    paths = finished_runs(folder, LEARNED_RUNS + 1) if names is None else [folder / name for name in names]
    for path, batch in _alike(recipe, [path for path in paths if path != own.path]):
        if len(shapes) == MOST:
            break
        with contextlib.suppress(ShoestringError, OSError, UnicodeDecodeError):  # damaged, or removed meanwhile
            if (shape := _finished_shape(path, batch, RunFolder(path).done.stat().st_mtime_ns)) is not None:
                shapes[path.name] = shape
    return Beside(_parameters(own), recipe.batch, shapes)


def _alike(recipe: Recipe, paths: Sequence[Path]) -> list[tuple[Path, int]]:
    """Those that learned the same rows from the same beginning, with their batches; of the same family first."""
    found: list[tuple[bool, Path, int]] = []
    for path in paths:
        with contextlib.suppress(ShoestringError, OSError, UnicodeDecodeError):
            other = RunFolder(path).read_recipe()
            if same_rows(other, recipe) and _begins(other) == _begins(recipe):
                found.append((other.kind != recipe.kind, path, other.batch))
    return [(path, batch) for _, path, batch in sorted(found, key=lambda each: each[0])]


def _parameters(folder: RunFolder) -> float:
    return float(Profile.read(folder.profile).cost.total_parameters)


@functools.lru_cache(maxsize=4 * MOST)
def _finished_shape(path: Path, batch: int, written: int) -> Shape | None:  # noqa: ARG001
    """The curve of a run that was DONE at the time `written`; None: it overfitted, or has none.

    It is asked for while a run trains, and again at its end.
    """
    folder = RunFolder(path)
    folder.check_records(folder.metrics, folder.profile, folder.recipe)
    curve = Curve.of(read_some_lines(folder.metrics, LINES, "heldout_loss", "event"))
    rates = taken_path(curve)
    if rates is None or curve.turn is not None:
        return None
    return heldout_shape(curve, rates, _parameters(folder), batch)


def _begins(recipe: Recipe) -> list[object]:
    """What the first loss depends on, and how the batch may change."""
    return [recipe.kind == "hmm", recipe.model.init, encode(recipe.lora), recipe.train.freeze, recipe.train.grow]
