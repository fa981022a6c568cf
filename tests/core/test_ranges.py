"""Every field of a recipe has a range, or a length and no control characters."""

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest

from shoestring.core import recipe_file
from shoestring.core.errors import RecipeError
from shoestring.core.recipe import Recipe
from shoestring.core.schema import Between, Each, Registered, Text, decode_value, hints
from shoestring.core.specs import Spec, StepsSpec
from shoestring.core.text import control_in, one_line, printable


def fields() -> Iterator[tuple[str, Any, list[Any], list[Any]]]:
    """(name, annotated type, choices, limits) of every field."""
    for section, kind in hints(Recipe).items():
        table = kind if isinstance(kind, type) else get_args(kind)[0]
        for field in dataclasses.fields(table):
            annotated = hints(table)[field.name]
            assert get_origin(annotated) is Annotated
            inner, *limits = get_args(annotated)
            choices = [inner] if get_origin(inner) or isinstance(inner, type) else list(get_args(inner))
            if type(None) in get_args(inner):
                choices = [choice for choice in get_args(inner) if choice is not type(None)]
            yield f"{section}.{field.name}", annotated, choices, limits


FIELDS = list(fields())


def problem(kind: Any, value: Any) -> str | None:
    found: list[str] = []
    decode_value(kind, value, "field", found)
    return found[0] if found else None


@pytest.mark.parametrize(("name", "kind", "choices", "limits"), FIELDS, ids=[field[0] for field in FIELDS])
def test_every_field_has_a_range(name: str, kind: Any, choices: list[Any], limits: list[Any]) -> None:
    between = next((limit for limit in limits if isinstance(limit, Between)), None)
    for choice in choices:
        if choice is bool or get_origin(choice) is Literal or (isinstance(choice, type) and issubclass(choice, Spec)):
            continue
        if isinstance(choice, type) and issubclass(choice, str):
            assert any(isinstance(limit, (Text, Registered)) for limit in limits), name
        elif get_origin(choice) in (dict, tuple):
            items = get_args(choice)[-1 if get_origin(choice) is dict else 0]
            specs = isinstance(items, type) and issubclass(items, Spec)
            assert specs or any(isinstance(limit, Each) for limit in limits), name
        else:
            assert between is not None and math.isfinite(between.low) and math.isfinite(between.high), name
            for wrong in (math.nan, math.inf, -math.inf, -1, 1e308, 10**5000):
                line = problem(kind, wrong)
                assert line is not None and line.startswith("field = ") and len(line) < 400, (name, wrong)


TEXTS = [
    (name, kind)
    for name, kind, choices, _ in FIELDS
    if any(isinstance(choice, type) and issubclass(choice, str) for choice in choices)
]


@pytest.mark.parametrize(("name", "kind"), TEXTS, ids=[name for name, _ in TEXTS])
def test_no_text_of_a_recipe_has_control_characters(name: str, kind: Any) -> None:
    """ESC begins a command of a terminal; a newline in a name ends a comment of a script."""
    for text in ("a\x1b[31m", "text:a\x1b", "\x9b1m", "text:\ud800", "a\u202eb", "x" * 2_000_000):
        line = problem(kind, text)
        assert line is not None and line.startswith("field = ") and len(line) < 400, (name, text[:20])
        assert control_in(line) is None
    if name not in ("data.end",):
        assert problem(kind, "text:a\nb") is not None


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("data.tokenizer=words:1000000000000", "N must be at most 2,147,483,648"),
        (f"data.tokenizer=words:{'9' * 4000}", "N must be at most 2,147,483,648"),
        ("model.width=1_000_000_000_000", "model.width = 1000000000000: must be at least 1 and at most 1,000,000,000"),
        ("data.length=1_000_000_000_000", "data.length = 1000000000000: must be at least 1 and at most 1,000,000,000"),
        ("train.batch=1_000_000_000_000", "train.batch = 1000000000000: must be at least 1 and at most 10,000,000"),
        ("budget.steps=1e30", "budget.steps = 1e+30: must be at least 1 and at most 1,000,000,000,000"),
        ("evaluate.every=1e-12", "evaluate.every = 1e-12: must be at least 1e-06 and at most 1"),
        ("data.heldout=1e-300", "data.heldout = 1e-300: must be at least 1e-06 and at most 0.5, or 0"),
        ("budget.time=1e300d", "budget.time = \"1e300d\": must be at least 0.001s and at most 36500d"),
        ("budget.memory=1e30B", "budget.memory = \"1e30B\": must be at least 1B and at most 1000PB"),
        ("train.save_steps=1000000,1000001,...", "its steps up to 1,000,000,000,000 are more than 100,000"),
        (f"train.save_steps={'9' * 5000}", "a step must be at most 1,000,000,000,000"),
        (f"model.rotary_scaling=linear:{'9' * 500}", "its numbers must be at most 1,000,000,000, and one is inf"),
        ('run.name="a\\nb"', 'run.name = "a\\nb": must have no control characters, and has \\n'),
        ('run.folder="a\\u001b[31m"', 'run.folder = "a\\x1b[31m": must have no control characters, and has \\x1b'),
        (f'run.name={"x" * 256}', "must have at most 255 bytes, and has 256"),
        (f'run.folder={"x" * 5000}', "must have at most 4,096 bytes, and has 5,000"),
    ],
)  # fmt: skip
def test_the_line_names_the_field_and_its_range(tmp_path: Path, setting: str, line: str) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("[budget]\nsteps = 10\n[train]\nbatch = 4\n")
    with pytest.raises(RecipeError) as refused:
        recipe_file.load(recipe, [setting])
    (only,) = refused.value.problems
    assert line in only and only.startswith(setting.partition("=")[0])


@pytest.mark.parametrize("text", ["1,2,4,...", "1,10,100", "1, 2, 4, …", "100,101,..."])
def test_steps_are_listed_as_before(text: str) -> None:
    spec = StepsSpec.parse(text)
    listed = spec.up_to(10_000)
    assert listed == sorted(set(listed)) and listed[-1] <= 10_000 and listed[: len(spec.given)] == spec.given
    assert spec.up_to(0) == []


def test_a_number_of_thousands_of_digits_is_refused_as_a_value() -> None:
    with pytest.raises(RecipeError, match=r"train\.batch = a number of thousands of digits: must be a whole number"):
        recipe_file.replaced(Recipe(), {"train.batch": 10**5000, "budget.steps": 10})


def test_control_characters_are_shown_as_escapes() -> None:
    text = "a\x1b[2Jb\x9b\r\n\tc\ud800\u202e[red]"
    assert printable(text) == "a\\x1b[2Jb\\x9b\\r\n\tc\\ud800\\u202e[red]"
    assert one_line(text) == "a\\x1b[2Jb\\x9b\\r\\n\\tc\\ud800\\u202e[red]"
    assert one_line("x" * 1000, 5) == "xxxxx…"
    assert (control_in("plain ünï 🚀"), control_in("a\tb"), control_in("a\tb", "\t")) == (None, "\\t", None)
