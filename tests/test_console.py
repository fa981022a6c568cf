"""The terminal: a table that is too wide for its last column puts it below."""

from __future__ import annotations

import pytest

from shoestring.console.terminal import Terminal

HEAD = ("name", "value", "meaning")
ROWS = [("first", "1" * 40, "what the first of them means, in words"), ("second", "2", "no more")]


@pytest.mark.parametrize(("width", "below"), [(60, True), (120, False)])
def test_a_last_column_without_room_is_printed_below(
    width: int, below: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    Terminal().table("Title", HEAD, ROWS)
    out = capsys.readouterr().out
    assert ("first: what the first of them means, in words\nsecond: no more\n" in out) == below
    assert ("meaning" in out) == (not below)


def test_a_narrow_last_column_stays_in_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    Terminal().table("Title", HEAD, [("first", "1" * 40, "+0.1")])
    assert "first:" not in capsys.readouterr().out
