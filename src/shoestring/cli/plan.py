"""`shoestring plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from shoestring.cli.options import AsJson, Overrides, Verbose
from shoestring.core.errors import PlanError
from shoestring.core.units import Count, Seconds


def _quantity(kind: type[Count] | type[Seconds], name: str, meaning: str) -> Any:
    """An option that is written with its unit, such as 5d or 200M."""

    def parse(text: str) -> float:
        try:
            return kind.parse(text)
        except ValueError as cause:
            raise typer.BadParameter(str(cause)) from cause

    return typer.Option(name, parser=parse, metavar="TIME" if kind is Seconds else "COUNT", help=f"By hand: {meaning}.")


def plan(
    recipe: Annotated[Path | None, typer.Argument(metavar="RECIPE", help="The recipe, a TOML file.")] = None,
    overrides: Overrides = None,
    profile: Annotated[Path | None, typer.Option(help="A profile.json measured elsewhere.")] = None,
    time: Annotated[float | None, _quantity(Seconds, "--time", "wall clock, as 5d, 36h or 90s")] = None,
    tokens: Annotated[float | None, _quantity(Count, "--tokens", "tokens to train on")] = None,
    tokens_per_second: Annotated[float | None, _quantity(Count, "--tokens-per-second", "speed of training")] = None,
    tokens_per_gb: Annotated[float | None, _quantity(Count, "--tokens-per-gb", "tokens in 10^9 bytes of text")] = None,
    entries_per_gb: Annotated[float | None, _quantity(Count, "--entries-per-gb", "documents in 10^9 bytes")] = None,
    per_device: Annotated[int | None, typer.Option(help="By hand: rows at a time on a device.")] = None,
    accumulate: Annotated[int | None, typer.Option(help="By hand: passes before an update.")] = None,
    devices: Annotated[int | None, typer.Option(help="By hand: devices that share a batch.")] = None,
    steps: Annotated[float | None, _quantity(Count, "--steps", "optimizer steps")] = None,
    margin: Annotated[float | None, typer.Option(help="By hand: get this many times the data needed.")] = None,
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
