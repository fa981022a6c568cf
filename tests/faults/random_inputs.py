"""Random inputs: values for the fields of a recipe and the options of commands, names, files, variables.

Some are fine, most are not; a command must refuse them or accept them, and never fail.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import click
from cases import (
    CHOICE,
    COLUMN,
    FILES,
    FLAG,
    GROUP,
    JOB,
    NAMES,
    NEW_FILE,
    NEW_FOLDER,
    NUMBER,
    PAGE,
    QUANTITY,
    Case,
    arguments_with,
    commands,
    kind_of,
    on_each,
    plain_types,
)
from hypothesis import strategies as st

from shoestring.core.recipe import Recipe
from shoestring.core.schema import hints
from shoestring.core.units import Bytes, Count, Flops, Seconds

UNITS = ("", "s", "m", "h", "d", "ms", "B", "kB", "GB", "TiB", "k", "K", "M", "T", "Ki", "FLOP", "P", "Z", "x", "%")
WORDS = ("", "nan", "inf", "-inf", "true", "none", "auto", "best", "last", "all", "0/1", "1/0", "a=b", "--", "-", "..")
CHARACTERS = st.characters(exclude_characters="\0", codec=None)
"""Any but NUL, which no argument and no variable can hold: halves of pairs too."""
TEXTS = st.text(CHARACTERS, max_size=40)
INTEGERS = st.one_of(
    st.integers(-4, 70),
    st.sampled_from([2**k + d for k in (7, 15, 20, 31, 32, 53, 62, 63, 64, 128, 1100) for d in (-1, 0, 1)]),
    st.integers(-(10**40), 10**40),
)
FLOATS = st.one_of(st.floats(), st.floats(0, 2), st.sampled_from([1e-308, 5e-324, 1e-40, 1e39, 1e40, 1.8e308]))
NUMBERS = st.one_of(INTEGERS.map(str), FLOATS.map(repr))
QUANTITIES = st.tuples(NUMBERS, st.sampled_from(UNITS)).map("".join)
INTERVALS = st.lists(QUANTITIES, min_size=2, max_size=4).map("..".join)
SIZES = st.tuples(INTEGERS, INTEGERS).map(lambda pair: f"{pair[0]}x{pair[1]}")
VALUES = st.one_of(NUMBERS, QUANTITIES, INTERVALS, SIZES, st.sampled_from(WORDS), TEXTS)
"""For any option."""


def _escaped(text: str) -> str:
    """The text in quotes, as TOML writes it; a half of a pair is written as it cannot be, which must be refused."""
    return '"' + "".join(_escaped_character(one) for one in text) + '"'


def _escaped_character(one: str) -> str:
    code = ord(one)
    plain = 0x20 <= code < 0x7F and one not in '"\\'
    return one if plain else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


TOML_PLAIN = st.one_of(
    INTEGERS.map(str),
    FLOATS.map(repr),
    st.booleans().map(lambda value: str(value).lower()),
    st.text(max_size=30).map(_escaped),
    st.datetimes().map(lambda value: value.isoformat()),
    VALUES,  # as a shell gives it, without quotes
)
TOML = st.recursive(
    TOML_PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        st.dictionaries(st.text("abc", min_size=1, max_size=3), inner, max_size=3).map(
            lambda items: "{" + ", ".join(f"{name} = {value}" for name, value in items.items()) + "}"
        ),
    ),
    max_leaves=4,
)
"""A value of a recipe in TOML, of any type, and often none."""


SPECS = (
    "words", "words:0", "words:1", "words:60", "bytes", "file:subwords.json", "file:absent", "hf:", "text:corpus.txt",
    "jsonl:corpus.jsonl", "csv:corpus.csv", "parquet:corpus.parquet", "paragraphs:corpus.txt", "text:*.txt", "text:.",
    "store:store", "store:runs", "text:/dev/zero", "text:[", "text:**", "stories", "markov:12", "markov:0",
    "hmm:runs/hmm", "hmm:runs/net", "linear:2", "llama3:8:1:4:8192", "random", "every:3", "none", "x.py:y", "fp16",
    "corpus.txt:y", "muon", "sgd", "masked_lm", "gpt2", "perceiver_ar", "hf", "cosine", "~", "~nobody/x", "runs/net",
    "$HOME", "concat", "best_fit", "adamw",
)  # fmt: skip
"""Texts that mean something in one field or another."""
SPEC_LIKE = st.tuples(st.sampled_from(["words", "text", "markov", "hmm", "linear", "file", "every"]), VALUES).map(
    ":".join
)


def fields() -> list[tuple[str, Any]]:
    """The path and the type of every field of a recipe."""
    found = []
    for section, kind in hints(Recipe).items():
        section_type = next(part for part in (kind, *get_args(kind)) if dataclasses.is_dataclass(part))
        found += [(f"{section}.{name}", of) for name, of in hints(section_type).items()]  # type: ignore[arg-type]
    return found


def _toml_for(kind: Any) -> st.SearchStrategy[str]:
    """Values that are mostly of the type of a field."""
    plain = plain_types(kind)
    of: list[st.SearchStrategy[str]] = [TOML]
    if plain & {int, Count}:
        of += [INTEGERS.map(str)] * 2
    if float in plain:
        of += [FLOATS.map(repr)] * 2
    if plain & {Count, Flops, Seconds, Bytes}:
        of += [QUANTITIES.map(_escaped)] * 2
    if bool in plain:
        of += [st.sampled_from(["true", "false"])]
    if str in plain:
        of += [st.text(max_size=30).map(_escaped), st.sampled_from(SPECS).map(_escaped), SPEC_LIKE.map(_escaped)]
    return st.one_of(of)


def fields_set() -> st.SearchStrategy[tuple[str, str]]:
    """A field of a recipe, and a value."""
    return st.sampled_from(fields()).flatmap(lambda field: st.tuples(st.just(field[0]), _toml_for(field[1])))


def _options() -> list[tuple[str, click.Parameter]]:
    """Every option and argument that takes a value; those that name a place to write to are left out."""
    return [
        (command, parameter)
        for command, found in commands().items()
        for parameter in found.params
        if kind_of(command, parameter) not in (FLAG, NEW_FILE, NEW_FOLDER, PAGE)
    ]


def option_cases() -> st.SearchStrategy[Case]:
    """A working call of a command, with any value of one of its arguments."""
    values = {NUMBER: NUMBERS, QUANTITY: st.one_of(QUANTITIES, INTERVALS), CHOICE: VALUES, COLUMN: VALUES}

    def make(option: tuple[str, click.Parameter]) -> st.SearchStrategy[Case]:
        command, parameter = option
        likely = values.get(kind_of(command, parameter) or "", TEXTS)
        return st.one_of(likely, VALUES).map(
            lambda value: Case(
                f"{command}: {parameter.name}", (*command.split(), *arguments_with(command, parameter, value))
            )
        )

    return st.sampled_from(_options()).flatmap(make)


JSON_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), INTEGERS, FLOATS, TEXTS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text("abc", max_size=3), inner, max_size=3)
    ),
    max_leaves=4,
)


def file_cases() -> st.SearchStrategy[Case]:
    """A command that reads a file with random content, or with another value somewhere in its JSON."""
    contents = st.one_of(st.binary(max_size=100), TEXTS.map(lambda text: text.encode(errors="surrogatepass")))
    ways = st.one_of(
        st.tuples(st.just("content"), contents),
        st.tuples(st.just("value"), st.tuples(st.integers(0, 10**6), JSON_VALUES)),
        st.tuples(st.just("bytes"), st.tuples(st.integers(0, 10**6), contents)),
    )
    lines = [(what, path, line) for what, path, _, several in FILES for line in several]
    return st.builds(_file_case, st.sampled_from(lines), ways)


def _file_case(read: tuple[str, str, str], way: tuple[str, Any]) -> Case:
    what, path, line = read
    kind, value = way
    shown = NAMES.get(what, Path(path).name)

    def spoil(file: Path) -> None:
        content = file.read_bytes()
        if kind == "content":
            content = value
        elif kind == "bytes" or not file.name.endswith(("json", "jsonl", "DONE")):
            place, new = (value[0], value[1]) if kind == "bytes" else (value[0], json.dumps(value[1]).encode())
            at = place % (len(content) + 1)
            content = content[:at] + new + content[at + len(new) :]
        else:
            content = _with_value(content.decode(), *value).encode(errors="surrogatepass")
        file.write_bytes(content)
        for seal in (file.parent / "seal.json", file.parent.parent / "seal.json"):
            seal.unlink(missing_ok=True)  # which finds every change

    return Case(
        f"{what}: {kind}: {line[:24]}",
        tuple(line.split()),
        (f"{shown}|{Path(path).parent.name or path}|stores/",),
        on_each(path, spoil),
    )


def _with_value(text: str, place: int, value: Any) -> str:
    """JSON, or lines of it, with another value in one place."""
    lines = text.splitlines()
    if len(lines) > 1 and lines[0].startswith("{") and lines[0].endswith("}"):
        at = place % len(lines)
        return "\n".join([*lines[:at], _with_value(lines[at], place // len(lines), value), *lines[at + 1 :]]) + "\n"
    whole = json.loads(text)
    places = list(_places(whole))
    if not places:
        return json.dumps(value)
    inside, name = places[place % len(places)]
    inside[name] = value
    return json.dumps(whole)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a value in tables and lists: what holds it, and its name or number there."""
    if isinstance(value, (dict, list)):
        for name in value if isinstance(value, dict) else range(len(value)):
            yield value, name
            yield from _places(value[name])


