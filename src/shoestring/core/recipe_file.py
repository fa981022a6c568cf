"""A recipe as TOML: reading a file, applying overrides, and writing it.

`load` reads a file, follows `extends`, applies `--set section.field=value`, and either returns a whole `Recipe` or
raises one `RecipeError` that lists every problem. `dump` writes the resolved recipe; reading that gives an equal value.
"""

from __future__ import annotations

import datetime
import functools
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoestring.core.errors import RecipeError, UserError, closest, nearest
from shoestring.core.left_open import left_open
from shoestring.core.reading import check_depth, parse_toml, read_text, reading
from shoestring.core.recipe import CODE, Recipe
from shoestring.core.schema import Problem, decode, decode_value, encode, show
from shoestring.core.specs import is_code
from shoestring.core.sweep import Sweep
from shoestring.core.validation import problems as validation_problems


def load(path: str | Path, overrides: Iterable[str] = (), values: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe in `path`, with `section.field=value` overrides as text, or as values by "section.field".

    Raises RecipeError with every problem.
    """
    return read_base(path, overrides).with_values(values or {})


@dataclass(frozen=True)
class Base:
    """The plain values of a recipe, from which recipes with other values are made."""

    where: str
    tables: dict[str, Any]
    problems: tuple[str, ...] = ()

    def with_values(self, values: Mapping[str, Any]) -> Recipe:
        """The recipe with other values, by "section.field"; what it leaves open then may be "auto"."""
        tables = {section: dict(table) if isinstance(table, dict) else table for section, table in self.tables.items()}
        problems = list(self.problems)
        _put_all(tables, values, problems)
        _put_all(tables, left_open(tables), problems)
        return build(tables, self.where, problems)


def read_base(path: str | Path, overrides: Iterable[str] = ()) -> Base:
    """The values of the recipe in `path`; a problem of an override is told with those of the recipe."""
    problems: list[str] = []
    tables = _read(Path(path), problems)
    for text in overrides:
        _override(tables, text, problems)
    return Base(str(path), tables, tuple(problems))


def split_sweep(base: Base) -> tuple[Base, Sweep]:
    """A recipe without its `[sweep]` table, and that table; the defaults where it has none."""
    tables, problems = dict(base.tables), list(base.problems)
    sweep: Sweep = decode_value(Sweep, tables.pop(SWEEP, {}), SWEEP, problems)
    if len(problems) > len(base.problems):
        raise RecipeError(base.where, problems)
    return Base(base.where, tables, base.problems), sweep


def replaced(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """The recipe with other values, by "section.field"."""
    tables = {section: fields for section, fields in encode(recipe).items() if fields is not None}
    problems = list[str]()
    _put_all(tables, values, problems)
    return build(tables, "the recipe", problems) if values else recipe


def _put_all(tables: dict[str, Any], values: Mapping[str, Any], problems: list[str]) -> None:
    for field, value in values.items():
        _put(tables, field, value, f"{field} = {show(value)}", problems)


SWEEP = "sweep"
"""The table of a recipe that stands for many runs."""
RECIPE_BYTES = 1 << 20
"""The largest recipe that is read."""
RENAMED = {("data", "within"): "data.document_mask", ("data", "shift"): "data.random_offset"}
"""The present names of fields, by section and former name."""


def load_own(path: Path, copies: Path) -> Recipe:
    """The recipe of a run folder, with the folder's copies of the user's files; one of an older version is refused."""
    values = _read(path, [])
    tables = {section: table for section, table in values.items() if isinstance(table, dict)}
    for section, name in RENAMED:
        if name in tables.get(section, {}):
            old = f"made by an older version of shoestring ({section}.{name}); train the recipe again"
            raise RecipeError(str(path), [old])
    for section, name in CODE:
        text = tables.get(section, {}).get(name)
        if isinstance(text, str) and is_code(text):
            tables[section][name] = str(copies / Path(text).name)
    return build(values, str(path))


def build(values: Mapping[str, Any], where: str, problems: list[str] | None = None) -> Recipe:
    """A recipe from plain values; earlier `problems` are reported together with its own."""
    problems = [] if problems is None else problems
    tables = {section: dict(table) if isinstance(table, dict) else table for section, table in values.items()}
    for (section, name), new in RENAMED.items():
        if isinstance(tables.get(section), dict) and tables[section].pop(name, None) is not None:
            problems.append(Problem(f"{section}.{name}: is now called {new}", new))
    if tables.pop(SWEEP, None) is not None:
        problems.append("sweep: this recipe stands for many runs; plan and run them with: shoestring sweep RECIPE")
    recipe: Recipe = decode(Recipe, tables, "", problems)
    try:
        problems += validation_problems(recipe, {line.field for line in problems if isinstance(line, Problem)})
    except UserError as cause:  # the user's own file cannot be read
        if not problems:
            raise
        problems.append(str(cause))
    if problems:
        raise RecipeError(where, problems)
    return recipe


def _read(path: Path, problems: list[str]) -> dict[str, Any]:
    """The values of a file, merged over those of the files it extends; a wrong base is added to `problems`."""
    over: list[dict[str, Any]] = []
    seen: set[Path] = set()
    while True:
        values = parse_toml(read_text(path, RecipeError, RECIPE_BYTES), path, RecipeError)
        base = values.pop("extends", None)
        over.append(values)
        if base is None:
            break
        if not isinstance(base, str):
            problems.append(f'extends = {show(base)}: must be the path of a recipe, as in extends = "base.toml"')
            break
        with reading(f'{path}: extends = "{base}"', RecipeError):
            seen.add(path.resolve())
            parent = path.parent / base
            if parent.resolve() in seen:
                raise RecipeError(str(path), [f'extends = "{base}": the recipes extend each other in a circle'])
            if not parent.is_file():
                problems.append(f'extends = "{base}": there is no file {parent}')
                break
        path = parent
    return functools.reduce(_merge, reversed(over))


def _merge(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return merged


def _override(values: dict[str, Any], text: str, problems: list[str]) -> None:
    """Set one `section.field=value` in `values`."""
    try:
        field, value = parse_override(text)
    except UserError as cause:
        problems.append(str(cause))
    else:
        _put(values, field, value, f"--set {text}", problems)


def overridden(overrides: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The fields that `section.field=value` set, by section."""
    values: dict[str, Any] = {}
    problems: list[str] = []
    for text in overrides:
        _override(values, text, problems)
    if problems:
        raise RecipeError("the command", problems)
    return values


def parse_override(text: str) -> tuple[str, Any]:
    """The field and the value of `section.field=value`."""
    path, equals, raw = text.partition("=")
    if not equals:
        raise UserError(f"--set {text}: write it as section.field=value, for example --set train.lr=1e-3")
    return path.strip(), value_of(raw)


def value_of(raw: str) -> Any:
    """The value of a field from its text on the command line: TOML, or else plain text; nothing means None."""
    text = raw.strip() or None
    try:
        parsed = tomllib.loads(f"value = {text}")["value"]
        check_depth(parsed)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(parsed, (datetime.date, datetime.time)) else parsed  # 12:00:00 is Slurm's time


def _put(values: dict[str, Any], field: str, value: Any, shown: str, problems: list[str]) -> None:
    """Set the value of "section.field"."""
    section, dot, name = field.partition(".")
    if not (dot and section and name):
        problems.append(f"{shown}: write it as section.field=value, for example --set train.lr=1e-3")
        return
    known = list(Recipe.__dataclass_fields__)
    if section not in known:
        problems.append(
            Problem(
                f"{shown}: unknown section {section!r}; {nearest(section, known)}", closest(section, known) or section
            )
        )
    elif isinstance(table := values.setdefault(section, {}), dict):
        name, _, inner = name.partition(".")
        if inner:
            _put_inner(table, name, inner, value, f"{shown}: {section}.{name}", problems)
        else:
            table[name] = value


def _put_inner(table: dict[str, Any], name: str, inner: str, value: Any, shown: str, problems: list[str]) -> None:
    """Set one entry of a field that is a table, as data.validation.news; None removes it."""
    entries = table.get(name)
    if entries is not None and not isinstance(entries, dict):
        problems.append(f"{shown} is {_toml(entries)}, which has no entries by name; give all of them as a table")
        return
    table[name] = {key: item for key, item in {**(entries or {}), inner: value}.items() if item is not None} or None


def dump(recipe: Recipe) -> str:
    """The recipe as TOML with every field, except those that are None."""
    lines = []
    for section, fields in encode(recipe).items():
        if fields is not None:
            given = {name: value for name, value in fields.items() if value is not None}
            lines += [f"[{section}]", *(f"{name} = {_toml(value)}" for name, value in given.items()), ""]
    return "\n".join(lines)


def dump_over(base: Recipe, recipe: Recipe, extends: str) -> str:
    """The recipe as TOML that extends the file of `base`, with only the fields that differ.

    The whole recipe if a field is removed, which an extending file cannot express.
    """
    old, lines = encode(base), [f"extends = {_toml(extends)}", ""]
    for section, fields in encode(recipe).items():
        before = old[section] or {}
        changed = {name: value for name, value in (fields or {}).items() if name not in before or before[name] != value}
        if None in changed.values() or (before and not fields):
            return dump(recipe)
        if changed:
            lines += [f"[{section}]", *(f"{name} = {_toml(value)}" for name, value in changed.items()), ""]
    return "\n".join(lines)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} = {_toml(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # only DEL differs from JSON
    return str(value).lower() if isinstance(value, bool) else repr(value)
