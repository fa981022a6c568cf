"""The terminal: a table that is too wide for its last column puts it below; no text is a command."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import shoestring
from shoestring.cli import main
from shoestring.console.progress import Sparkline, progress_line
from shoestring.console.terminal import Terminal
from shoestring.core.errors import DataError, RecipeError
from shoestring.core.results import Forecast
from shoestring.planning.alternatives import COMPARISON_HEAD, RULE_HEAD, SPLIT_HEAD
from shoestring.planning.history import HISTORY_HEAD
from shoestring.runs.reporter import TrainingProgress

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
    assert ("\nmeaning:\nfirst: " in out) == below and "meaning" in out


def test_a_narrow_last_column_stays_in_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    Terminal().table("Title", HEAD, [("first", "1" * 40, "+0.1")])
    assert "first:" not in capsys.readouterr().out


FORECAST = Forecast(step=500, loss=2.345, low=2.2, high=2.5)


@pytest.mark.parametrize("room", [30, 40, 55, 68, 90, 160])
def test_the_line_of_progress_fits_and_keeps_what_matters(room: int) -> None:
    progress = TrainingProgress(
        done=1234, total=10**6, loss=2.987, tokens_per_second=12345.0, seconds_left=98765.0, budget_left=1e5,
        forecast=FORECAST,
    )  # fmt: skip
    line = progress_line(progress, "█▇▆▅▄▃▂▁▁▁▁▁", room)
    assert line.startswith("step 1,234/1M · loss 2.987") and "1d 3h" in line
    if room >= 68:
        assert len(line) <= room and "▇▆" in line
    assert ("held out at the end" in line) == (room >= 160) and "budget" in progress_line(progress)


def test_a_sparkline_is_the_curve_of_the_loss() -> None:
    curve = Sparkline()
    curve.add(1, 5.0)
    assert curve.line() == ""
    for step in range(2, 9):
        curve.add(step, 6.0 - step)
    assert curve.line() == "█▇▆▅▄▃▂▁"
    for step in range(9, 1001):
        curve.add(step, 1000.0 - step)
    line = curve.line()
    assert 6 <= len(line) <= 12 and line[-1] == "▁" and list(line[1:]) == sorted(line[1:], reverse=True)
    curve.add(1, 3.0)
    assert curve.line() == "", "of another run"
    for loss in (2.0, float("nan"), 2.0):
        curve.add(2, loss)
    assert set(curve.line()) <= set("▁▂▃▄▅▆▇█")


def test_lines_on_a_terminal_are_broken_between_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"word{number}" for number in range(60)]
    Terminal().say(" ".join(words))
    assert capsys.readouterr().out == " ".join(words) + "\n", "a program that reads it has whole lines"
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    Terminal().say(" ".join(words) + " /a" * 1 + "/path" * 30)
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines[:-1]) and len(lines) > 5
    assert " ".join(lines).split()[:60] == words
    assert "/a" + "/path" * 30 in lines, "one word is one line"


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


HOSTILE = "a \x1b[31m\x1b]0;title\x07 \x9b2J\r[red]b[/red] [link=file:///x]\u202e \ud800"
SHOWN = r"a \x1b[31m\x1b]0;title\x07 \x9b2J\r[red]b[/red] [link=file:///x]\u202e \ud800"


@pytest.mark.parametrize("columns", ["60", "240"])
def test_no_text_of_a_file_is_a_command_of_the_terminal(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither its control characters nor, in brackets, those of the library that prints."""
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("FORCE_COLOR", "1")
    terminal = Terminal()
    terminal.say(HOSTILE)
    terminal.table(HOSTILE, (HOSTILE, "value"), [(HOSTILE, "1")])
    terminal.left_out({"broken": 1, "examples": [HOSTILE]})
    terminal._show(1, 2, HOSTILE)
    terminal._show(2, 2, HOSTILE)
    out = capsys.readouterr().out
    flat = "".join(out.split())
    assert flat.count("".join(SHOWN.split())) >= 3 and "[red]" in out
    assert not set("\x07\x9b\r\u202e\ud800") & set(out.replace("\r\x1b[2K", "").replace("\r\n", ""))
    assert "\x1b[31m" not in out and "\x1b]" not in out


def test_an_error_that_quotes_a_file_is_no_command_either(capsys: pytest.CaptureFixture[str]) -> None:
    assert str(DataError(f"corpus.txt: {HOSTILE}")) == f"corpus.txt: {SHOWN}"
    assert str(RecipeError("recipe", [HOSTILE])) == f"recipe: 1 problem\n  {SHOWN}"
    for cause in (DataError(HOSTILE), ValueError(HOSTILE)):
        main._explain(cause, ["-v", "--json"], 2)
        out, err = capsys.readouterr()
        assert SHOWN in err and not set("\x1b\x07\x9b\r\ud800") & set(out + err)


def test_everything_is_printed_in_one_place() -> None:
    """Other modules give their text to the terminal, which cleans it; or print an error, which cleans itself."""
    allowed = {
        "cli/main.py",
        "cli/options.py",
        "probe/child.py",
        "runs/extend.py",
        "runs/launch.py",
        "runs/measure_sums.py",
        "runs/probe_server.py",
    }
    root, found = Path(shoestring.__file__).parent, set()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            if called in ("print", "click.echo", "click.secho") or called.startswith(("sys.stdout.w", "sys.stderr.w")):
                found.add(str(path.relative_to(root)))
    assert found <= allowed
