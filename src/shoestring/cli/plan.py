"""`shoestring plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shoestring.cli.options import AsJson, Overrides, Verbose
from shoestring.core.errors import PlanError
from shoestring.core.units import Count, Seconds


def _quantity(kind: type[Count] | type[Seconds]):  # type: ignore[no-untyped-def]
    def parse(text: str) -> float:
        try:
            return kind.parse(text)
        except ValueError as cause:
            raise typer.BadParameter(str(cause)) from cause

    return parse


_By = "By hand, without a recipe"
Number = Annotated[float | None, typer.Option(parser=_quantity(Count), metavar="COUNT", rich_help_panel=_By)]
Whole = Annotated[int | None, typer.Option(rich_help_panel=_By)]


def plan(
    recipe: Annotated[Path | None, typer.Argument(metavar="[RECIPE]", help="The recipe, a TOML file.")] = None,
    overrides: Overrides = None,
    profile: Annotated[Path | None, typer.Option(help="A profile.json measured elsewhere.")] = None,
    time: Annotated[
        float | None,
        typer.Option("--time", parser=_quantity(Seconds), metavar="TIME", rich_help_panel=_By, help="As 5d, 36h, 90s."),
    ] = None,
    tokens: Number = None,
    tokens_per_second: Number = None,
    tokens_per_gb: Number = None,
    entries_per_gb: Number = None,
    per_device: Whole = None,
    accumulate: Whole = None,
    devices: Whole = None,
    steps: Number = None,
    margin: Annotated[
        float | None, typer.Option(rich_help_panel=_By, help="Get this many times the data needed.")
    ] = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Plan a run: every number with its reason. From a recipe and its profile, or from figures by hand."""
    from shoestring.cli.terminal import Terminal, print_json
    from shoestring.plan.by_hand import Figures, plan_by_hand

    figures = Figures(
        time=None if time is None else Seconds(time),
        tokens=None if tokens is None else Count(tokens),
        tokens_per_second=tokens_per_second,
        tokens_per_gb=tokens_per_gb,
        entries_per_gb=entries_per_gb,
        per_device=per_device,
        accumulate=accumulate,
        devices=devices,
        steps=None if steps is None else int(steps),
        margin=margin,
    )
    terminal = Terminal(to_stderr=as_json)
    if recipe is None:
        made = plan_by_hand(figures)
        terminal.planned(made)
    else:
        if names := list(figures.given()):
            shown = ", ".join(f"--{name.replace('_', '-')}" for name in names)
            raise PlanError(f"{shown}: by hand there is no recipe; with one, use --set, as in --set budget.time=2h")
        from shoestring.core import recipe as recipes
        from shoestring.core.run_folder import RunFolder
        from shoestring.stages.plan import plan_recipe, read_profile

        loaded = recipes.load(recipe, overrides or ())
        folder = RunFolder.of(loaded)
        made = plan_recipe(loaded, read_profile(loaded, folder, profile))
        with folder.lock():
            folder.claim(loaded)
            if folder.checkpoints.is_dir() and folder.plan.is_file():
                raise PlanError(
                    f"{folder.path} has begun and keeps its plan; choose another name with --set run.name=…"
                )
            made.write(folder.plan)
        terminal.planned(made)
        terminal.say(f"plan: {folder.plan}")
    if as_json:
        print_json(made.to_dict())
