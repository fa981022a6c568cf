"""`shoestring drift`."""

from __future__ import annotations

from pathlib import Path

import click

from shoestring.cli import options


@click.command()
@click.argument("runs", nargs=-1, required=True, type=options.PATH, metavar="RUN…")
@click.option("--out", type=options.PATH, default="drift", show_default=True, help="Folder to write to.")
@options.output
def drift(runs: tuple[Path, ...], out: Path, terminal: options.Terminal) -> options.Result:
    """Show how fast runs with [evaluate] overlap drift from their first weights.

    Runs that differ in run.seed alone are one group. Writes overlap.csv, summary.json and drift.html: overlap, KL and
    held-out loss by step, the steps after which half of the overlap is left, and its decrease in 100 steps (a
    least-squares line). Says which group drifts faster, by the steps to half where a group fell so far.
    """
    from shoestring.studies.drift import table_of, write_drift

    found = write_drift(runs, out)
    terminal.table("Drift from the first weights", *table_of(found["groups"]))
    terminal.say(found["verdict"])
    terminal.say(f"wrote {out / 'overlap.csv'}, summary.json and drift.html")
    return found
