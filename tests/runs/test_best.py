"""`shoestring best`: from a text and a deadline to a recipe with a reason for every field."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from shoestring.cli import running
from shoestring.cli.root import root
from shoestring.core.errors import DataError, RecipeError, ShoestringError, UserError
from shoestring.core.recipe import Recipe
from shoestring.core.recipe_file import load
from shoestring.runs import counted
from shoestring.runs.best import (
    SWIFT_MEASURED,
    SWIFT_PARTS,
    best_tokenizer,
    recipe_of,
    text_of,
    values_for,
    with_given,
)
from shoestring.runs.look_at import Corpus, look_at

STORY = "Tom had a red ball. He ran to the park with it.\n"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(counted, "product_flops", lambda *_: 1e10)


def source_of(text: str) -> dict[str, Any]:
    return {name: value for name, (value, _) in look_at(text).fields.items()}


def test_a_text_is_known_by_its_name_and_what_is_in_it() -> None:
    Path("lines.txt").write_text(STORY * 50)
    Path("blank.txt").write_text((STORY + "\n") * 50)
    Path("ends.txt.gz").write_bytes(gzip.compress((STORY * 3 + "<|endoftext|>\n").encode() * 20))
    Path("a.jsonl").write_text('{"text": "a"}\n')
    Path("notes").write_text(STORY * 3)
    Path("a.json").write_text('{"text": "a"}\n' * 2)
    assert source_of("a.json") == {"source": "jsonl:a.json"}
    assert source_of("lines.txt") == {"source": "text:lines.txt"}
    assert source_of("blank.txt") == {"source": "paragraphs:blank.txt"}
    assert source_of("ends.txt.gz") == {"source": "text:ends.txt.gz", "end_line": "<|endoftext|>"}
    assert source_of("a.jsonl") == {"source": "jsonl:a.jsonl"}
    assert source_of("notes") == {"source": "text:notes"}
    assert source_of("roneneldan/TinyStories") == {"source": "hf:roneneldan/TinyStories"}
    assert source_of("hf:wikitext:a") == {"source": "hf:wikitext:a"}


def test_a_folder_is_read_in_the_format_of_most_files() -> None:
    Path("many").mkdir()
    for number in range(3):
        Path(f"many/{number}.jsonl").write_text('{"text": "a"}\n' * 100)
    Path("many/readme.txt").write_text("about")
    assert source_of("many") == {"source": "jsonl:many"}
    assert look_at("many").bytes == 3 * 100 * len('{"text": "a"}\n')
    Path("none").mkdir()
    with pytest.raises(UserError, match=r"no file in this folder ends in \.txt"):
        look_at("none")


def test_a_folder_tells_what_is_left_out() -> None:
    """The format of the most bytes is read, not that of the most files."""
    Path("mix").mkdir()
    Path("mix/a.txt").write_text(STORY * 100)
    for number in range(3):
        Path(f"mix/{number}.jsonl").write_text('{"text": "a"}\n')
    Path("mix/picture.png").write_bytes(b"\x89PNG")
    assert source_of("mix") == {"source": "text:mix"}
    assert look_at("mix").said == ("mix: 1 file read, .txt; left out: 3 .jsonl, 1 .png",)


def test_hidden_files_are_no_part_of_a_folder() -> None:
    """A folder of a version control, or what a Mac leaves beside a file."""
    Path("folder/.git").mkdir(parents=True)
    Path("folder/.git/a.txt").write_text(STORY * 9)
    Path("folder/._b.txt").write_bytes(b"\0\5\x16\7" * 99)
    Path("folder/b.txt").write_text((STORY + "\n") * 9)
    assert source_of("folder") == {"source": "paragraphs:folder"}
    assert look_at("folder").bytes == 9 * (len(STORY) + 1) and look_at("folder").said == ()


@pytest.mark.parametrize("name", ["a.txt.gz", "a.txt.bz2", "a.txt.xz", "a.jsonl.gz", "a.csv.gz", "a.csv.xz"])
@pytest.mark.parametrize("damage", ["plain", "cut", "turned"])
def test_a_damaged_file_is_named(name: str, damage: str) -> None:
    packs = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
    packed = packs[Path(name).suffix]("".join(f"{number}, {STORY}" for number in range(999)).encode())
    middle = len(packed) // 2
    turned = packed[:middle] + bytes(255 - byte for byte in packed[middle : middle + 99]) + packed[middle + 99 :]
    Path(name).write_bytes({"plain": STORY.encode() * 9, "cut": packed[:-40], "turned": turned}[damage])
    result = CliRunner().invoke(root, ["best", name, "--time", "20s"])
    assert isinstance(result.exception, UserError), result.exception
    assert name in str(result.exception) and not list(Path().glob("*.toml"))


@pytest.mark.parametrize("end", ["\r", "\x0c", "\u2028"])
def test_lines_end_as_they_do_for_whoever_reads_them(end: str) -> None:
    Path("a.txt").write_bytes((STORY.strip() + end).encode() * 500)
    with pytest.raises(UserError, match=r"a\.txt: it has 1 line"):
        look_at("a.txt")
    Path("a.txt").write_text(STORY.strip() * 9000 + "\n" + STORY * 5000)
    assert source_of("a.txt") == {"source": "text:a.txt"}, "a line that is longer than what is looked at"


def test_what_was_not_trained_leaves_no_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text with a mistake is mended, and the same command, or one with another time, begins anew."""

    def fail(*_: object, **__: object) -> None:
        raise DataError("a.txt: line 3 is no text")

    Path("a.txt").write_text(STORY * 5000)
    monkeypatch.setattr(counted, "product_flops", lambda *_: 1e8)
    monkeypatch.setattr(running, "run_in_terminal", fail)
    result = CliRunner().invoke(root, ["best", "a.txt", "--time", "1m"])
    assert "line 3" in str(result.exception) and not Path("best-a.toml").exists()
    result = CliRunner().invoke(root, ["best", "a.txt", "--time", "1m", "--set", "budget.time=2m"])
    assert str(result.exception) == "--set budget.time: give the time as --time"


