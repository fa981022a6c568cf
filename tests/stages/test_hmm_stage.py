"""A fit keeps to its plan: rows at a time, and seconds between checkpoints."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from shoestring.core.facts import Plan
from shoestring.core.recipe_file import build
from shoestring.hmm.expect import expect
from shoestring.stages import hmm
from shoestring.stages.hmm import _counting, _epochs_between_checkpoints


@pytest.mark.parametrize(("step_seconds", "epochs"), [(0.001, 450), (2.0, 1)])
def test_checkpoints_are_an_interval_apart_and_an_epoch_at_least(step_seconds: float, epochs: int) -> None:
    """A twentieth of three minutes is 9 s; an epoch has 20 updates."""
    recipe = build({"budget": {"time": "3m"}, "data": {"tokenizer": "words:9", "documents": 9}, "hmm": {}}, "test")
    plan = Plan(binding="time", steps=2000, epochs=100.0, step_seconds=step_seconds)
    assert _epochs_between_checkpoints(recipe, plan) == epochs


def test_a_gpu_takes_as_many_rows_at_a_time_as_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hmm, "engine", lambda _: expect)
    plan = Plan(binding="time", per_device=64)
    planned = _counting(torch.device("cuda"), plan)
    assert isinstance(planned, partial)
    assert (planned.func, planned.keywords) == (expect, {"chunk": 64})
    assert _counting(torch.device("cpu"), plan) is expect
