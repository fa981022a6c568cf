"""`shoestring best`."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from shoestring.cli import options


@click.command()
@click.argument("text", metavar="TEXT")
@click.option(
    "--time", type=options.DURATION, required=True, metavar="TIME", help="The deadline: the run takes at most this."
)
@click.option("--name", metavar="NAME", help="Name of the run and its recipe; default: best- and that of the text.")
@options.output
def best(text: str, time: float, name: str | None, terminal: options.Terminal) -> options.Result:
    """Train the best model that a deadline buys, from a text alone.

    TEXT is a file, a folder, or the hub name of a data set. Row length, size, batch, learning rate, epochs and
    regularisation are chosen; NAME.toml has each with its reason, and can be edited. The same command resumes.
    """
    from shoestring.cli.running import run_in_terminal
    from shoestring.core import recipe_file
    from shoestring.core.clock import Clock
    from shoestring.core.errors import UserError
    from shoestring.core.files import write_whole
    from shoestring.core.run_folder import RunFolder
    from shoestring.probe.machine import pick_device
    from shoestring.runs.best import look_at, recipe_of, text_of, values_for, with_choices
    from shoestring.runs.settle import settled

    clock = Clock()
    values = values_for(look_at(text), time, pick_device().type, name)
    recipe = recipe_of(values)
    file = Path(f"{recipe.run.name}.toml")
    if file.exists():
        kept = recipe_file.load(file)
        if (kept.data.source, kept.budget.time) != (recipe.data.source, recipe.budget.time):
            raise UserError(f"{file} is a recipe of another text or time; choose another name with --name")
        terminal.say(f"{file} is there already, and is followed as it is")
        return run_in_terminal(kept, terminal, clock=clock)
    task = settled(recipe, RunFolder.of(recipe))
    assert task.choices is not None, "its size is chosen, at least"
    words = ["shoestring", "best", text, "--time", str(recipe.budget.time), *([] if name is None else ["--name", name])]
    write_whole(file, text_of(with_choices(values, task.choices), shlex.join(words)))
    terminal.say(f"recipe: {file}")
    return run_in_terminal(recipe_file.load(file), terminal, clock=clock)