def test_a_recipe_whose_every_field_is_given_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Recipe] = []
    Path("a.txt").write_text(STORY * 5000)
    monkeypatch.setattr(running, "run_in_terminal", lambda recipe, *_, **__: found.append(recipe))
    given = {"model.width": 32, "model.layers": 2, "model.heads": 1, "model.dropout": 0, "model.pairs": 0}
    given |= {"budget.epochs": 2, "train.batch": 4, "train.lr": 0.01, "train.warmup": 0.05}
    given |= {"train.weight_decay": 0.1, "train.beta2": 0.95, "train.cooldown": 0.5}
    sets = [f"--set={field}={value}" for field, value in given.items()]
    CliRunner().invoke(root, ["best", "a.txt", "--time", "1m", *sets], catch_exceptions=False)
    assert found and not found[0].autos and load("best-a.toml") == found[0]


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("one.txt", "a " * 5000, r"one\.txt: it has 1 line, about 10 kB; .* break it into more lines"),
        ("a.json", '[{"text": "a"}, {"text": "b"}]', r"a\.json: write one record of JSON per line"),
        ("a.json", '{\n "text": "a"\n}', r"a\.json: write one record of JSON per line"),
        ("a.csv", f'"{STORY * 2}"\n"{STORY * 3}"\n', r"a\.csv: its first line is no header"),
    ],
)
def test_a_text_that_could_not_be_trained_on_is_refused_at_once(name: str, content: str, line: str) -> None:
    Path(name).write_text(content)
    with pytest.raises(UserError, match=line):
        look_at(name)


def test_the_text_of_a_table_is_its_column_of_the_longest_texts() -> None:
    records = [{"id": str(i), "title": "A", "story": STORY.strip()} for i in range(9)]
    Path("a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    Path("b.csv").write_text("id;title;story\n" + "".join(";".join(record.values()) + "\n" for record in records))
    Path("c.csv").write_text("text,story\n" + f"a,{STORY}" * 9)
    assert source_of("a.jsonl") == {"source": "jsonl:a.jsonl", "column": "story"}
    assert source_of("b.csv") == {"source": "csv:b.csv", "delimiter": ";", "column": "story"}
    assert source_of("c.csv") == {"source": "csv:c.csv"}, "a column that is called so"
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(records), "d.parquet")
    assert source_of("d.parquet") == {"source": "parquet:d.parquet", "column": "story"}
    parquet.write_table(pyarrow.table({"story": pyarrow.array([], pyarrow.string())}), "f.parquet")
    assert source_of("f.parquet") == {"source": "parquet:f.parquet"}, "an empty one"
    Path("e.jsonl").write_text("no JSON\n")
    assert source_of("e.jsonl") == {"source": "jsonl:e.jsonl"}, "left to the reader, who says what is wrong"


@pytest.mark.parametrize("text", ["", "absent.txt", "nope:x", "a b", "x" * 5000])
def test_what_is_no_text_is_one_line(text: str) -> None:
    result = CliRunner().invoke(root, ["best", "--time", "1m", "--", text])
    assert isinstance(result.exception, ShoestringError) and "\n" not in str(result.exception)
    assert not list(Path().glob("*.toml"))


