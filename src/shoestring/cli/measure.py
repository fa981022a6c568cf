"""`shoestring measure`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shoestring.cli.options import AsJson, Overrides, RecipeFile, Verbose

if TYPE_CHECKING:
    from shoestring.core.recipe import Recipe


def measure(
    recipe: RecipeFile,
    overrides: Overrides = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again even if there is a profile.")] = False,
    real: Annotated[bool, typer.Option("--real", help="On rows of the recipe's own store, reading included.")] = False,
    estimate: Annotated[bool, typer.Option("--estimate", help="Count instead, and touch no device.")] = False,
    card: Annotated[
        str | None, typer.Option("--card", metavar="NAME", help='For --estimate, as "NVIDIA A100-SXM4-80GB".')
    ] = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Measure this machine with a recipe's model.

    Bytes and seconds by batch on random tokens, the largest batches that fit, and how dense the corpus is. Trials run
    in child processes. A profile is kept for other runs of the same model on the same machine.
    """
    from shoestring.core import recipe_file
    from shoestring.core.errors import UserError

    loaded = recipe_file.load(recipe, overrides or ())
    if estimate:
        _estimate(loaded, card, as_json)
        return
    if card is not None:
        raise UserError(f"--card {card}: only --estimate is about a card that is not here; add --estimate")
    _measure(loaded, fresh, real, as_json)


def _measure(recipe: Recipe, fresh: bool, real: bool, as_json: bool) -> None:
    from shoestring.cli.terminal import Terminal, print_json
    from shoestring.core.run_folder import RunFolder
    from shoestring.stages.measure import Measuring, ensure_profile
    from shoestring.stages.prepare import check_source
    from shoestring.stages.train import measuring_seconds

    check_source(recipe)
    folder, terminal = RunFolder.of(recipe), Terminal(to_stderr=as_json)
    how = Measuring(seconds=measuring_seconds(recipe), thorough=True, real=real, fresh=fresh, here=True)
    with folder.lock(), folder.claiming(recipe):
        profile = ensure_profile(recipe, folder, terminal, how)
    terminal.say(f"profile: {folder.profile}")
    if as_json:
        print_json(profile.to_dict())


def _estimate(recipe: Recipe, card: str | None, as_json: bool) -> None:
    from shoestring.cli.estimated import estimate_rows
    from shoestring.cli.terminal import Terminal, print_json

    told, rows = estimate_rows(recipe, card)
    Terminal(to_stderr=as_json).table("Counted, not measured", ("", "value", "how it was got"), rows)
    if as_json:
        print_json(told)
