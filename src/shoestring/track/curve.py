"""The curve of a run, read from its metrics: what it learned, by step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


class TrainingLine(NamedTuple):
    """The mean training loss since the line before."""

    step: int
    loss: float
    lr: float | None
    """None: no learning rate, as in an HMM's fit."""
    grad_norm: float | None


class TurnLine(NamedTuple):
    """Where a run saw that it overfits, and ended or returned to its best weights."""

    step: int
    best: int
    """The step that had the best weights."""


class HeldoutLine(NamedTuple):
    """The loss on held-out rows after a step."""

    step: int
    loss: float
    error: float | None
    """Its standard error over the rows; None: not recorded."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The losses of a run, in order of steps; of an HMM's fit, of epochs."""

    training: tuple[TrainingLine, ...]
    heldout: tuple[HeldoutLine, ...]
    turn: TurnLine | None = None

    @classmethod
    def of(cls, lines: Iterable[Mapping[str, Any]]) -> Curve:
        """From the lines of metrics.jsonl."""
        training, heldout, turn = [], [], None
        for line in lines:
            if "loss" in line:
                training.append(TrainingLine(line["step"], line["loss"], line.get("lr"), line.get("grad_norm")))
            if "heldout_loss" in line:
                heldout.append(HeldoutLine(line["step"], line["heldout_loss"], line.get("heldout_error")))
            if line.get("event") == "overfitting" and turn is None:
                turn = TurnLine(line["step"], line["best"])
        return cls(training=tuple(training), heldout=tuple(heldout), turn=turn)

    def until(self, step: float) -> Curve:
        """What was known after `step`."""
        return Curve(
            training=tuple(line for line in self.training if line.step <= step),
            heldout=tuple(line for line in self.heldout if line.step <= step),
            turn=self.turn if self.turn is not None and self.turn.step <= step else None,
        )

    def delivered(self) -> Curve:
        """Without the steps that a run took back."""
        if (turn := self.turn) is None:
            return self
        return Curve(
            training=tuple(line for line in self.training if not turn.best < line.step <= turn.step),
            heldout=tuple(line for line in self.heldout if not turn.best < line.step <= turn.step),
        )

    @property
    def best(self) -> HeldoutLine | None:
        """The evaluation with the lowest loss."""
        return min(self.heldout, key=lambda line: line.loss, default=None)
