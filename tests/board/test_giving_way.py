"""Reading lines gives way to what a page asks, but not for long."""

from __future__ import annotations

import pytest

from shoestring.board import server
from shoestring.board.server import MOST_WAIT, LastAsked


def test_a_look_waits_for_quiet_and_no_longer_than_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [100.0], [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        slept[0] += seconds

    monkeypatch.setattr(server.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(server.time, "sleep", sleep)
    asked = LastAsked()
    asked.wait()
    assert slept[0] == 0, "nothing was asked"
    asked.now()
    asked.wait()
    assert 0.1 < slept[0] < 0.2
    for _ in range(100):  # a page that asks again and again
        asked.now()
        asked.wait()
    assert slept[0] == pytest.approx(MOST_WAIT, abs=0.05)
    asked.begin_look()
    asked.now()
    asked.wait()
    assert slept[0] > MOST_WAIT + 0.1
