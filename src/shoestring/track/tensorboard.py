"""Metrics for TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from shoestring.core.errors import MissingExtra


class TensorBoard:
    """Scalars by step, in the folder `tensorboard` of a run; those of steps that are taken again are purged."""

    def __init__(self, folder: Path, step: int):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as cause:
            raise MissingExtra('track.to = ["tensorboard"]', "tensorboard", "track") from cause
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()
