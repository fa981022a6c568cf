"""`shoestring sweep RECIPE`, and `sweep status · cancel · report`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoestring.cli import options

if TYPE_CHECKING:
    from shoestring.core.clock import Clock
    from shoestring.studies.sweep.halving import Method
    from shoestring.studies.sweep.orders import Halving, InOrder
    from shoestring.studies.sweep.results import Against
    from shoestring.studies.sweep.slurm_jobs import Queue
    from shoestring.studies.sweep.states import Standing
    from shoestring.studies.sweep.survey import Survey

SHOWN = 40
"""Lines of a table in the terminal."""
sweep_path = click.argument("folder", type=options.PATH, metavar="SWEEP")


class _Default(click.Group):
    """A group in which the command `run` need not be named."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        return super().resolve_command(ctx, args if args[0] in self.commands else ["run", *args])


@click.group(cls=_Default, context_settings={"ignore_unknown_options": True}, subcommand_metavar="RECIPE | COMMAND …")
def sweep() -> None:
    """Many runs of one recipe, with their time said before.

    `shoestring sweep RECIPE` is short for `shoestring sweep run RECIPE`.
    """


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What `sweep run` is asked for."""

    recipe: Path
    overrides: tuple[str, ...] = ()
    over: tuple[str, ...] = ()
    zipped: tuple[str, ...] = ()
    seeds: int | None = None
    random: int | None = None
    sampler: str | None = None
    trials: int | None = None
    time: float | None = None
    halving: Method | None = None
    at_once: int | None = None
    keep_going: bool = False
    dry_run: bool = False
    sbatch: bool = False
    slurm: bool = False
    slurm_options: tuple[str, ...] = ()
    nodes: int = 1
    processes: int = 1
    gpu: str | None = None
    kind: str | None = None
    """The only kind of recipe that is meant."""
    before: tuple[Path, ...] = ()
    """Recipes of the sweeps that this one follows."""


@sweep.command()
@options.recipe_file
@options.overrides
@click.option("--over", multiple=True, metavar="FIELD=A,B,…", help="A run for each value; may be repeated: a grid.")
@click.option(
    "--zip", "zipped", multiple=True, metavar="FIELD=A,B,…",
    help="Values that go together with those of the other --zip: the first of each, the second of each, …",
)  # fmt: skip
@click.option("--seeds", type=click.IntRange(1, 10**6), metavar="N", help="N runs of each setting, with run.seed on.")
@click.option("--random", type=click.IntRange(1), metavar="N", help="N of the settings, drawn by run.seed.")
@click.option(
    "--sampler", metavar="NAME",
    help="Which settings are run: grid (all), random, or one of Optuna's, which learns from those before: optuna:tpe "
    "or optuna:gp (an extra).",
)  # fmt: skip
@click.option("--trials", type=click.IntRange(1), metavar="N", help="With --sampler: so many settings.")
@click.option("--time", type=options.DURATION, metavar="TIME", help="Of the whole sweep; what is left is resumed.")
@click.option(
    "--halving", type=click.Choice(["forecast", "asha"]),
    help="Run all settings for a part of their steps, and only the best third of them on, by the forecast of their "
    "held-out loss, or by the loss so far (ASHA). With --time, as many go on as there is time for.",
)  # fmt: skip
@click.option("--at-once", type=click.IntRange(min=1), metavar="N", help="The most runs at a time.")
@click.option("--keep-going", is_flag=True, help="Leave out runs that cannot be run, instead of starting none.")
@click.option("--dry-run", is_flag=True, help="Say what there is to do and how long it takes, and stop.")
@click.option("--slurm", is_flag=True, help="Submit to Slurm: arrays with a task for each run, then the report.")
@click.option("--sbatch", is_flag=True, help="Write the scripts that --slurm would submit, and stop.")
@click.option(
    "--slurm-option", "slurm_options", multiple=True, metavar="NAME=VALUE",
    help="An option of sbatch, as partition=long; may be repeated. time and mem replace those of the plans.",
)  # fmt: skip
@click.option("--nodes", type=click.IntRange(1, 10**4), default=1, metavar="N", help="Slurm: nodes of each run.")
@click.option(
    "--processes", type=click.IntRange(1, 1000), default=1, metavar="N",
    help="Slurm: processes of each run on each node, by torchrun; on GPUs, one for each.",
)  # fmt: skip
@click.option(
    "--gpu", metavar="NAME", help="Slurm: the GPU of the nodes, where this machine has none; plans are estimates."
)
@options.output
def run(terminal: options.Terminal, **given: Any) -> options.Result:
    """Run a recipe once for each setting, each in a process of its own.

    Settings come from the options, and from the [sweep] table of the recipe. First the plan of every run is shown, with
    their total and what fits --time. Runs that are done are skipped, and others resumed. A run that fails stops no
    other one. The same command continues after any interruption.
    """
    return sweep_in_terminal(Asked(**given), terminal)


def sweep_in_terminal(asked: Asked, terminal: options.Terminal) -> options.Result:
    """Plan a sweep, run it, and print what came of it."""
    from shoestring.cli.hmm import NO_HMM
    from shoestring.cli.sweep_order import drawn, order_of, outlook
    from shoestring.cli.sweep_slurm import check_slurm, on_slurm
    from shoestring.core.clock import Clock
    from shoestring.core.environment import launched, slurm_job
    from shoestring.core.errors import UserError
    from shoestring.studies.sweep.grid import read_grid
    from shoestring.studies.sweep.orders import Halving
    from shoestring.studies.sweep.sampled import Sampled
    from shoestring.studies.sweep.survey import HEAD, Elsewhere, keep, refusal, sentences, survey, table

    clock = Clock()
    slurm_job()  # one that has ended is refused before anything is written
    if launched().world > 1:
        raise UserError("a sweep starts a process for each run; start it without torchrun")
    grid = read_grid(asked.recipe, asked.overrides, asked.over, asked.zipped, asked.seeds, drawn(asked))
    if asked.kind == "hmm" and any(recipe.kind != "hmm" for recipe in grid.recipes):
        raise UserError(NO_HMM)
    elsewhere = None
    if asked.slurm or asked.sbatch:
        given = check_slurm(asked)
        elsewhere = Elsewhere(gpu=asked.gpu, devices=asked.nodes * asked.processes)
    elif asked.slurm_options or asked.nodes > 1 or asked.processes > 1 or asked.gpu is not None:
        raise UserError("--slurm-option, --nodes, --processes and --gpu are for --slurm and --sbatch")
    found = survey(grid, terminal, asked.at_once, asked.time, elsewhere)
    terminal.table(f"Sweep {grid.name}", HEAD, table(found))
    for line in sentences(found):
        terminal.say(line)
    following, before = None, (*asked.before, asked.recipe.resolve())
    if grid.sweep.then is not None:
        following = asked.recipe.parent / grid.sweep.then
        terminal.say(outlook(following, found, before))
    order = order_of(found, asked)
    if isinstance(order, Halving | Sampled):
        terminal.say(order.sentence())
    problems = [f"{each.name}: {why}" for each in found.index.runs if (why := found.problem(each)) is not None]
    if problems and not asked.keep_going:
        raise refusal(problems)
    if asked.dry_run:
        return _planned(found)
    if elsewhere is not None:
        return _planned(found) | on_slurm(found, asked, given, terminal)
    with found.folder.lock():
        for line in keep(found):
            terminal.say(line)
        terminal.say(f"sweep: {found.folder.path}\n")
        _drive(found, order, clock, terminal)
    ended = _ended(found, terminal)
    if following is None or any(run["state"] != "done" for run in ended["runs"]):
        return ended
    terminal.say(f"\nthen {following}")
    after = Asked(recipe=following, at_once=asked.at_once, keep_going=asked.keep_going, before=before)
    return ended | {"then": sweep_in_terminal(after, terminal)}


def _drive(found: Survey, order: InOrder | Halving, clock: Clock, terminal: options.Terminal) -> None:
    from shoestring.core.clock import allocation_end
    from shoestring.runs.runner import SLURM_RESERVE
    from shoestring.studies.sweep.driver import Driver

    allocated = allocation_end(clock)
    ends = [found.limit, None if allocated is None else allocated - SLURM_RESERVE]
    limit = min((end for end in ends if end is not None), default=None)
    driver = Driver(found.folder, found.slots, order, terminal.say, clock, limit)
    total, before = found.total, clock.elapsed()
    driver.note("begun", runs=len(found.to_do), seconds=total.expected, interval=[total.low, total.high])
    try:
        driver.run(found.index)
    finally:
        driver.note("finished", seconds=clock.elapsed() - before)
    if order.left:
        names = ", ".join(each.name for each in order.left[:5]) + (", …" if len(order.left) > 5 else "")
        terminal.say(f"{len(order.left)} runs did not fit the time: {names}; the same command continues with them")


def _planned(found: Survey) -> dict[str, Any]:
    """The object of --dry-run."""
    total, fits = found.total, {run.name for run in found.fits()}
    return {
        "sweep": str(found.folder.path),
        "at_once": found.slots.at_once,
        "seconds": total.expected,
        "interval": [total.low, total.high],
        "runs": [
            {
                "run": run.name,
                "values": run.values,
                "state": found.standings[run.name].state,
                "seconds": found.seconds(run).expected,
                "problem": found.problem(run),
                "fits": run.name in fits,
            }
            for run in found.index.runs
        ],
    }


def _ended(found: Survey, terminal: options.Terminal) -> dict[str, Any]:
    """Print the plan against what happened; raises Fault where a run failed."""
    from shoestring.core.errors import Fault
    from shoestring.core.units import counted
    from shoestring.studies.sweep.states import standings

    now = standings(found.folder, found.index)
    head = ("run", "planned", "actual", "difference", "held-out loss")
    planned = {name: each.seconds.expected for name, each in found.forecasts.items()}
    terminal.table("Plan against actual", head, _against(now, planned))
    terminal.say(f"what came of it: shoestring sweep report {found.folder.path}")
    if failed := [each for each in now if each.state == "failed"]:
        lines = "\n  ".join(f"{each.run.name}: {each.why}" for each in failed)
        raise Fault(f"{counted(len(failed), 'run')} of {len(now):,} failed; the same command tries again\n  {lines}")
    return _standing_json(found.folder.path, now)


def _against(now: Sequence[Standing], planned: dict[str, float]) -> list[tuple[str, ...]]:
    from shoestring.core.units import Seconds

    lines: list[tuple[str, ...]] = []
    for each in sorted(now, key=lambda standing: (standing.loss is None, standing.loss)):
        if each.outcome is None:
            lines.append((each.run.name, "", each.state, "", "" if each.loss is None else f"{each.loss:.4f}"))
            continue
        expected, actual = planned.get(each.run.name) or (each.plan and each.plan.seconds), each.outcome.seconds
        change = f"{actual / expected - 1:+.1%}" if expected else "unknown"
        shown = Seconds(expected).short() if expected else "unknown"
        lines.append((each.run.name, shown, Seconds(actual).short(), change, f"{each.outcome.loss:.4f}"))
    return lines


@sweep.command()
@sweep_path
@options.output
def status(folder: Path, terminal: options.Terminal) -> options.Result:
    """Show how the runs of a sweep stand, from their folders."""
    from collections import Counter

    from shoestring.core.sweep_folder import SweepFolder
    from shoestring.core.units import counted
    from shoestring.studies.sweep.slurm_jobs import queue
    from shoestring.studies.sweep.states import MEANINGS, standings

    opened = SweepFolder.open(folder)
    now, queued = standings(opened), queue(opened)
    rows = [
        (
            each.run.name,
            each.state,
            "" if each.steps is None and not each.step else f"{each.share:.0%}",
            "" if each.loss is None else f"{each.loss:.4f}",
            str(queued.runs[each.run.name]) if each.run.name in queued.runs else each.why or MEANINGS[each.state],
        )
        for each in now
    ]
    terminal.table(f"Sweep {folder.name}", ("run", "is", "done", "held-out loss", ""), rows)
    counts = Counter(each.state for each in now)
    terminal.say(f"{counted(len(now), 'run')}: {', '.join(f'{counts[state]} {state}' for state in counts)}")
    if queued.jobs:
        terminal.say(", ".join([f"{len(queued.runs)} of them are queued or run on Slurm", *queued.others]))
    return _standing_json(folder, now, queued)


def _standing_json(folder: Path, now: Sequence[Standing], queued: Queue | None = None) -> dict[str, Any]:
    tasks = {} if queued is None else queued.runs
    return {
        "sweep": str(folder),
        "jobs": [] if queued is None else list(queued.jobs),
        "runs": [
            {
                "job": tasks[each.run.name]._asdict() if each.run.name in tasks else None,
                "run": each.run.name,
                "values": each.run.values,
                "state": each.state,
                "share": each.share,
                "loss": each.loss,
                "seconds": each.outcome and each.outcome.seconds,
                "why": each.why or None,
            }
            for each in now
        ],
    }


@sweep.command()
@sweep_path
@options.output
def cancel(folder: Path, terminal: options.Terminal) -> options.Result:
    """Stop a sweep: its runs save first, and `shoestring sweep` resumes them. Its jobs on Slurm are cancelled."""
    from shoestring.core.sweep_folder import SweepFolder
    from shoestring.studies.sweep.driver import cancel as stop
    from shoestring.studies.sweep.slurm_jobs import cancel_jobs

    opened = SweepFolder.open(folder)
    jobs = cancel_jobs(opened)
    found = stop(opened)
    told = [*(["the driver"] if found.driver else []), *(f"job {number}" for number in jobs), *found.runs]
    terminal.say(f"told to save and stop: {', '.join(told)}" if told else "nothing is running on this host")
    for line in found.elsewhere:
        terminal.say(f"not told, because it is elsewhere: {line}")
    return {
        "sweep": str(folder),
        "jobs": jobs,
        "driver": found.driver,
        "runs": list(found.runs),
        "elsewhere": list(found.elsewhere),
    }


@sweep.command()
@sweep_path
@click.option("--by", default="loss", show_default=True, metavar="RESULT", help="What the best is best in.")
@click.option("--columns", default="", metavar="FIELD,…", help="More fields of the recipe, or results, in the tables.")
@click.option("--heat", metavar="X,Y", help="The fields of the heat map; default: the first two that are swept.")
@click.option(
    "--against", type=click.Choice(["tokens", "seconds", "flops"]), default="tokens", show_default=True,
    help="What the curves are drawn over.",
)  # fmt: skip
@click.option("--parquet", type=options.PATH, metavar="FILE", help="Write the table of runs.csv as Parquet too.")
@options.output
def report(
    folder: Path,
    by: str,
    columns: str,
    heat: str | None,
    against: Against,
    parquet: Path | None,
    terminal: options.Terminal,
) -> options.Result:
    """Show what came of a sweep: its settings, best first, with standard errors over seeds.

    Writes report.html (sortable tables, a heat map, curves, parallel coordinates) and runs.csv into its folder.
    """
    from shoestring.core.errors import UserError
    from shoestring.core.schema import encode
    from shoestring.core.sweep_folder import SweepFolder
    from shoestring.studies.sweep.report import setting_table, summary, write_report
    from shoestring.studies.sweep.results import RESULTS, read_report, write_csv, write_parquet

    opened = SweepFolder.open(folder)
    if parquet is not None:
        options.check_outputs({"--parquet": parquet}, [opened.index])
    fields = [name.strip() for name in columns.split(",") if name.strip()]
    pair = [name.strip() for name in heat.split(",")] if heat else []
    if heat and len(pair) != 2:
        raise UserError(f"--heat {heat}: name two fields, as in --heat hmm.states,data.length")
    found = read_report(opened, by, fields, against)
    if parquet is not None:
        write_parquet(found, parquet)
    write_csv(found, opened.table)
    write_report(found, opened, pair)
    head, rows = setting_table(found)
    terminal.table(f"Settings of {found.name}, best first", head, rows[:SHOWN])
    if len(rows) > SHOWN:
        terminal.say(f"… and {len(rows) - SHOWN:,} more; all of them are in {opened.table}")
    terminal.say(summary(found, opened))
    terminal.say(f"page: {opened.report}, table: {opened.table}")
    return {
        "sweep": str(folder),
        "page": str(opened.report),
        "table": str(opened.table),
        "by": by,
        "settings": [
            {"values": each.values, "mean": each.mean, "error": each.error, "runs": [row.name for row in each.rows]}
            for each in found.settings
        ],
        "runs": [
            {"run": row.name, "state": row.state, "values": encode(row.values)}
            | {name: row.results[name] for name in RESULTS}
            for row in found.rows
        ],
    }
