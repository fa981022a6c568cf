"""A worker that is made slow, by the environment."""

from __future__ import annotations

import pytest
import torch

from shoestring.core.environment import SLOW_WORKER, STEP_SECONDS, slowness, step_seconds
from shoestring.core.errors import UserError
from shoestring.training import stepper


def test_one_worker_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SLOW_WORKER, raising=False)
    assert slowness(1) == 1.0
    monkeypatch.setenv(SLOW_WORKER, "1:2.5x")
    assert [slowness(worker) for worker in range(3)] == [1.0, 2.5, 1.0]


@pytest.mark.parametrize("text", ["", "1", "1:3", "1:0.5x", "a:3x", "1:3x ", "1:9999x"])
def test_another_text_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SLOW_WORKER, text)
    with pytest.raises(UserError, match=f"{SLOW_WORKER} in the environment"):
        slowness(0)


def test_steps_take_at_least_as_long_as_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STEP_SECONDS, raising=False)
    assert step_seconds() == 0.0
    monkeypatch.setenv(STEP_SECONDS, "250ms")
    assert step_seconds() == 0.25
    monkeypatch.setenv(STEP_SECONDS, "soon")
    with pytest.raises(UserError, match=f"{STEP_SECONDS} in the environment"):
        step_seconds()


@pytest.mark.parametrize(("factor", "least", "slept"), [(1, 0, None), (3, 0, 4), (1, 5, 3), (2, 5, 8), (2, 1, 2)])
def test_a_worker_sleeps_for_what_is_missing(
    factor: float, least: float, slept: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its passes took 2 s."""
    found: list[float] = []
    monkeypatch.setattr(stepper.time, "perf_counter", lambda: 12.0)  # type: ignore[attr-defined]
    monkeypatch.setattr(stepper.time, "sleep", found.append)  # type: ignore[attr-defined]
    stepper.slow_down(factor, 10.0, torch.device("cpu"), least)
    assert found == ([] if slept is None else [slept])
