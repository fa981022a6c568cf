"""`shoestring best`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoestring.cli import options

if TYPE_CHECKING:
    from shoestring.core.recipe import Recipe


@click.command()
@click.argument("text", metavar="TEXT")
@click.option(
    "--time", type=options.DURATION, required=True, metavar="TIME", help="The deadline: the run takes at most this."
)
@click.option("--name", metavar="NAME", help="Name of the run and its recipe; default: best- and that of the text.")
@options.output
def best(text: str, time: float, name: str | None, terminal: options.Terminal) -> options.Result:
    """Train the best model that a deadline buys, from a text alone.

    TEXT is a file, a folder, or the hub name of a data set. Tokenizer, row length, size, batch, learning rate, epochs
    and regularisation are chosen; NAME.toml has each with its reason, and can be edited. The same command resumes. With
    more time than before, the run goes on where it ended, under another name, NAME-TIME.
    """
    from shoestring.cli.running import run_in_terminal
    from shoestring.core import recipe_file
    from shoestring.core.clock import Clock
    from shoestring.core.errors import UserError
    from shoestring.core.files import write_whole
    from shoestring.core.run_folder import RunFolder
    from shoestring.probe.machine import pick_device
    from shoestring.runs.best import look_at, recipe_of, text_of, values_for, with_choices
    from shoestring.runs.longer import earlier_run, longer_text, named
    from shoestring.runs.settle import settled

    clock, earlier = Clock(), None
    values = values_for(look_at(text), time, pick_device().type, name)
    recipe = recipe_of(values)
    words = ["shoestring", "best", text, "--time", str(recipe.budget.time), *([] if name is None else ["--name", name])]

    def of_this_text(file: Path) -> Recipe:
        kept = recipe_file.load(file)
        if kept.data.source != recipe.data.source:
            raise UserError(f"{file} is a recipe of another text; choose another name with --name")
        return kept

    file = Path(f"{recipe.run.name}.toml")
    if file.exists() and of_this_text(file).budget.time != recipe.budget.time:
        first, file = file, named(file.stem, time)
        earlier = None if file.exists() else earlier_run(first.stem, recipe.data.source, time)
        if earlier is None and not file.exists():
            raise UserError(
                f"{first} is a recipe of another time, and no run of it with less than {recipe.budget.time} "
                f"has ended; choose another name with --name"
            )
    if file.exists():
        kept = of_this_text(file)
        terminal.say(f"{file} is there already, and is followed as it is")
        return run_in_terminal(kept, terminal, clock=clock)
    values["run"]["name"] = file.stem, "its folder in runs/"
    recipe = recipe_of(values)
    task = settled(recipe, RunFolder.of(recipe))
    assert task.choices is not None, "its size is chosen, at least"
    if earlier is not None and earlier.done is None:
        write_whole(file, longer_text(earlier, file.stem, time, shlex.join(words)))
        before = RunFolder.of(earlier.recipe).path
        terminal.say(f"recipe: {file}, which goes on where {before} ended")
        own, anew = (f"{each.model.width} × {each.model.layers}" for each in (earlier.recipe, task.recipe))
        if own != anew:
            terminal.say(f"its network is {own}; a new run of this time, with another --name, would have {anew}")
    else:
        if earlier is not None:
            terminal.say(f"more time does not help the run of {earlier.file}: {earlier.done}. All is chosen anew")
        write_whole(file, text_of(with_choices(values, task.choices), shlex.join(words)))
        terminal.say(f"recipe: {file}")
    return run_in_terminal(recipe_file.load(file), terminal, clock=clock)
