"""`shoestring best`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoestring.cli import options

if TYPE_CHECKING:
    from shoestring.core.errors import Refusal
    from shoestring.core.recipe import Recipe


@click.command()
@click.argument("text", metavar="TEXT")
@click.option(
    "--time",
    type=options.DURATION,
    required=True,
    metavar="TIME",
    help="The deadline: the command takes at most this, and after an interruption as much again.",
)
@click.option("--name", metavar="NAME", help="Name of the run and its recipe; default: best- and that of the text.")
@options.overrides
@options.output
def best(
    text: str, time: float, name: str | None, overrides: tuple[str, ...], terminal: options.Terminal
) -> options.Result:
    """Train the best model that a deadline buys, from a text alone.

    TEXT is a file, a folder, or the hub name of a data set. Tokenizer, row length, size, batch, learning rate, epochs
    and regularisation are chosen; NAME.toml has each with its reason, and can be edited. The same command resumes. With
    more time than before, the run goes on where it ended, under another name, NAME-TIME.
    """
    from shoestring.cli.running import run_in_terminal
    from shoestring.core import recipe_file
    from shoestring.core.clock import Clock
    from shoestring.core.errors import Refusal, UserError
    from shoestring.core.files import write_whole
    from shoestring.core.run_folder import RunFolder
    from shoestring.probe.machine import pick_device
    from shoestring.runs.best import recipe_of, text_of, values_for, with_choices, with_given
    from shoestring.runs.longer import earlier_run, longer_text, named
    from shoestring.runs.look_at import look_at
    from shoestring.runs.settle import settled

    clock, earlier = Clock(), None
    if "time" in recipe_file.overridden(overrides).get("budget", {}):
        raise UserError("--set budget.time: give the time as --time")
    corpus = look_at(text)
    given = recipe_file.overridden(overrides).get("data", {}).get("tokenizer")
    tokenizer = given if isinstance(given, str) else None
    values = with_given(values_for(corpus, time, pick_device().type, name, tokenizer), overrides)
    recipe = recipe_of(values)
    words = ["shoestring", "best", text, "--time", str(recipe.budget.time), *([] if name is None else ["--name", name])]
    words += [f"--set={override}" for override in overrides]

    def of_this_text(file: Path) -> Recipe:
        kept = recipe_file.load(file)
        if kept.data.source != recipe.data.source:
            raise UserError(f"{file} is a recipe of another text; choose another name with --name")
        if corpus.changed is not None and corpus.changed > file.stat().st_mtime:
            terminal.say(f"{text} is newer than {file}: if it is another text now, choose another name with --name")
        return kept

    file = Path(f"{recipe.run.name}.toml")
    if file.exists() and of_this_text(file).budget.time != recipe.budget.time:
        first, file = file, named(file.stem, time)
        earlier = None if file.exists() else earlier_run(first.stem, recipe.data.source, time)
    if file.exists():
        kept = of_this_text(file)
        if overrides:
            raise UserError(f"{file} is there already: edit it there, or choose another name with --name")
        terminal.say(f"{file} is there already, and is followed as it is")
        return run_in_terminal(kept, terminal, clock=clock)
    values["run"]["name"] = file.stem, "its folder in runs/"
    recipe = recipe_of(values)
    task = settled(recipe, RunFolder.of(recipe))
    for line in corpus.said:
        terminal.say(line)
    if earlier is not None and earlier.done is None:
        if overrides:
            raise UserError(f"the run of {earlier.file} goes on as it is; choose another name with --name")
        write_whole(file, longer_text(earlier, file.stem, time, shlex.join(words)))
        before = RunFolder.of(earlier.recipe).path
        terminal.say(f"recipe: {file}, which goes on where {before} ended")
        own, anew = (f"{each.model.width} × {each.model.layers}" for each in (earlier.recipe, task.recipe))
        if own != anew:
            terminal.say(f"its network is {own}; a new run of this time, with another --name, would have {anew}")
    else:
        if earlier is not None:
            terminal.say(f"more time does not help the run of {earlier.file}: {earlier.done}. All is chosen anew")
            earlier = None
        chosen = values if task.choices is None else with_choices(values, task.choices)
        write_whole(file, text_of(chosen, shlex.join(words)))
        terminal.say(f"recipe: {file}")
    try:
        return run_in_terminal(recipe_file.load(file), terminal, clock=clock)
    except UserError as cause:
        if not RunFolder.of(recipe).metrics.is_file():
            file.unlink()  # nothing was trained, so that another time, or a text that was mended, begins anew
        if isinstance(cause, Refusal):
            raise _in_words_of_best(cause, 0.0 if earlier is None else earlier.time) from None
        raise


def _in_words_of_best(refusal: Refusal, before: float) -> Refusal:
    """The same, but the least time as `best` takes it: with those of the runs `before`."""
    from shoestring.core.errors import Refusal
    from shoestring.core.units import Seconds

    field, _, value = (refusal.setting or "").partition("=")
    if field != "budget.time":
        return refusal
    time = Seconds(round(Seconds.parse(value) + before))
    return Refusal(refusal.message.replace(f"--set {refusal.setting}", f"--time {time}"), refusal.limit, None)
