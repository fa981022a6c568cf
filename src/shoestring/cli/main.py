"""`shoestring`: the verbs, and how errors end: 2 for a mistake, 1 for a fault, no traceback unless -v asks for it."""

from __future__ import annotations

import json
import sys
import traceback

import typer

from shoestring.cli import data, demo, evaluate, export, hmm, measure, plan, prepare, report, train
from shoestring.core.errors import ShoestringError

app = typer.Typer(
    name="shoestring",
    help="Language-model research on a shoestring: measure the machine, plan what fits, run it to the deadline.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verb in (demo, measure, plan, prepare, train, evaluate, export, report):
    app.command()(getattr(verb, verb.__name__.rpartition(".")[2]))
app.add_typer(data.app, name="data")
app.add_typer(hmm.app, name="hmm")


def version(wanted: bool) -> None:
    if wanted:
        from shoestring import __version__

        print(f"shoestring {__version__}")
        raise typer.Exit


@app.callback()
def options(
    show_version: bool = typer.Option(False, "--version", callback=version, is_eager=True, help="Show the version."),
) -> None:
    """Language-model research on a shoestring: measure the machine, plan what fits, run it to the deadline."""


def main() -> None:
    """The entry point. Typer ends wrong usage itself, with 2; everything else that goes wrong is explained here."""
    try:
        app()
    except KeyboardInterrupt:
        print("interrupted; the same command goes on with what is there", file=sys.stderr)
        sys.exit(130)
    except Exception as cause:
        code = cause.exit_code if isinstance(cause, ShoestringError) else 1
        _explain(cause, sys.argv[1:], code)
        sys.exit(code)


def _explain(cause: Exception, arguments: list[str], code: int) -> None:
    known = isinstance(cause, ShoestringError)
    message = str(cause) if known else f"{type(cause).__name__}: {cause}"
    if "-v" in arguments or "--verbose" in arguments:
        traceback.print_exception(cause, file=sys.stderr)
    print(f"error: {message}", file=sys.stderr)
    if not known and "-v" not in arguments:
        print("this is a bug in shoestring; -v shows where", file=sys.stderr)
    if "--json" in arguments:
        print(json.dumps({"error": message, "exit_code": code}))
