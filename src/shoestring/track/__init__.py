"""Metrics as JSON lines in the run folder, and copies of them in other trackers."""

from __future__ import annotations

from typing import Any

from shoestring.core.registry import Registry
from shoestring.track.finished import read_outcome
from shoestring.track.lines import LineFile, NoLines, read_lines, read_some_lines

TRACKERS: Registry[Any] = Registry(
    {
        "tensorboard": "shoestring.track.tensorboard:TensorBoard",
        "wandb": "shoestring.track.wandb:WeightsAndBiases",
        "trackio": "shoestring.track.trackio:Trackio",
    }
)
"""Each makes a `trackers.Tracker` from the run's folder and the step after which the run continues."""

__all__ = ["TRACKERS", "LineFile", "NoLines", "read_lines", "read_outcome", "read_some_lines"]