def environment_cases() -> st.SearchStrategy[Case]:
    """Training with a random value of a variable that torchrun or Slurm sets."""
    lines = [("train", "new.toml"), ("hmm", "fit", "hmm.toml"), ("hmm", "fit", "hmm.toml", "--over", "hmm.states=2,3")]
    values = st.one_of(INTEGERS.map(str), FLOATS.map(repr), VALUES, TEXTS.map(lambda text: f"1\n{text}"))

    def make(line: tuple[str, ...], name: str, value: str) -> Case:
        set_by = {"WORLD_SIZE": "2", **GROUP} if name in GROUP else JOB
        others = "|torchrun" if name in GROUP else "|SLURM_JOB_END_TIME"
        return Case(f"{name}: {line[0]}", line, (name + others,), environment=set_by | {name: _encodable(value)})

    return st.builds(make, st.sampled_from(lines), st.sampled_from([*GROUP, *JOB]), values)


def _encodable(text: str) -> str:
    """A text that can be a variable: only bytes of the system may be halves of pairs."""
    return "".join(one for one in text if not 0xD800 <= ord(one) <= 0xDFFF or 0xDC80 <= ord(one) <= 0xDCFF)


def text_cases() -> st.SearchStrategy[Case]:
    """A corpus that is prepared with random settings of how it is read."""
    found = [(field, kind) for field, kind in fields() if field in READING]
    values = st.sampled_from(found).flatmap(lambda field: st.tuples(st.just(field[0]), _toml_for(field[1])))
    sources = st.sampled_from(["text:corpus.txt", "jsonl:corpus.jsonl", "csv:corpus.csv", "parquet:corpus.parquet"])

    def make(source: str, setting: tuple[str, str]) -> Case:
        field, value = setting
        section, _, name = field.partition(".")
        named = value.strip('"').partition(":")[2] or value
        arguments = ("prepare", "new.toml", "--set", f"data.source={source}", "--set", f"{field}={value}")
        return Case(f"{source}: {field}", arguments, (f"{field}|{name}|--set|{named}|{section}:|corpus",))

    return st.builds(make, sources, values)


READING = frozenset(
    f"data.{name}"
    for name in (
        "source", "column", "delimiter", "end_line", "split", "streaming", "on_error", "unique", "tokenizer", "end",
        "length", "packing", "document_mask", "random_offset", "masked", "whole_words", "label", "documents", "heldout",
        "validation", "folder",
    )
)  # fmt: skip


def name_cases() -> st.SearchStrategy[Case]:
    """A run or a path of any name."""
    lines = st.sampled_from([("train", "new.toml"), ("prepare", "new.toml"), ("plan", "new.toml")])
    fields_of_names = st.sampled_from(["run.name", "run.folder", "data.folder", "data.column", "model.init"])
    texts = st.one_of(TEXTS, st.text(st.sampled_from("./~ ab\\\"'$`\n%*?[]{}"), max_size=8))
    return st.builds(
        lambda line, field, text: Case(
            f"{line[0]}: {field}", (*line, "--set", f"{field}={_escaped(text)}"), (f"{field}|/|--set",)
        ),
        lines, fields_of_names, texts,
    )  # fmt: skip
