"""Metrics for trackio."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoestring.core.errors import MissingExtra
from shoestring.track.trackers import PROJECT
from shoestring.track.wandb import config_of


class Trackio:
    """A run of the project "shoestring" in trackio's own local database; `trackio show` shows it."""

    def __init__(self, folder: Path, _: int):
        try:
            import trackio
            import trackio.run
            import trackio.utils
        except ImportError as cause:
            raise MissingExtra('track.to = ["trackio"]', "trackio", "track") from cause
        for module in (
            trackio,
            trackio.run,
            trackio.utils,
        ):  # it prints to standard output, which is for our own results
            vars(module)["print"] = lambda *_, **__: None
        self._trackio, self._folder = trackio, folder
        self._run: Any = None

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if self._run is None:
            self._run = self._trackio.init(
                project=PROJECT,
                name=self._folder.name,
                config=config_of(self._folder),
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()
