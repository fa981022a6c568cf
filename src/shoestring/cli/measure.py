"""`shoestring measure`."""

from __future__ import annotations

from typing import Annotated

import typer

from shoestring.cli.options import AsJson, Overrides, RecipeFile, Verbose


def measure(
    recipe: RecipeFile,
    overrides: Overrides = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again even if there is a profile.")] = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Measure this machine with a recipe's model.

    Bytes and seconds by batch on random tokens, in a child process, and how dense the corpus is.
    """
    from shoestring.cli.terminal import Terminal, print_json
    from shoestring.core import recipe as recipes
    from shoestring.core.run_folder import RunFolder
    from shoestring.stages.measure import ensure_profile
    from shoestring.stages.prepare import check_source
    from shoestring.stages.train import measuring_seconds

    loaded = recipes.load(recipe, overrides or ())
    check_source(loaded)
    folder, terminal = RunFolder.of(loaded), Terminal(to_stderr=as_json)
    with folder.lock():
        folder.claim(loaded)
        profile = ensure_profile(loaded, folder, Terminal(to_stderr=as_json), measuring_seconds(loaded), fresh)
    terminal.say(f"profile: {folder.profile}")
    if as_json:
        print_json(profile.to_dict())
