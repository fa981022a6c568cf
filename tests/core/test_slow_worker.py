"""A worker that is made slow, by the environment."""

from __future__ import annotations

import pytest

from shoestring.core.environment import SLOW_WORKER, slowness
from shoestring.core.errors import UserError


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
