"""`shoestring plan`.

Its options are read by argparse: typer takes longer to make so many than a plan takes to be made.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from shoestring.core.errors import PlanError, UserError
from shoestring.core.facts import Plan, Profile
from shoestring.core.units import Interval, Seconds
from shoestring.plan.by_hand import option, plan_by_hand
from shoestring.plan.figures import BUDGETS, FIGURES, OPTIONS, Option

if TYPE_CHECKING:
    from shoestring.cli.terminal import Terminal
    from shoestring.core.recipe import Recipe
    from shoestring.core.run_folder import RunFolder

COMMAND: dict[str, Any] = {
    "add_help_option": False,
    "context_settings": {"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False},
}
"""For typer, which only lists this verb beside the others."""
_WITH_RECIPE = {"devices"}
_SHOWN = ("what_if", "configurations", "over")
"""Tables in place of one plan."""
"""Figures that go with a recipe too; `time` does with --over."""


def plan() -> None:
    """Plan a run: every number with its reason. From a recipe and its profile, or from figures by hand."""
    run(sys.argv[sys.argv.index("plan") + 1 :])


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; shoestring plan --help shows what there is")


def _parser() -> _Parser:
    parser = _Parser(
        prog="shoestring plan",
        usage="shoestring plan [RECIPE] [options]",
        description=plan.__doc__,
        allow_abbrev=False,
        add_help=False,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=34),
    )
    parser.add_argument("recipe", nargs="?", type=Path, metavar="RECIPE", help="the recipe, a TOML file")
    add = parser.add_argument
    add("-h", "--help", action="help", help="show this and end")
    add("--json", action="store_true", help="one JSON object on standard output, text for people on standard error")
    add("-v", "--verbose", action="store_true", help="show the traceback of an error")
    add(
        "--history",
        nargs="+",
        default=[],
        type=Path,
        metavar="RUNS",
        help="how good the plans of these runs were; behind a recipe: its plan, corrected by these runs, not by those "
        "in run.folder",
    )
    add(
        "--what-if",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="the plan with this changed beside the plan without: devices=2, section.field=value, or a figure by hand",
    )
    recipe = parser.add_argument_group("with a recipe")
    add = recipe.add_argument
    add("--set", action="append", default=[], metavar="SECTION.FIELD=VALUE", help="override a field of the recipe")
    add("--profile", type=Path, metavar="FILE", help="a profile.json measured elsewhere")
    add("--card", metavar="NAME", help="plan for a GPU by its name, estimated: nothing is measured, nothing written")
    add("--vocabulary", type=int, metavar="COUNT", help="with --card: symbols; default: what the tokenizer has")
    add("--law", metavar="FILE", help='whether the model is of the best size, by a law of `law fit` or "chinchilla"')
    add("--over", action="append", default=[], metavar="FIELD=A,B,…", help="a run for each value, and the time of all")
    add("--configurations", action="store_true", help="every split of the batch, beside the rule of thumb")
    add("--sbatch", type=Path, metavar="FILE", help="write a Slurm script for this plan")
    limits = parser.add_argument_group("budgets by hand; the tightest binds")
    facts = parser.add_argument_group("figures by hand; those with .. may be intervals, as 200M..400M")
    for group, options in ((limits, BUDGETS), (facts, OPTIONS)):
        for name, figure in options.items():
            shown = f"{figure.unit}[..{figure.unit}]" if figure.may_be_interval else figure.unit
            group.add_argument(option(name), metavar=shown, help=figure.meaning)
    return parser


def _joined(arguments: Sequence[str]) -> list[str]:
    """With a negative value as part of its option, or it would be taken for one: --time=-5d."""
    found: list[str] = []
    for argument in arguments:
        if found and found[-1].startswith("--") and "=" not in found[-1] and re.match(r"-[\d.]", argument):
            found[-1] += f"={argument}"
        else:
            found.append(argument)
    return found


def _figure(name: str, text: str, figure: Option) -> Interval:
    if ".." in text and not figure.may_be_interval:
        raise PlanError(f"{option(name)} {text}: must be one value, not an interval")
    try:
        return Interval.parse(text, figure.read)
    except ValueError as cause:
        raise PlanError(f"{option(name)} {text}: {cause}") from cause


def _figures(given: argparse.Namespace) -> dict[str, Interval]:
    texts = {name: getattr(given, name) for name in FIGURES}
    return {name: _figure(name, text, FIGURES[name]) for name, text in texts.items() if text is not None}


def run(arguments: Sequence[str]) -> None:
    """Answer one command; `arguments` are those after `plan`."""
    given = _parser().parse_args(_joined(arguments))
    figures = _figures(given)
    from shoestring.cli.terminal import Terminal, print_json

    terminal = Terminal(to_stderr=given.json)
    if given.recipe is not None:
        told = _of_recipe(terminal, figures, given)
    elif given.history:
        told = _history(terminal, given.history)
    else:
        told = _by_hand(terminal, figures, given)
    if given.json:
        print_json(told)


def _by_hand(terminal: Terminal, figures: dict[str, Interval], given: argparse.Namespace) -> dict[str, Any]:
    alone = {"--set": given.set, "--over": given.over, "--configurations": given.configurations}
    alone |= {"--sbatch": given.sbatch, "--profile": given.profile, "--card": given.card, "--law": given.law}
    if needless := [name for name, value in alone.items() if value]:
        raise PlanError(f"{', '.join(needless)}: give the recipe too, as in shoestring plan RECIPE {needless[0]} …")
    made = plan_by_hand(figures)
    if not given.what_if:
        terminal.planned(made)
        return made.to_dict()
    changed = dict(figures)
    for change in given.what_if:
        name, equals, text = change.partition("=")
        name = name.strip("-").replace("-", "_")
        if not equals or name not in FIGURES:
            raise PlanError(f"--what-if {change}: write NAME=VALUE with a figure by hand, as in --what-if devices=2")
        changed[name] = _figure(name, text, FIGURES[name])
    then = plan_by_hand(changed)
    return _compared(terminal, made, then, [], given.what_if)


def _compared(
    terminal: Terminal, now: Plan, then: Plan, notes: Sequence[str], changes: Sequence[str]
) -> dict[str, Any]:
    from shoestring.plan.what_if import HEAD, compare

    terminal.table(f"What if {', '.join(changes)}", HEAD, compare(now, then))
    for note in notes:
        terminal.say(note)
    return {"now": now.to_dict(), "then": then.to_dict(), "notes": list(notes)}


def _of_recipe(terminal: Terminal, figures: dict[str, Interval], given: argparse.Namespace) -> dict[str, Any]:
    from shoestring.core import recipe_file
    from shoestring.core.run_folder import RunFolder
    from shoestring.stages.plan import plan_recipe, read_profile

    allowed = _WITH_RECIPE | ({"time"} if given.over else set())
    if names := [option(name) for name in figures if name not in allowed]:
        raise PlanError(
            f"{', '.join(names)}: by hand there is no recipe; with one, use --set, as in --set budget.time=2h"
        )
    if given.sbatch and (others := [f"--{name.replace('_', '-')}" for name in _SHOWN if getattr(given, name)]):
        raise PlanError(f"--sbatch and {', '.join(others)}: a script is of one plan; leave one of them out")
    if given.over:
        return _grid(terminal, given, figures.get("time"), _devices(figures))
    loaded = recipe_file.load(given.recipe, given.set)
    if given.card is not None:
        return _on_card(terminal, loaded, figures, given)
    folder = RunFolder.of(loaded)
    profile = read_profile(loaded, folder, given.profile)
    devices = _devices(figures) or profile.devices
    made = plan_recipe(loaded, profile, devices=devices, history=given.history)
    if given.what_if:
        from shoestring.stages.what_if import what_if

        then = what_if(given.recipe, given.set, given.what_if, profile, devices, given.history)
        return _compared(terminal, made, then.plan, then.notes, given.what_if)
    if given.configurations:
        return made.to_dict() | _configurations(terminal, loaded, profile, devices)
    if given.law is not None:
        made = _with_law(given.law, loaded, profile, made)
    _write(folder, loaded, made)
    terminal.planned(made)
    terminal.say(f"plan: {folder.plan}")
    if given.sbatch is not None:
        _write_sbatch(terminal, given, loaded, made, profile)
    return made.to_dict()


def _devices(figures: dict[str, Interval]) -> int | None:
    """Those asked for."""
    if "devices" not in figures:
        return None
    if (count := figures["devices"].expected) < 1:
        raise PlanError(f"--devices {count:g}: must be at least 1")
    return int(count)


def _on_card(
    terminal: Terminal, recipe: Recipe, figures: dict[str, Interval], given: argparse.Namespace
) -> dict[str, Any]:
    """An estimate, which is shown and not kept: the run itself is planned where it runs."""
    from shoestring.stages.accounting import vocabulary_of
    from shoestring.stages.estimate import plan_on_card

    others = {"--what-if": given.what_if, "--configurations": given.configurations, "--sbatch": given.sbatch}
    others |= {"--law": given.law, "--profile": given.profile, "--history": given.history}
    if needless := [name for name, value in others.items() if value]:
        shown = ", ".join(needless)
        raise PlanError(f"--card and {shown}: that needs a profile; measure with: shoestring measure RECIPE")
    devices = _devices(figures) or 1
    made = plan_on_card(recipe, vocabulary_of(recipe, given.vocabulary), given.card, devices)
    terminal.planned(made)
    return made.to_dict()


def _with_law(name: str, recipe: Recipe, profile: Profile, made: Plan) -> Plan:
    """The plan with lines that say whether its model has the best size."""
    from shoestring.stages.sizing import read_law, size_lines

    law = read_law(None if name == "chinchilla" else Path(name))
    return replace(made, lines=(*made.lines, *size_lines(law, recipe, profile, made)))


def _write(folder: RunFolder, recipe: Recipe, made: Plan) -> None:
    with folder.lock():
        folder.claim(recipe)
        if folder.checkpoints.is_dir() and folder.plan.is_file():
            raise PlanError(f"{folder.path} has begun and keeps its plan; choose another name with --set run.name=…")
        made.write(folder.plan)


def _write_sbatch(terminal: Terminal, given: argparse.Namespace, recipe: Recipe, made: Plan, profile: Profile) -> None:
    from shoestring.stages.plan import write_sbatch

    settings = [part for setting in given.set for part in ("--set", setting)]
    verb = ["train"] if recipe.hmm is None else ["hmm", "fit"]
    command = ["shoestring", *verb, str(given.recipe), *settings]
    write_sbatch(given.sbatch, recipe, made, profile, command, sys.executable)
    terminal.say(f"Slurm script: {given.sbatch}, to be started with: sbatch {given.sbatch}")


def _configurations(terminal: Terminal, recipe: Recipe, profile: Profile, devices: int) -> dict[str, Any]:
    from shoestring.plan.configurations import HEAD, RULE_HEAD, beside_the_rule, configurations

    if recipe.hmm is not None:
        raise PlanError("--configurations: an HMM has no effective batch to split; its rows at a time are in the plan")
    rows, rules = (make(profile, recipe.batch, devices) for make in (configurations, beside_the_rule))
    terminal.table(f"Effective batch of {recipe.batch} rows on {profile.machine.device_name}", HEAD, rows)
    terminal.table("By free memory", RULE_HEAD, rules)
    return {
        "configurations": [dict(zip(HEAD, row)) for row in rows],
        "rule_of_thumb": [dict(zip((*RULE_HEAD[:3], "verdict"), row)) for row in rules],
    }


def _grid(terminal: Terminal, given: argparse.Namespace, time: Interval | None, devices: int | None) -> dict[str, Any]:
    from shoestring.stages.grid import grid
    from shoestring.stages.what_if import plan_runs

    lines = plan_runs(grid(given.recipe, given.set, given.over), devices, given.history)
    rows, total = [], Interval(0.0, 0.0, 0.0)
    for line in lines:
        if line.plan is None or line.plan.seconds is None:
            rows.append((line.name, "", "", "done"))
            continue
        low, high = line.plan.intervals.get("seconds", (line.plan.seconds, line.plan.seconds))
        taken = Interval(low, line.plan.seconds, high)
        total = Interval(*(sum(pair) for pair in zip(total, taken)))
        epochs = "" if line.plan.epochs is None else f"{line.plan.epochs:.3g}"
        how = "estimate" if line.is_estimate else "measured"
        rows.append((line.name, epochs, taken.show(lambda value: Seconds(value).short()), how))
    terminal.table("Runs", ("run", "epochs", "seconds", "how it was got"), rows)
    shown = total.show(lambda value: Seconds(value).short())
    terminal.say(f"{len(lines)} runs, one after the other: {shown}")
    if any(line.is_estimate for line in lines):
        terminal.say(
            "an estimate is the nearest measured run scaled by FLOPs; shoestring measure makes it a measurement"
        )
    told: dict[str, Any] = {
        "runs": [
            {"run": line.name, "estimate": line.is_estimate, "plan": line.plan and line.plan.to_dict()}
            for line in lines
        ],
        "seconds": total.expected,
        "interval": [total.low, total.high],
    }
    if time is not None:
        told["fits"] = total.expected <= time.expected
        terminal.say(_sweep_fits(total.expected, time.expected, [line.plan for line in lines]))
    return told


def _sweep_fits(total: float, time: float, plans: Sequence[Plan | None]) -> str:
    if total <= time:
        return f"fits --time {Seconds(time)}, with {Seconds(time - total).short()} to spare"
    left, count = time, 0
    for seconds in sorted(plan.seconds for plan in plans if plan is not None and plan.seconds is not None):
        left -= seconds
        if left < 0:
            break
        count += 1
    return (
        f"does not fit --time {Seconds(time)}: it takes {Seconds(total - time).short()} more; the {count} shortest "
        f"runs fit, or all of them on {-(-total // time):.0f} machines at once"
    )


def _history(terminal: Terminal, paths: Sequence[Path]) -> dict[str, Any]:
    from shoestring.plan.history import HISTORY_HEAD, errors, history_table, learn
    from shoestring.stages.plan import history_of

    past, left_out = history_of(paths)
    for line in left_out:
        terminal.say(f"left out: {line}")
    terminal.table("Actual against planned", HISTORY_HEAD, history_table(past))
    corrections: dict[str, dict[str, float]] = {}
    for machine, kind in dict.fromkeys(run.teaches for run in past if run.teaches is not None):
        correction = learn(past, machine, kind)
        corrections.setdefault(machine, {})[kind] = correction.factor
        where = f" on machine {machine}" if len({run.machine for run in past}) > 1 else ""
        for told in correction.lines():
            terminal.say(
                f"the next {kind} plan's correction{where}, if its run.folder holds these runs or it is made with "
                f"--history: {told.value} ({told.reason})"
            )
    return {
        "runs": [{"run": run.name, "machine": run.machine, "errors": errors(run)} for run in past],
        "left_out": left_out,
        "corrections": corrections,
    }
