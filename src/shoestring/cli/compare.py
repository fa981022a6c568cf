"""`shoestring compare`."""

from __future__ import annotations

from pathlib import Path

import click

from shoestring.cli import options


@click.command()
@click.argument("runs", nargs=-1, required=True, type=options.PATH, metavar="RUN… | SWEEP…")
@options.output
def compare(runs: tuple[Path, ...], terminal: options.Terminal) -> options.Result:
    """Say whether finished runs differ in their held-out loss.

    The first run is compared with each of the others. Runs that differ in run.seed alone are one kind, with its seeds
    as replicates. Where all have scored the same held-out rows, as runs on one text do, they are compared row by row.
    Shown are the difference with its 95 % interval, and how many more seeds would settle it. One run of each
    says whether these two models differ on such rows, and not what another seed changes. `law compare` compares curves
    over compute.
    """
    from shoestring.studies.paired import HEAD, compare_paired

    found = compare_paired(runs)
    terminal.table("Held-out loss, paired over rows", HEAD, found.rows())
    for line in found.sentences():
        terminal.say(line)
    return {"comparisons": found.to_json()}
