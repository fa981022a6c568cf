"""What reading and parsing raises is an error with the file; what our own code raises stays a bug."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from shoestring.core import recipe_file
from shoestring.core.environment import Launched, launched
from shoestring.core.errors import DataError, RecipeError, RecordError, StorageError, UserError, shown_path
from shoestring.core.reading import parse_json, parse_toml, read_json, read_text, reading
from shoestring.core.records import Plan
from shoestring.core.specs import SourceSpec
from shoestring.data.read.corpora import open_corpus, texts
from shoestring.laws.points import read_points


@pytest.mark.parametrize(
    ("raised", "kind", "said"),
    [
        (OSError(errno.EIO, "Input/output error"), StorageError, "cannot read a.json: Input/output error"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), DataError, "not UTF-8 text"),
        (RecursionError(), DataError, "nested more than 64 deep"),
        (MemoryError(), DataError, "too large for the memory"),
        (KeyError("loss"), DataError, "a.json: loss: missing"),
        (TypeError("int is not iterable"), DataError, "not of the expected form"),
        (OverflowError("too large"), DataError, "a.json: too large"),
        (EOFError("ended early"), DataError, "ended early"),
    ],
)
def test_what_parsing_raises_is_an_error_with_the_file(raised: Exception, kind: type, said: str) -> None:
    with pytest.raises(kind, match=r"a\.json") as caught, reading("a.json", DataError):
        raise raised
    assert said in str(caught.value)
    assert caught.value.__cause__ is raised


@pytest.mark.parametrize("bug", [ZeroDivisionError(), AssertionError(), NameError(), RuntimeError()])
def test_a_bug_stays_a_bug(bug: Exception) -> None:
    with pytest.raises(type(bug)), reading("a.json"):
        raise bug


def test_an_error_for_people_is_kept() -> None:
    with pytest.raises(UserError, match=r"^mine$"), reading("a.json"):
        raise UserError("mine")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe{", "not UTF-8"),
        (b"[" * 100_000, "nested"),
        (b"[" * 80 + b"]" * 80, "nested"),
        (b"9" * 5000, "thousands of digits"),
        (b"\x00", "not JSON"),
    ],
)
def test_json_that_cannot_be_read(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(RecordError, match=rf"a\.json: .*{said}"):
        read_json(path)


def test_a_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"\xef\xbb\xbf[1]")
    assert read_json(path) == [1]


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RecordError, match="pipe: a pipe or a device"):
        read_text(tmp_path / "pipe")
    with pytest.raises(RecordError, match="a pipe or a device"):
        read_text(Path("/dev/zero"))


def test_what_a_shell_has_opened_is_read() -> None:
    read, write = os.pipe()
    os.write(write, b"text")
    os.close(write)
    assert read_text(Path(f"/dev/fd/{read}")) == "text"
    os.close(read)


def test_a_file_of_another_size_is_refused(tmp_path: Path) -> None:
    with open(tmp_path / "a.toml", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(RecipeError, match=r"1\.1 TB; at most 1\.05 MB"):
        recipe_file.load(tmp_path / "a.toml")


@pytest.mark.parametrize("text", ["a = " + "[" * 2000, ".".join("a" * 2000) + " = 1"])
def test_deep_toml_is_refused(text: str) -> None:
    with pytest.raises(RecordError, match="nested"):
        parse_toml(text, "a.toml")


def test_levels_that_are_read() -> None:
    text = "[" * 60 + "]" * 60
    value: Any = parse_json(text, "a.json")
    for _ in range(59):
        (value,) = value
    assert value == []


def test_a_long_chain_of_recipes_is_followed(tmp_path: Path) -> None:
    (tmp_path / "0.toml").write_text("[budget]\nsteps = 4\n[train]\nbatch = 4\n")
    for number in range(1, 1500):
        (tmp_path / f"{number}.toml").write_text(f'extends = "{number - 1}.toml"\n[run]\nseed = {number}\n')
    made = recipe_file.load(tmp_path / "1499.toml")
    assert (made.run.seed, made.budget.steps) == (1499, 4)


@pytest.mark.parametrize("base", ["a\\u0000b", "x" * 5000, "x" * 300])
def test_a_base_that_no_path_can_be(base: str, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(f'extends = "{base}"\n')
    with pytest.raises(UserError, match="extends"):
        recipe_file.load(tmp_path / "a.toml")


@pytest.mark.parametrize("value", ["[" * 3000, "{a=" * 500, "0x" + "f" * 9000, "9" * 9000])
def test_a_setting_that_cannot_be_parsed(value: str, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("[budget]\nsteps = 4\n[train]\nbatch = 4\n")
    with pytest.raises(RecipeError, match=r"train\.batch") as caught:
        recipe_file.load(tmp_path / "a.toml", [f"train.batch={value}"])
    assert len(str(caught.value)) < 1000


def test_a_path_is_shown_on_one_short_line() -> None:
    assert shown_path("a\x1b[31m\n") == r"a\x1b[31m\n"
    assert len(shown_path("x" * 9000)) < 250


GROUP = {"WORLD_SIZE": "4", "RANK": "3", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500", "LOCAL_RANK": "1"}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name, value in GROUP.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def test_the_environment_of_a_group(environment: pytest.MonkeyPatch) -> None:
    assert launched() == Launched(4, 3, 1)
    environment.delenv("LOCAL_RANK")
    assert launched() == Launched(4, 3, None)
    environment.setenv("WORLD_SIZE", "1")
    assert launched() == Launched(1, 0, None)
    environment.delenv("WORLD_SIZE")
    assert launched() == Launched(1, 0, None)


@pytest.mark.parametrize("name", ["WORLD_SIZE", "RANK", "MASTER_PORT", "LOCAL_RANK"])
@pytest.mark.parametrize("value", ["abc", "", "-1", "1.5", " 1", "99999999999999", "9" * 5000, "٣"])
def test_a_variable_that_is_no_number_is_named(name: str, value: str, environment: pytest.MonkeyPatch) -> None:
    environment.setenv(name, value)
    with pytest.raises(UserError, match=f"{name}=.* must be a whole number from"):
        launched()


@pytest.mark.parametrize("name", ["RANK", "MASTER_ADDR", "MASTER_PORT"])
def test_a_variable_that_is_missing_is_named(name: str, environment: pytest.MonkeyPatch) -> None:
    environment.delenv(name)
    with pytest.raises(UserError, match=f"WORLD_SIZE=4 in the environment, but no {name}; start"):
        launched()


BOM = b"\xef\xbb\xbf"


def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path: Path) -> None:
    """Editors put it before recipes, tables and records."""
    base, recipe = tmp_path / "base.toml", tmp_path / "a.toml"
    base.write_bytes(BOM + b"[budget]\nsteps = 9\n")
    recipe.write_bytes(BOM + b'extends = "base.toml"\n[run]\nname = "a"\n[train]\nbatch = 4\n')
    loaded = recipe_file.load(recipe)
    assert (loaded.run.name, loaded.budget.steps) == ("a", 9)
    plan = tmp_path / "plan.json"
    Plan(binding="steps", steps=9).write(plan)
    plan.write_bytes(BOM + plan.read_bytes())
    assert Plan.read(plan).steps == 9
    rows = [(1e6 * i, 2e8 * i * i, 4 - 0.1 * i) for i in range(1, 8)]
    table, lines = tmp_path / "a.csv", tmp_path / "a.jsonl"
    table.write_bytes(BOM + "\n".join(["n,d,l", *(",".join(map(str, row)) for row in rows)]).encode())
    lines.write_bytes(BOM + "\n".join(json.dumps(dict(zip("ndl", row))) for row in rows).encode())
    for path in (table, lines):
        assert read_points(path, params="n", tokens="d", loss="l")[0].params.tolist() == [row[0] for row in rows]
    text = tmp_path / "a.txt"
    text.write_bytes(BOM + b"one\ntwo\n")
    assert list(texts(open_corpus(SourceSpec(f"text:{text}")))) == ["one", "two"]


def test_a_name_that_is_there_twice_is_refused() -> None:
    with pytest.raises(RecordError, match=r'a\.json: the field "loss" is there 2 times'):
        parse_json('{"best": {"step": 1, "loss": 2, "loss": 3}}', "a.json")
