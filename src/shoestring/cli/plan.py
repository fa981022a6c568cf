"""`shoestring plan`."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoestring.cli import options
from shoestring.core.errors import PlanError
from shoestring.core.files import whole_file
from shoestring.core.records import Plan, Profile
from shoestring.core.units import Interval, Seconds, counted, within
from shoestring.planning.by_hand import option, plan_by_hand
from shoestring.planning.figures import BUDGETS, FIGURES, MARGIN, OPTIONS, Option
from shoestring.planning.lines import with_margin

if TYPE_CHECKING:
    from shoestring.core.recipe import Recipe
    from shoestring.core.run_folder import RunFolder
    from shoestring.runs.task import Task

_NEEDS_RECIPE = ("overrides", "over", "configurations", "sbatch", "profile", "gpu", "law", "simulate")
_NEEDS_PROFILE = ("what_if", "configurations", "sbatch", "law", "profile", "history")
_TABLES = ("what_if", "configurations", "over", "simulate")
"""Options that print a table in place of one plan."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """The command line without figures."""

    recipe: Path | None
    history: tuple[Path, ...]
    what_if: tuple[str, ...]
    overrides: tuple[str, ...]
    profile: Path | None
    gpu: str | None
    vocabulary: int | None
    law: str | None
    over: tuple[str, ...]
    configurations: bool
    sbatch: Path | None
    simulate: str | None

    def given(self, names: Sequence[str]) -> list[str]:
        """Those of the named options that are given, as they are written."""
        return ["--set" if name == "overrides" else option(name) for name in names if getattr(self, name)]


class _Sections(click.Command):
    """A command whose help shows options under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                sections.setdefault(getattr(parameter, "section", "Options"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


class _Option(click.Option):
    """An option under a heading of the help."""

    def __init__(self, *args: Any, section: str, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.section = section


def _with_figures(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for every figure."""
    groups = {
        "Figures by hand; those with .. may be intervals, such as 200M..400M": OPTIONS,
        "Budgets by hand; the tightest binds": BUDGETS,
    }
    for section, known in groups.items():
        for name, figure in reversed(list(known.items())):
            shown = f"{figure.unit}[..{figure.unit}]" if figure.may_be_interval else figure.unit
            add = click.option(option(name), name, cls=_Option, section=section, metavar=shown, help=figure.meaning)
            command = add(command)
    return command


def _recipe_option(*names: str, **settings: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(*names, cls=_Option, section="With a recipe", **settings)


@click.command(cls=_Sections)
@click.argument("recipe", type=options.PATH, metavar="[RECIPE]", required=False)
@click.option(
    "--history", multiple=True, type=options.PATH, metavar="RUNS",
    help="Compare the plans of these runs with what happened. With a recipe: correct its plan by these runs instead of "
    "those in run.folder. May be repeated.",
)  # fmt: skip
@click.option(
    "--what-if", multiple=True, metavar="NAME=VALUE",
    help="Show the plan with and without this change: devices=2, section.field=value, or a figure by hand.",
)  # fmt: skip
@_recipe_option(
    "--set", "overrides", multiple=True, metavar="SECTION.FIELD=VALUE", help="Override a field of the recipe."
)
@_recipe_option("--profile", type=options.PATH, metavar="FILE", help="A profile.json measured elsewhere.")
@_recipe_option("--gpu", metavar="NAME", help="Estimate the plan for this GPU; nothing is measured or written.")
@_recipe_option(
    "--vocabulary", type=options.VOCABULARY, metavar="COUNT", help="Vocabulary for --gpu; default: the tokenizer's."
)
@_recipe_option(
    "--law", metavar="FILE", help='Compare the size of the model with a law: a file of `law fit`, or "chinchilla".'
)
@_recipe_option("--over", multiple=True, metavar="FIELD=A,B,…", help="Plan one run per value, and add up their time.")
@_recipe_option("--configurations", is_flag=True, help="Show every split of the batch, beside the rule of thumb.")
@_recipe_option(
    "--simulate", metavar="CLUSTER",
    help="Play every parallel.strategy on a virtual clock: workers=64,slow=0.1:3x,bandwidth=1Gb; step=2s in place "
    "of the measured passes over all rows of a step.",
)  # fmt: skip
@_recipe_option("--sbatch", type=options.PATH, metavar="FILE", help="Write a Slurm script for this plan.")
@_with_figures
@options.output
def plan(terminal: options.Terminal, **given: Any) -> options.Result:
    """Plan a run, with a reason for every number.

    A plan is made from a recipe and its profile, or from figures given by hand.
    """
    figures = {name: _figure(name, given[name], FIGURES[name]) for name in FIGURES if given[name] is not None}
    arguments = Arguments(**{name: value for name, value in given.items() if name not in FIGURES})
    if arguments.recipe is not None:
        return _of_recipe(terminal, figures, arguments.recipe, arguments)
    if arguments.history:
        return _history(terminal, arguments.history)
    return _by_hand(terminal, figures, arguments)


def _figure(name: str, text: str, figure: Option) -> Interval:
    if ".." in text and not figure.may_be_interval:
        raise PlanError(f"{option(name)} {text}: must be one value, not an interval")
    try:
        return Interval.parse(text, lambda part: within(float(figure.read(part)), part))
    except ValueError as cause:
        raise PlanError(f"{option(name)} {text}: {cause}") from cause


def _by_hand(terminal: options.Terminal, figures: dict[str, Interval], arguments: Arguments) -> dict[str, Any]:
    if names := arguments.given(_NEEDS_RECIPE):
        raise PlanError(f"{', '.join(names)}: give the recipe too, as in shoestring plan RECIPE {names[0]} …")
    if not arguments.what_if:
        made = plan_by_hand(figures)
        terminal.planned(made)
        return made.to_dict()
    changed = dict(figures)
    for change in arguments.what_if:
        name, equals, text = change.partition("=")
        name = name.strip("-").replace("-", "_")
        if not equals or name not in FIGURES:
            raise PlanError(f"--what-if {change}: write NAME=VALUE with a figure by hand, as in --what-if devices=2")
        changed[name] = _figure(name, text, FIGURES[name])
    return _compared(terminal, lambda: plan_by_hand(figures), plan_by_hand(changed), [], arguments.what_if)


def _compared(
    terminal: options.Terminal, plan_now: Callable[[], Plan], then: Plan, notes: Sequence[str], changes: Sequence[str]
) -> dict[str, Any]:
    """Show the plan with changes beside the one without, which may not fit."""
    from shoestring.planning.alternatives import COMPARISON_HEAD, compare

    now: Plan | None = None
    try:
        now = plan_now()
    except PlanError as refusal:
        notes = [*notes, f"without the change: {refusal}"]
    terminal.table(f"What if {', '.join(changes)}", COMPARISON_HEAD, compare(now, then))
    for note in notes:
        terminal.say(note)
    return {"now": None if now is None else now.to_dict(), "then": then.to_dict(), "notes": list(notes)}


def _of_recipe(
    terminal: options.Terminal, figures: dict[str, Interval], recipe: Path, arguments: Arguments
) -> dict[str, Any]:
    from shoestring.core import recipe_file
    from shoestring.core.run_folder import RunFolder
    from shoestring.runs.plan import measured_profile, own_profile_of, plan_task
    from shoestring.runs.settle import settled, speed_of

    allowed = {"devices", "time"} if arguments.over else {"devices", MARGIN}
    if names := [option(name) for name in figures if name not in allowed]:
        raise PlanError(f"{', '.join(names)}: only without a recipe; with one, use --set, as in --set budget.time=2h")
    if arguments.sbatch and (others := arguments.given(_TABLES)):
        raise PlanError(f"--sbatch and {', '.join(others)}: a script is of one plan; leave one of them out")
    if arguments.sbatch is not None:
        read = [path for path in (recipe, arguments.profile, *arguments.history) if path is not None]
        options.check_outputs({"--sbatch": arguments.sbatch}, read)
    count = figures["devices"].expected if "devices" in figures else None
    if count is not None and count < 1:
        raise PlanError(f"--devices {count:g}: must be at least 1")
    wanted_devices = None if count is None else int(count)
    if arguments.over:
        return _grid(terminal, recipe, arguments, figures.get("time"), wanted_devices)
    loaded = recipe_file.load(recipe, arguments.overrides)
    margin = figures[MARGIN].expected if MARGIN in figures else None
    if margin is not None and (others := arguments.given(_TABLES)):
        raise PlanError(f"--margin and {', '.join(others)}: a margin is of one plan; leave one of them out")
    if arguments.gpu is not None:
        return _on_gpu(terminal, loaded, wanted_devices or 1, arguments.gpu, arguments, margin)
    folder = RunFolder.of(loaded)
    there = measured_profile(folder, arguments.profile)
    devices = wanted_devices or max(there.devices, loaded.workers)
    task = settled(loaded, folder, devices, speed=speed_of(there))
    profile = own_profile_of(task, there, arguments.profile or folder.profile)

    def make() -> Plan:
        return plan_task(task, profile, devices=devices, history=arguments.history)

    if arguments.what_if:
        from shoestring.studies.what_if import what_if

        then = what_if(recipe, arguments.overrides, arguments.what_if, profile, devices, arguments.history)
        return _compared(terminal, make, then.plan, then.notes, arguments.what_if)
    if arguments.simulate is not None:
        from shoestring.cli.simulate import simulate

        return simulate(terminal, task.recipe, profile, arguments.simulate, make)
    if not arguments.configurations:
        _check_free(folder, loaded)
    made = make()
    if arguments.configurations:
        return made.to_dict() | _configurations(terminal, task.recipe, profile, devices)
    if arguments.law is not None:
        from shoestring.studies.sizing import read_law, size_lines

        law = read_law(None if arguments.law == "chinchilla" else Path(arguments.law))
        made = replace(made, lines=(*made.lines, *size_lines(law, task.recipe, profile, made)))
    made = made if margin is None else with_margin(made, margin)
    with contextlib.ExitStack() as script:  # it appears where the plan was written
        if arguments.sbatch is not None:
            from shoestring.runs.plan import make_sbatch

            settings = [part for setting in arguments.overrides for part in ("--set", setting)]
            command = ["shoestring", *task.command, str(recipe), *settings]
            text = make_sbatch(task.recipe, made, profile, command, sys.executable)
            script.enter_context(whole_file(arguments.sbatch)).write(text.encode())
        _write(folder, loaded, task, made)
    terminal.planned(made)
    terminal.say(f"plan: {folder.plan}")
    if arguments.sbatch is not None:
        terminal.say(f"Slurm script: {arguments.sbatch}; start it with: sbatch {arguments.sbatch}")
    return made.to_dict()


def _on_gpu(
    terminal: options.Terminal, recipe: Recipe, devices: int, gpu: str, arguments: Arguments, margin: float | None
) -> dict[str, Any]:
    """Show an estimate and write nothing: the run itself is planned where it runs."""
    from shoestring.runs.estimate import plan_on_gpu
    from shoestring.runs.prepare import vocabulary_of

    if names := arguments.given(_NEEDS_PROFILE):
        raise PlanError(f"--gpu and {', '.join(names)}: that needs a profile; measure with: shoestring measure RECIPE")
    vocabulary = vocabulary_of(recipe, arguments.vocabulary)
    ways = _ways(terminal, recipe, vocabulary, gpu)  # first: they say what to do where the plan does not fit
    made = plan_on_gpu(recipe, vocabulary, gpu, devices)
    made = made if margin is None else with_margin(made, margin)
    terminal.planned(made)
    return made.to_dict() | ways


def _ways(terminal: options.Terminal, recipe: Recipe, vocabulary: int, gpu: str) -> dict[str, Any]:
    """Show the ways to tune a trained model there."""
    from shoestring.core.family import family_of
    from shoestring.runs.tuning_ways import HEAD, nearest, ways_on_gpu

    if recipe.autos or recipe.kind == "hmm" or not family_of(recipe.model).begins_trained(recipe.model):
        return {}
    ways = ways_on_gpu(recipe, vocabulary, gpu)
    terminal.table(f"Ways to tune on {gpu}, estimated", HEAD, [way.row() for way in ways])
    terminal.say(nearest(ways, gpu))
    return {"ways": [way.to_json() for way in ways], "nearest": nearest(ways, gpu)}


def _check_free(folder: RunFolder, recipe: Recipe) -> None:
    """Refuse a run that has begun. It is asked before the plan too: that of an HMM makes its rows."""
    folder.check_recipe(recipe)
    if folder.has_begun and folder.plan.is_file():
        raise PlanError(f"{folder.path} has begun and keeps its plan; choose another name with --set run.name=…")


def _write(folder: RunFolder, recipe: Recipe, task: Task, made: Plan) -> None:
    from shoestring.runs.settle import keep_choices

    with folder.lock():
        _check_free(folder, recipe)
        folder.claim(recipe)
        keep_choices(task, folder)
        folder.write(folder.plan, made)


def _configurations(terminal: options.Terminal, recipe: Recipe, profile: Profile, devices: int) -> dict[str, Any]:
    from shoestring.planning.alternatives import RULE_HEAD, SPLIT_HEAD, beside_the_rule, configurations

    recipe.need_network("--configurations: an HMM has no effective batch to split; its micro-batch is in the plan")
    rows, rules = (make(profile, recipe.batch, devices) for make in (configurations, beside_the_rule))
    terminal.table(
        f"Effective batch of {counted(recipe.batch, 'row')} on {profile.machine.device_name}", SPLIT_HEAD, rows
    )
    terminal.table("By free memory", RULE_HEAD, rules)
    return {
        "configurations": [dict(zip(SPLIT_HEAD, row)) for row in rows],
        "rule_of_thumb": [dict(zip((*RULE_HEAD[:3], "verdict"), row)) for row in rules],
    }


def _grid(
    terminal: options.Terminal, recipe: Path, arguments: Arguments, time: Interval | None, devices: int | None
) -> dict[str, Any]:
    from shoestring.studies.sweep.grid import read_grid
    from shoestring.studies.what_if import plan_runs

    recipes = read_grid(recipe, arguments.overrides, arguments.over).recipes
    lines = plan_runs(recipes, devices, arguments.history)
    rows, total = [], Interval(0.0, 0.0, 0.0)
    for line in lines:
        if line.plan is None or line.plan.seconds is None:
            rows.append((line.name, "", "", "done"))
            continue
        low, high = line.plan.intervals.get("seconds", (line.plan.seconds, line.plan.seconds))
        seconds = Interval(low, line.plan.seconds, high)
        total = Interval(*(sum(pair) for pair in zip(total, seconds)))
        epochs = "" if line.plan.epochs is None else f"{line.plan.epochs:.3g}"
        rows.append((line.name, epochs, _shown(seconds), "estimate" if line.is_estimate else "measured"))
    terminal.table("Runs", ("run", "epochs", "seconds", "from"), rows)
    terminal.say(f"{counted(len(lines), 'run')}, one after the other: {_shown(total)}")
    if any(line.is_estimate for line in lines):
        terminal.say(
            "an estimate is the nearest measured run scaled by FLOPs; shoestring measure makes it a measurement"
        )
    result: dict[str, Any] = {
        "runs": [
            {"run": line.name, "estimate": line.is_estimate, "plan": line.plan and line.plan.to_dict()}
            for line in lines
        ],
        "seconds": total.expected,
        "interval": [total.low, total.high],
    }
    if time is not None:
        result["fits"] = total.expected <= time.expected
        terminal.say(_sweep_fits(total.expected, time.expected, [line.plan for line in lines]))
    return result


def _shown(seconds: Interval) -> str:
    return seconds.show(lambda value: Seconds(value).short())


def _sweep_fits(total: float, time: float, plans: Sequence[Plan | None]) -> str:
    if total <= time:
        return f"fits --time {Seconds(time)}, with {Seconds(time - total).short()} to spare"
    each = sorted(plan.seconds for plan in plans if plan is not None and plan.seconds is not None)
    count = sum(end <= time for end in itertools.accumulate(each))
    return (
        f"does not fit --time {Seconds(time)}: it takes {Seconds(total - time).short()} more; the {count} shortest "
        f"runs fit, or all of them on {-(-total // time):.0f} machines at once"
    )


def _history(terminal: options.Terminal, paths: Sequence[Path]) -> dict[str, Any]:
    from shoestring.planning.history import HISTORY_HEAD, errors, history_table, learn
    from shoestring.runs.plan import history_of

    past, left_out = history_of(paths)
    for line in left_out:
        terminal.say(f"left out: {line}")
    terminal.table("Actual against planned", HISTORY_HEAD, history_table(past))
    corrections: dict[str, dict[str, float]] = {}
    for machine, kind in dict.fromkeys(run.teaches for run in past if run.teaches is not None):
        correction = learn(past, machine, kind)
        corrections.setdefault(machine, {})[kind] = correction.factor
        where = f" on machine {machine}" if len({run.machine for run in past}) > 1 else ""
        for factor in correction.lines():
            terminal.say(
                f"the next {kind} plan's correction{where}, if its run.folder holds these runs or it is made with "
                f"--history: {factor.value} ({factor.reason})"
            )
    return {
        "runs": [{"run": run.name, "machine": run.machine, "errors": errors(run)} for run in past],
        "left_out": left_out,
        "corrections": corrections,
    }
