"""`shoestring`: the group of all commands. A command is imported when it is called, or when the help lists it."""

from __future__ import annotations

import importlib

import click

from shoestring import __version__

COMMANDS = (
    "demo", "best", "measure", "plan", "prepare", "train", "sweep", "evaluate", "compare", "generate", "export",
    "convert", "fingerprints", "drift", "report", "board", "track", "data", "hmm", "law", "doctor",
)  # fmt: skip
"""In the order of the help. Each is a module of this package that holds a command of the same name."""


class Commands(click.Group):
    """A group that imports a command when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"shoestring.cli.{cmd_name}"), cmd_name)
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="shoestring %(version)s", help="Show the version and exit.")
def root() -> None:
    """Language-model research on a shoestring: measure the machine, plan what fits, run it to the deadline."""
