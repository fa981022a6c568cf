"""Metrics for Weights & Biases."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoestring.core.errors import MissingExtra
from shoestring.core.reading import parse_toml, read_text
from shoestring.track.trackers import PROJECT

_INIT_SECONDS = 60
"""How long an online session may take to begin."""


class WeightsAndBiases:
    """A run of wandb in the folder `wandb` of a run: offline, unless WANDB_MODE says otherwise.

    A run that is resumed continues it. Each line has its own step, so that steps that are taken again do not disturb.
    """

    def __init__(self, folder: Path, _: int):
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # else it looks up a name on every start
        try:
            import wandb
        except ImportError as cause:
            raise MissingExtra('track.to = ["wandb"]', "wandb", "track") from cause
        self._wandb: Any = wandb
        self._folder = folder
        self._run: Any = None

    def _begin(self) -> Any:
        mode = os.environ.get("WANDB_MODE", "offline")
        settings = self._wandb.Settings(silent=True, console="off", init_timeout=_INIT_SECONDS)
        run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=self._folder.name,
            id=run_id(self._folder),
            resume="allow",
            dir=str(self._folder),
            mode=mode,
            config=config_of(self._folder),
            settings=settings,
        )
        run.define_metric("*", step_metric="step")
        return run

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run = self._run or self._begin()
        self._run.log({**values, "step": step})

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()


def run_id(folder: Path) -> str:
    """The same for all sessions of a run, and another for a run that takes its folder later."""
    recipe = folder.resolve() / "recipe.toml"
    begun = recipe.stat().st_mtime_ns if recipe.is_file() else 0
    return hashlib.sha256(f"{recipe}:{begun}".encode()).hexdigest()[:12]


def config_of(folder: Path) -> dict[str, Any]:
    """The tables of a run's recipe, as they are written."""
    recipe = folder / "recipe.toml"
    return parse_toml(read_text(recipe), recipe) if recipe.is_file() else {}
