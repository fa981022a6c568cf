"""The terminal: a table that is too wide for its last column puts it below."""

from __future__ import annotations

import pytest

from shoestring.console.terminal import Terminal
from shoestring.planning.alternatives import COMPARISON_HEAD, RULE_HEAD, SPLIT_HEAD
from shoestring.planning.history import HISTORY_HEAD

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
    monkeypatch.setenv("COLUMNS", "60")
    Terminal().table("Title", HEAD, [("first", "1" * 40, "+0.1")])
    assert "first:" not in capsys.readouterr().out


TABLES = {
    "splits": (SPLIT_HEAD, ("64 × 128 × 8", "1m 10s", "1.23M tokens/s", "12.3 GB", "13.4 GB", "between measured")),
    "rule": (RULE_HEAD, ("8–16 GB", "4 × ? (does not divide 30)", "16 × 128 × 1", "a batch of 4 was not measured")),
    "comparison": (COMPARISON_HEAD, ("effective batch", "1,024 rows", "1,024 rows", "another one")),
    "history": (HISTORY_HEAD, ("stories-llama-width512-seed1", *["unknown"] * (len(HISTORY_HEAD) - 1))),
    "plan": (("", "value", "reason"), ("to download", "2.49B (2.46B – 2.51B) entries", "127 GB of text: one epoch")),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_no_word_of_a_table_is_broken_at_eighty_columns(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    head, row = TABLES[name]
    Terminal().table("Title", head, [row])
    out = capsys.readouterr().out
    assert {word for cell in row for word in cell.split()} <= set(out.replace(":", " ").split()) | set(out.split())
    assert max(map(len, out.splitlines())) <= 80
