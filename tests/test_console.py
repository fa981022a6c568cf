"""The terminal: a table that is too wide for its last column puts it below; no text is a command."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import shoestring
from shoestring.cli import main
from shoestring.console.terminal import Terminal
from shoestring.core.errors import DataError, RecipeError
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
    allowed = {"cli/main.py", "cli/options.py", "probe/child.py", "runs/extend.py", "runs/probe_server.py"}
    root, found = Path(shoestring.__file__).parent, set()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            if called in ("print", "click.echo", "click.secho") or called.startswith(("sys.stdout.w", "sys.stderr.w")):
                found.add(str(path.relative_to(root)))
    assert found <= allowed
