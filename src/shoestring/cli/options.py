"""Arguments and options that commands share, and how a command prints its result."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoestring.core.errors import UserError
from shoestring.core.specs import CheckpointSpec
from shoestring.core.units import Seconds

if TYPE_CHECKING:
    from shoestring.console.terminal import Terminal as Terminal  # what `output` gives a command

Result = dict[str, Any] | None
"""What a command returns: its JSON object, or None where another process reports."""

PATH = click.Path(path_type=Path)
VOCABULARY = click.IntRange(1, 10**9)

recipe_file = click.argument("recipe", type=PATH, metavar="RECIPE")
run_path = click.argument("run", type=PATH, metavar="RUN")
overrides = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="SECTION.FIELD=VALUE",
    help="Override a field of the recipe; may be repeated.",
)


def output(command: Callable[..., Result]) -> Callable[..., None]:
    """Give a command a `terminal`, and the options --json and -v (which the entry point reads).

    With --json, the command's result is printed on standard output and its text goes to standard error.
    """

    @functools.wraps(command)
    def run(as_json: bool, **given: Any) -> None:
        from shoestring.console.terminal import Terminal

        terminal = Terminal(to_stderr=as_json)
        try:
            result = command(terminal=terminal, **given)
        finally:
            terminal.close()
        if as_json and result is not None:
            sys.stdout.write(json.dumps(result, allow_nan=False) + "\n")

    verbose = click.option("-v", "--verbose", is_flag=True, expose_value=False, help="Show the traceback of an error.")
    as_json = "Print one JSON object on standard output, and text on standard error."
    return click.option("--json", "as_json", is_flag=True, help=as_json)(verbose(run))


class _Checkpoint(click.ParamType[CheckpointSpec]):
    name = "checkpoint"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> CheckpointSpec:
        spec = CheckpointSpec(value)
        if problem := spec.problem():
            self.fail(f"{value!r} {problem}", param, ctx)
        return spec


class _Duration(click.ParamType[float]):
    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return float(Seconds.parse(str(value)))
        except ValueError as cause:
            self.fail(str(cause), param, ctx)


DURATION = _Duration()
checkpoint = click.option(
    "--checkpoint",
    type=_Checkpoint(),
    default="best",
    show_default=True,
    metavar="WHICH",
    help="best, last, peak (before a cool-down) or a step.",
)
plan_file = click.option("--plan", type=PATH, metavar="FILE", help="Follow this plan.json instead of making a plan.")
time_limit = click.option(
    "--time", type=DURATION, metavar="TIME", help="Save and stop after this time (2h), or before Slurm's limit."
)
shard = click.option("--shard", default="0/1", metavar="I/N", help="Make part I of N, counted from 0.")


def check_outputs(outputs: Mapping[str, Path], inputs: Iterable[Path] = ()) -> None:
    """Refuse, by option, a file to write that is a folder, a record of a run, an input, or another output."""
    from shoestring.core.run_folder import run_of

    read, named = [path for path in inputs if path.is_file()], list(outputs.items())
    for number, (option, path) in enumerate(named):
        if path.is_dir():
            raise UserError(f"{option} {path}: it is a folder; give the name of a file in it")
        if (run := run_of(path)) is not None:
            raise UserError(f"{option} {path}: it is a record of the run {run}; choose another file")
        if any(_same(path, other) for other in read):
            raise UserError(f"{option} {path}: this command reads it; choose another file")
        for first, other in named[:number]:
            if _same(path, other):
                raise UserError(f"{first} {other}: {option} would be the same file; choose another name")


def _same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve() or (one.exists() and other.exists() and one.samefile(other))


def parse_part(text: str) -> tuple[int, int]:
    """(I, N) of "I/N"."""
    number, slash, many = text.partition("/")
    is_pair = slash and text.isascii() and number.isdecimal() and many.isdecimal() and max(len(number), len(many)) < 10
    if not (is_pair and int(number) < int(many)):
        raise UserError(f"--shard {text}: must be I/N with I from 0 to N - 1, such as 0/4")
    return int(number), int(many)
