"""Write the pages that are generated: every field of a recipe, every command, and the tables of the benchmarks.

python docs/generate.py [--check]
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import click

from shoestring.cli.root import root
from shoestring.core.recipe import Recipe
from shoestring.core.recipe_file import SWEEP
from shoestring.core.schema import describe, hints
from shoestring.core.sweep import Sweep

DOCS = Path(__file__).resolve().parent
FIELDS, COMMANDS = DOCS / "reference/recipe.md", DOCS / "reference/commands.md"

FIELDS_HEAD = """# Recipe fields

Generated from `sections.py`, `train_section.py`, `run_sections.py`, `scoring_sections.py` and `parallel.py` in
`src/shoestring/core` by `python docs/generate.py`.

A recipe is one TOML file. `extends = "other.toml"` at its top lays it over another one, found beside it.
`--set section.field=value` overrides a field on the command line; `--set section.field=` clears an optional one.
A field that is not in this list is an error.

Times are written `"90s"`, `"2h30m"`, `"5d"`; sizes `"500GB"`, `"1GiB"`; counts `"64k"`, `"200M"`, `"2.4B"`, `"64Ki"` or
plain numbers; FLOPs `"1e21"`. A time or a size without its unit is refused.
"""
COMMANDS_HEAD = """# Commands

Generated from the commands themselves by `python docs/generate.py`.

Every command takes `--json`: it prints one JSON object on standard output, and the text for people on standard error.
The exit status is 0 on success, 2 for a mistake (a message, no traceback) and 1 for a fault. `-v` shows the traceback.
"""


def fields_page() -> str:
    parts = [FIELDS_HEAD]
    for name, kind in {**hints(Recipe), SWEEP: Sweep}.items():
        section = kind if isinstance(kind, type) else get_args(kind)[0]
        parts.append(
            f"\n## `[{name}]`\n\n{section.__doc__}\n\n| field | value | default | meaning |\n|---|---|---|---|\n"
        )
        for field in dataclasses.fields(section):
            kind, meaning = describe(hints(section)[field.name])
            given = field.default is not None and field.default is not dataclasses.MISSING
            default = f"`{_shown(field.default)}`" if given else ""
            parts.append(f"| `{field.name}` | {kind} | {default} | {meaning.replace('|', '&#124;')} |\n")
    return "".join(parts)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if value == ():
        return "[]"
    return f'"{value}"' if isinstance(value, str) else f"{value}"


def commands_page() -> str:
    parts = [COMMANDS_HEAD]
    for words, command, context in _commands(root, click.Context(root, info_name="shoestring"), ("shoestring",)):
        context.terminal_width = context.max_content_width = 96
        parts.append(f"\n## {' '.join(words)}\n\n```text\n{command.get_help(context)}\n```\n")
    return "".join(parts)


def _commands(
    group: click.Group, context: click.Context, words: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command, click.Context]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, parent=context, info_name=name)
        if isinstance(command, click.Group):
            yield from _commands(command, inner, (*words, name))
        else:
            yield (*words, name), command, inner


if __name__ == "__main__":
    pages = {FIELDS: fields_page(), COMMANDS: commands_page()}
    if "--check" in sys.argv:
        old = [path.name for path, text in pages.items() if not path.is_file() or path.read_text() != text]
        sys.exit(f"{', '.join(old)} is not what the code says; run: python docs/generate.py" if old else 0)
    for path, text in pages.items():
        path.write_text(text)
    subprocess.run([sys.executable, DOCS.parent / "bench/tables.py"], check=True)  # noqa: S603 - a script of ours
