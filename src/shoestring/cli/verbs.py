"""The verbs of `shoestring`, in the order of its help."""

from __future__ import annotations

import typer

from shoestring.cli import data, demo, evaluate, export, hmm, law, measure, plan, prepare, report, train

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
    app.command(**getattr(verb, "COMMAND", {}))(getattr(verb, verb.__name__.rpartition(".")[2]))
app.add_typer(data.app, name="data")
app.add_typer(hmm.app, name="hmm")
app.add_typer(law.app, name="law")


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
