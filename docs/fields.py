"""Write docs/recipe.md, the list of every field a recipe may have, from the dataclasses themselves.

python docs/fields.py
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import get_args

from shoestring.core.recipe import Recipe
from shoestring.core.schema import describe, hints

PAGE = Path(__file__).resolve().parent / "recipe.md"

HEAD = """# Every field of a recipe

Generated from `src/shoestring/core/recipe.py` by `python docs/fields.py`.

A recipe is one TOML file. `extends = "other.toml"` at its top lays it over another one, found beside it.
`--set section.field=value` overrides a field on the command line. A field that is not in this list is an error.

Times are written `"90s"`, `"2h30m"`, `"5d"`; sizes `"500GB"`, `"1GiB"`; counts `"64k"`, `"200M"`, `"2.4B"`, `"64Ki"` or
plain numbers; FLOPs `"1e21"`. A time or a size without its unit is refused.
"""


def page() -> str:
    parts = [HEAD]
    for name, kind in hints(Recipe).items():
        section = kind if isinstance(kind, type) else get_args(kind)[0]
        parts.append(
            f"\n## `[{name}]`\n\n{section.__doc__}\n\n| field | value | default | meaning |\n|---|---|---|---|\n"
        )
        for field in dataclasses.fields(section):
            kind, meaning = describe(hints(section)[field.name])
            default = "" if field.default is None else f"`{_shown(field.default)}`"
            parts.append(f"| `{field.name}` | {kind} | {default} | {meaning} |\n")
    return "".join(parts)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else f"{value}"


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(
            0 if PAGE.read_text() == page() else "docs/recipe.md is not what the code says; run: python docs/fields.py"
        )
    PAGE.write_text(page())
