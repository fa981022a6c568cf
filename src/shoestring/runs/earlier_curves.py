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
from shoestring.core.sections import number
from shoestring.laws.earlier import Setting, Shape
from shoestring.report.forecast import ALONE, Beside, heldout_shape, taken_path
from shoestring.runs.plan import LEARNED_RUNS, finished_runs, same_rows
from shoestring.track import read_some_lines
from shoestring.track.curve import Curve

MOST = 8
"""Curves that a run is compared with: of the same family before others, the nearest in size, rate and batch first, and
of equally near ones the latest."""
LINES = 150
"""Lines of each for its learning rates and training losses, besides those of its evaluations."""


def runs_beside(own: RunFolder, recipe: Recipe, names: Sequence[str] | None = None) -> Beside:
    """The finished runs on the same data in the folder of a run, with their curves; `names`: of these alone."""
    if recipe.kind == "hmm" or not own.profile.is_file():
        return ALONE
    folder, shapes = own.path.parent, dict[str, Shape]()
    paths = finished_runs(folder, LEARNED_RUNS + 1) if names is None else [folder / name for name in names]
    setting = _setting(own, recipe)
    for path, other in _alike(recipe, setting, [path for path in paths if path != own.path]):
        if len(shapes) == MOST:
            break
        with contextlib.suppress(ShoestringError, OSError, UnicodeDecodeError):  # damaged, or removed meanwhile
            if (shape := _finished_shape(path, other, RunFolder(path).done.stat().st_mtime_ns)) is not None:
                shapes[path.name] = shape
    return Beside(setting.parameters, setting.rows, shapes)


def _alike(recipe: Recipe, own: Setting, paths: Sequence[Path]) -> list[tuple[Path, Setting]]:
    """Those that learned the same rows from the same beginning; of the same family and the nearest settings first."""
    found: list[tuple[bool, float, Path, Setting]] = []
    for path in paths:
        with contextlib.suppress(ShoestringError, OSError, UnicodeDecodeError):
            other = RunFolder(path).read_recipe()
            if same_rows(other, recipe) and _begins(other) == _begins(recipe):
                setting = _setting(RunFolder(path), other)
                found.append((other.kind != recipe.kind, own.apart(setting), path, setting))
    return [(path, setting) for _, _, path, setting in sorted(found, key=lambda each: each[:2])]


def _setting(folder: RunFolder, recipe: Recipe) -> Setting:
    """As far as the recipe says it; the highest rate that a run had is its own."""
    parameters = float(Profile.read(folder.profile).cost.total_parameters)
    return Setting(parameters, number(recipe.train.lr) or 1.0, recipe.batch)


@functools.lru_cache(maxsize=4 * MOST)
def _finished_shape(path: Path, setting: Setting, written: int) -> Shape | None:  # noqa: ARG001
    """The curve of a run that was DONE at the time `written`; None: it overfitted, or has none.

    It is asked for while a run trains, and again at its end.
    """
    folder = RunFolder(path)
    folder.check_records(folder.metrics, folder.profile, folder.recipe)
    curve = Curve.of(read_some_lines(folder.metrics, LINES, "heldout_loss", "event"))
    rates = taken_path(curve)
    if rates is None or curve.turn is not None:
        return None
    return heldout_shape(curve, rates, setting.parameters, setting.rows)


def _begins(recipe: Recipe) -> list[object]:
    """What the first loss depends on, and how the batch may change."""
    return [recipe.kind == "hmm", recipe.model.init, encode(recipe.lora), recipe.train.freeze, recipe.train.grow]
