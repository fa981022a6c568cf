"""Fitting an HMM as a workload to be measured: the real E-step and M-step on random tokens."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from shoestring.core.facts import Cost
from shoestring.core.files import make_folder
from shoestring.core.recipe import Recipe
from shoestring.core.seeds import derive
from shoestring.data.tokenizers import words_in
from shoestring.hmm import resume
from shoestring.hmm.engine import engine_of_updates
from shoestring.hmm.expect import Counts
from shoestring.hmm.fit import FitSettings, learn
from shoestring.hmm.inference import token_log_probs
from shoestring.hmm.maximize import Priors
from shoestring.hmm.parameters import random_parameters
from shoestring.hmm.resume import Identity, Progress, Trial
from shoestring.probe.meter import Meter
from shoestring.probe.workload import Usage, nothing

_MODEL_BYTES = 8
"""Of each probability in the file of a model."""
_EPOCHS, _TOKENS = 100, 1e6
"""Of a fit that is measured: neither changes how long an update takes."""


def alphabet_size(recipe: Recipe) -> int:
    """N of words:N: the alphabet has no other symbols."""
    size = words_in(recipe.data.tokenizer)
    assert size is not None, "checked when the recipe was read"
    return size


def hmm_cost(recipe: Recipe) -> Cost:
    """Three products of 2 H² a token: one forward, and two on the way back."""
    assert recipe.hmm is not None
    h, e = recipe.hmm.states, alphabet_size(recipe)
    return Cost(parameters={"start": h, "transition": h * h, "emission": h * e}, forward_flops_per_token=2.0 * h * h)


def fit_settings(recipe: Recipe, epochs: int) -> FitSettings:
    """How the recipe's model is fitted in so many epochs."""
    hmm = recipe.hmm
    assert hmm is not None
    return FitSettings(
        states=hmm.states,
        epochs=epochs,
        update=hmm.update,
        update_every=hmm.update_every,
        priors=Priors(start=hmm.prior, transition=hmm.prior, emission=hmm.prior, end=hmm.prior),
        restarts=hmm.restarts,
        concentration=hmm.concentration,
        tied_start=hmm.tied_start,
        tolerance=hmm.tolerance,
        seed=derive(recipe.run.seed, "hmm"),
    )


class HmmWorkload:
    """E-steps of a recipe's model at any number of rows."""

    compiled = False

    def __init__(self, recipe: Recipe, meter: Meter):
        assert recipe.hmm is not None
        self.device, self._meter = meter.device, meter
        device = meter.device
        self._folder = Path(recipe.run.folder)
        self._symbols = alphabet_size(recipe)
        self._length = recipe.data.length
        seed = derive(recipe.run.seed, "random start")
        self._parameters = random_parameters(recipe.hmm.states, self._symbols, seed).to(device, torch.float32)
        self._count = engine_of_updates(device)
        self._settings = fit_settings(recipe, _EPOCHS)
        self._rate = 0.5 if recipe.hmm.update == "online" else None
        """Of the running statistics, the share that an update replaces."""
        self._counts: Counts | None = None
        self._statistics: Counts | None = None
        self._made = torch.empty((0, self._length), dtype=torch.int32)
        self._order = torch.arange(0)

    def _rows(self, batch: int) -> torch.Tensor:
        """On the host, as those of a run; made once, as those are, and picked out of their order, if those are."""
        if batch > len(self._made):
            self._made = torch.randint(self._symbols, (batch, self._length), dtype=torch.int32)
            self._order = torch.randperm(batch)
        return self._made[:batch] if self._settings.update == "all" else self._made[self._order[:batch]]

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def accumulate(self, batch: int) -> None:
        self._counts = None
        try:
            self._counts = self._count(self._parameters, self._rows(batch))
            self._wait()
        except torch.OutOfMemoryError as cause:
            raise MemoryError(str(cause)) from cause

    def rehearse(self, batch: int) -> bool:  # noqa: ARG002
        return False

    def update(self) -> None:
        """As a fit's, but for the parameters: they stay."""
        counts, self._counts = self._counts, None
        assert counts is not None
        found = learn(counts, self._parameters, self._statistics, self._settings, self._rate, _TOKENS)
        self._statistics = found.statistics
        self._wait()

    def steps(self, batch: int, count: int, passes: int = 1) -> None:
        for _ in range(count):
            for _ in range(passes):
                self.accumulate(batch)
            self.update()

    def validate(self, batch: int) -> None:
        try:
            token_log_probs(self._parameters, self._rows(batch))
            self._wait()
        except torch.OutOfMemoryError as cause:
            raise MemoryError(str(cause)) from cause

    def forget(self) -> None:
        """What an engine has recorded, too."""
        self._counts = self._statistics = None
        self._count = engine_of_updates(self.device)

    def checkpoint(self, beside: Callable[[], object] = nothing) -> int:
        """Nothing goes on while it is written; the bytes are those of the model at the end, too."""
        make_folder(self._folder)
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            file = Path(folder) / "fit.safetensors"
            trial = Trial(restart=0, parameters=self._parameters, statistics=self._statistics)
            resume.save(file, Progress(trial=trial), Identity(settings={}, data=""))
            beside()
            return file.stat().st_size + _MODEL_BYTES * sum(t.numel() for t in self._parameters if t is not None)

    def reset_peak(self) -> None:
        self._meter.reset()

    def usage(self) -> Usage | None:
        return self._meter.usage()