def test_rows_are_shortened_where_there_is_little_text_and_too_little_is_refused() -> None:
    lengths = []
    for size in (10**6, 10**5, 10**4):
        Path("a.txt").write_bytes((STORY.encode() * 10**5)[:size])
        lengths.append(values_for(look_at("a.txt"), 60.0, "cpu", None)["data"]["length"][0])
    assert lengths == [128, 128, 32]
    Path("a.txt").write_text("a\n" * 100)
    with pytest.raises(UserError, match="too little to train on"):
        values_for(look_at("a.txt"), 60.0, "cpu", None)


def test_every_field_of_the_recipe_has_a_reason_above_it_and_it_is_read_back() -> None:
    Path("a.txt").write_text(STORY * 5000)
    values = values_for(look_at("a.txt"), 90.0, "cpu", "mine")
    text = text_of(values, "shoestring best a.txt --time 90s")
    Path("mine.toml").write_text(text)
    assert load("mine.toml") == recipe_of(values)


def test_a_swift_is_trained_where_it_was_measured_to_win() -> None:
    Path("a.txt").write_text(STORY * 5000)
    for device in ("cpu", "cuda"):
        values = values_for(look_at("a.txt"), 90.0, device, None)
        model = recipe_of(values).model
        assert (model.family, model.tied, model.parts) == ("swift", False, SWIFT_PARTS[device])
        assert SWIFT_MEASURED[device] in values["model"]["family"][1]


def test_the_command_writes_a_recipe_of_numbers_and_follows_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: list[Recipe] = []
    monkeypatch.setattr(running, "run_in_terminal", lambda recipe, *_, **__: ran.append(recipe))
    Path("a.txt").write_text(STORY * 5000)
    assert CliRunner().invoke(root, ["best", "a.txt", "--time", "10m"]).exit_code == 0
    lines = Path("best-a.toml").read_text().splitlines()
    assert "auto" not in "".join(line for line in lines if not line.startswith("#")) and not ran[0].autos
    fields = [number for number, line in enumerate(lines) if " = " in line and not line.startswith("#")]
    assert fields and all(lines[number - 1].startswith("# ") for number in fields)
    Path("best-a.toml").write_text("\n".join(lines).replace("dropout = ", "dropout = 0.25  # ") + "\n")
    assert CliRunner().invoke(root, ["best", "a.txt", "--time", "10m"]).exit_code == 0
    assert ran[1].model.dropout == 0.25, "an edited recipe is followed as it is"


@pytest.mark.parametrize(
    ("size", "device", "tokenizer"),
    [(2e4, "cpu", "bytes"), (6e4, "cpu", "bpe:512"), (7.4e6, "cpu", "bpe:2048"), (7.4e6, "cuda", "bpe:2048"),
     (1e9, "cpu", "bpe:4096"), (1e9, "cuda", "bpe:32768"), (None, "cuda", "bpe:4096")],
)  # fmt: skip
def test_pieces_are_as_many_as_the_root_of_the_text(size: float | None, device: str, tokenizer: str) -> None:
    found, reason = best_tokenizer(size, device)
    assert found == tokenizer and reason


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_another_family_has_its_own_fields(family: str) -> None:
    corpus = Corpus("x", {"source": ("stories", "")}, 1e7)
    values = with_given(values_for(corpus, 60.0, "cpu", None), [f"model.family={family}"])
    assert recipe_of(values).model.family == family and "parts" not in values["model"]
    given = with_given(values, ["model.parts=gains"])
    with pytest.raises(RecipeError, match="it is for swift"):
        recipe_of(given)


def test_words_of_little_text_are_copied_and_rows_move() -> None:
    corpus = Corpus("x", {"source": ("stories", "")}, 1e7)
    for tokenizer, device, moved, tied, length in (
        ("words:9000", "cuda", True, True, 512), ("words:9000", "cpu", True, False, 128),
        ("bpe:512", "cuda", False, False, 256), ("bytes", "cuda", False, False, 512),
    ):  # fmt: skip
        recipe = recipe_of(values_for(corpus, 60.0, device, None, tokenizer))
        found = (recipe.data.random_offset, recipe.model.tied, recipe.data.length)
        assert found == (moved, tied, length), (tokenizer, device)
    assert recipe_of(values_for(Corpus("x", corpus.fields, 5e4), 60.0, "cpu", None)).data.random_offset


def test_a_tokenizer_that_is_given_is_kept() -> None:
    Path("a.txt").write_text(STORY * 50000)
    data = values_for(look_at("a.txt"), 90.0, "cuda", None, "bytes")["data"]
    assert (data["tokenizer"], data["length"][0]) == (("bytes", "as given"), 512)
