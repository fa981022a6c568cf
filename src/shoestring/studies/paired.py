"""Whether runs differ in their last held-out loss: paired over the rows that they score, with seeds as replicates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoestring.core.errors import ShoestringError, UserError
from shoestring.core.results import Evaluation
from shoestring.core.run_folder import RunFolder
from shoestring.core.sweep_folder import with_sweeps
from shoestring.studies.effect import Difference, Scored, difference, difference_json, scored_of
from shoestring.studies.run_results import setting_of

HEAD = ("kind", "runs", "held-out loss", "difference", "95 %", "")
OTHER_ROWS = (
    "they were not scored on the same rows (or by a version that did not record them), and there is one run of one"
)


@dataclass(frozen=True)
class Kind:
    """Runs that differ in their seed alone."""

    name: str
    runs: tuple[Scored, ...]

    @property
    def loss(self) -> float:
        return sum(run.loss for run in self.runs) / len(self.runs)


@dataclass(frozen=True)
class Paired:
    """The first kind beside each of the others."""

    kinds: tuple[Kind, ...]
    differences: tuple[Difference | None, ...]

    def rows(self) -> list[tuple[str, ...]]:
        """A line for each kind, the first one first."""
        first, *others = self.kinds
        lines: list[tuple[str, ...]] = [(first.name, str(len(first.runs)), f"{first.loss:.4f}", "", "", "")]
        for kind, found in zip(others, self.differences):
            line = (kind.name, str(len(kind.runs)), f"{kind.loss:.4f}")
            lines.append((*line, *(("", "", "not known") if found is None else _cells(found))))
        return lines

    def sentences(self) -> list[str]:
        """What is known of each pair, and what would settle it."""
        first, *others = self.kinds
        said = [
            f"{first.name} and {kind.name}: {OTHER_ROWS}" if found is None else found.sentence((first.name, kind.name))
            for kind, found in zip(others, self.differences)
        ]
        if len(others) > 1:
            said.append(f"of {len(others)} comparisons at 95 %, one in twenty finds a difference where there is none")
        return said

    def to_json(self) -> list[dict[str, Any]]:
        first, *others = self.kinds
        return [
            {"first": first.name, "second": kind.name} | ({} if found is None else difference_json(found))
            for kind, found in zip(others, self.differences)
        ]


def _cells(found: Difference) -> tuple[str, str, str]:
    verdict = "different" if found.different else "may be chance"
    return f"{found.effect:+.4f}", f"± {found.half_width:.4f}", verdict if found.seeds else f"these models: {verdict}"


def compare_paired(paths: Sequence[Path]) -> Paired:
    """Compare the first kind of runs with each of the others; a sweep stands for its finished runs."""
    found: dict[str, list[tuple[str, Scored]]] = {}
    bad: list[str] = []
    for path in with_sweeps(paths):
        try:
            name, setting, scored = _read(path)
            found.setdefault(setting, []).append((name, scored))
        except ShoestringError as cause:
            bad.append(str(cause))
    if bad:
        raise UserError("\n  ".join([f"{len(bad)} of the runs cannot be compared", *bad] if bad[1:] else bad))
    kinds = tuple(Kind(runs[0][0], tuple(scored for _, scored in runs)) for runs in found.values())
    if len(kinds) < 2:
        if sum(len(kind.runs) for kind in kinds) < 2:
            raise UserError("give at least two runs: shoestring compare RUN RUN")
        kinds = tuple(Kind(name, (scored,)) for runs in found.values() for name, scored in runs)
    return Paired(kinds, tuple(difference(kinds[0].runs, kind.runs) for kind in kinds[1:]))


def _read(path: Path) -> tuple[str, str, Scored]:
    folder = RunFolder.open(path)
    if not folder.done.is_file() or not folder.evaluation.is_file():
        raise UserError(f"{path} is not finished; continue with: shoestring train {folder.recipe}")
    folder.check_records()
    recipe, evaluation = folder.written_recipe(), Evaluation.read(folder.evaluation)
    return recipe.run.name, setting_of(recipe), scored_of(evaluation)
