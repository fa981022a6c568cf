"""The drift of a run's model from its first weights, on the prompts of a fingerprints file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from shoestring.core.errors import UserError
from shoestring.core.fingerprints import read_fingerprints
from shoestring.core.recipe import Recipe
from shoestring.models.overlap import BaseLists
from shoestring.storage.tensor_file import read_tensors, write_tensors
from shoestring.track import LineFile
from shoestring.training.checkpoint import State
from shoestring.training.learner import Learner
from shoestring.training.loop import Report
from shoestring.training.schedule import Schedule

OTHER_BASE = 0.05
"""Nats by which likeliest next tokens may differ from those of the file's base, on the average, by rounding."""


class Drift:
    """The prompts, and what the first weights predicted after them."""

    def __init__(self, ids: Tensor, log_p: Tensor, k: int):
        self._ids, self._base = ids, BaseLists.of(log_p, k)

    @classmethod
    def begin(cls, learner: Learner, recipe: Recipe, say: Callable[[str], object]) -> Drift:
        """With the weights as they are for a base."""
        given = read_fingerprints(recipe)
        where = f'evaluate.overlap = "{recipe.evaluate.overlap}"'
        (_, predicted), ids = (
            _predictions(learner, torch.zeros(1, 1, dtype=torch.long)).shape,
            torch.tensor(given.prompts),
        )
        if predicted != given.vocabulary:
            raise UserError(
                f"{where}: it is of a model with {given.vocabulary:,} ids ({given.base}), and this one predicts "
                f"{predicted:,}; make it with: shoestring fingerprints BASE"
            )
        log_p = _predictions(learner, ids).cpu()
        off = (log_p.max(dim=1).values - torch.tensor(given.likeliest)).abs().mean()
        if float(off) > OTHER_BASE:
            say(f"{where}: its base is another model ({given.base}); the overlap is with the run's own first weights")
        return cls(ids, log_p, given.k)

    @classmethod
    def read(cls, path: Path) -> Drift:
        found = read_tensors(path)
        prompts, log_p = (torch.from_numpy(found.arrays[name]) for name in ("prompts", "log_p"))
        return cls(prompts, log_p, int(found.note))

    def write(self, path: Path) -> None:
        tensors = {"prompts": self._ids.numpy(), "log_p": self._base.log_p.numpy(force=True)}
        write_tensors(path, tensors, str(self._base.k), parents=False)

    def scores(self, learner: Learner) -> dict[str, float]:
        """Both overlaps and the divergence; all prompts in one pass."""
        self._base = self._base.to(learner.device)
        return self._base.compare(_predictions(learner, self._ids))


def _predictions(learner: Learner, ids: Tensor) -> Tensor:
    """Log-probabilities of the token after each prompt, (prompts, vocabulary), in float32."""
    with learner.writing():
        return learner.model.last_logits(ids.to(learner.device)).detach().float().log_softmax(-1)


@dataclass
class AfterFirstStep:
    """A hook: the scores after step 1, before the first evaluation."""

    score: Callable[[], dict[str, float]]
    metrics: LineFile

    def due(self, step: int, schedule: Schedule) -> bool:  # noqa: ARG002
        return step == 1

    def __call__(self, state: State, report: Report) -> State:
        if state.step == 1 and report.settled(1):
            self.metrics.add(step=1, **self.score())
        return state
