"""A recipe as TOML: reading one from a file, laying overrides over it, and writing it out.

`load` reads a file, follows `extends`, applies `--set section.field=value`, and either returns a whole `Recipe` or
raises one `RecipeError` that lists every problem. `dump` writes the resolved recipe; reading that gives an equal value.
"""

from __future__ import annotations

import datetime
import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from shoestring.core.contradictions import contradictions
from shoestring.core.errors import RecipeError, storage_error
from shoestring.core.recipe import Recipe
from shoestring.core.schema import decode, encode, nearest


def load(path: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """The recipe in `path`, with `section.field=value` overrides; raises RecipeError with every problem."""
    problems: list[str] = []
    values = _read(Path(path), (), problems)
    for text in overrides:
        _override(values, text, problems)
    return build(values, str(path), problems)


def build(values: Mapping[str, Any], where: str, problems: list[str] | None = None) -> Recipe:
    """A recipe from plain values; `problems` found before are reported together with its own."""
    problems = [] if problems is None else problems
    before = len(problems)
    recipe: Recipe | None = decode(Recipe, values, "", problems)
    if len(problems) == before and recipe is not None:
        problems += contradictions(recipe)
    if problems or recipe is None:
        raise RecipeError(where, problems)
    return recipe


def _read(path: Path, seen: tuple[Path, ...], problems: list[str]) -> dict[str, Any]:
    """The values of a file laid over those of the one it extends; a wrong base is one of the problems."""
    try:
        text = path.read_bytes().decode()
    except OSError as cause:
        raise storage_error("read the recipe", path, cause) from cause
    except UnicodeDecodeError as cause:
        raise RecipeError(str(path), [f"not UTF-8 text: {cause.reason} at byte {cause.start}"]) from cause
    try:
        values = tomllib.loads(text)
    except ValueError as cause:  # TOMLDecodeError, and numbers of thousands of digits
        raise RecipeError(str(path), [f"not valid TOML: {cause}"]) from cause
    base = values.pop("extends", None)
    if base is None:
        return values
    if not isinstance(base, str):
        problems.append(f'extends = {base!r}: must be the path of a recipe, as in extends = "base.toml"')
        return values
    parent, chain = path.parent / base, (*seen, path.resolve())
    if parent.resolve() in chain:
        raise RecipeError(str(path), [f'extends = "{base}": the recipes extend each other in a circle'])
    if not parent.is_file():
        problems.append(f'extends = "{base}": there is no file {parent}')
        return values
    return _merge(_read(parent, chain, problems), values)


def _merge(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return merged


def _override(values: dict[str, Any], text: str, problems: list[str]) -> None:
    """Lay one `section.field=value` over `values`; the value is TOML, or else plain text."""
    path, equals, raw = text.partition("=")
    section, dot, name = path.strip().partition(".")
    if not (equals and dot and section and name):
        problems.append(f"--set {text}: write it as section.field=value, for example --set train.lr=1e-3")
        return
    try:
        value = tomllib.loads(f"value = {raw.strip()}")["value"]
    except ValueError:
        value = raw.strip()
    if isinstance(value, (datetime.date, datetime.time)):  # no field is a date: 12:00:00 is Slurm's time
        value = raw.strip()
    known = list(Recipe.__dataclass_fields__)
    if section not in known:
        problems.append(f"--set {text}: unknown section {section!r}; {nearest(section, known)}")
        return
    table = values.setdefault(section, {})
    if isinstance(table, dict):
        table[name] = value


def dump(recipe: Recipe) -> str:
    """The recipe as TOML, every field written out; one that is None is left out."""
    lines = []
    for section, fields in encode(recipe).items():
        if fields is None:
            continue
        lines.append(f"[{section}]")
        lines += [f"{name} = {_toml(value)}" for name, value in fields.items() if value is not None]
        lines.append("")
    return "\n".join(lines)


def dump_over(base: Recipe, recipe: Recipe, extends: str) -> str:
    """The recipe as TOML that extends the file of `base`, with the fields that differ; whole where one is taken away.

    A file can lay a value over that of its base, but not say that there is none.
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


def _toml(value: str | bool | int | float) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # as TOML does, but for DEL
    return str(value).lower() if isinstance(value, bool) else repr(value)
