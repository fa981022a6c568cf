"""Arguments and options that verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shoestring.core.errors import UserError

RecipeFile = Annotated[Path, typer.Argument(metavar="RECIPE", help="The recipe, a TOML file.", show_default=False)]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.FIELD=VALUE", help="Override a field of the recipe; may be repeated."),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="One JSON object on standard output, text for people on standard error.")
]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Show the traceback of an error.")]


def parse_part(text: str) -> tuple[int, int]:
    """(I, N) of "I/N"."""
    number, slash, many = text.partition("/")
    if not (slash and number.isdecimal() and many.isdecimal() and int(number) < int(many)):
        raise UserError(f"--shard {text}: must be I/N with I from 0 to N - 1, such as 0/4")
    return int(number), int(many)
