"""`shoestring report`."""

from __future__ import annotations

from pathlib import Path

import click

from shoestring.cli import options


@click.command()
@options.run_path
@options.output
def report(run: Path, terminal: options.Terminal) -> options.Result:
    """Write the page of a run from its records.

    The run may be finished or still going.
    """
    from shoestring.core.run_folder import RunFolder
    from shoestring.core.schema import encode
    from shoestring.report.page import draw, write_page
    from shoestring.report.verdicts import verdicts_of
    from shoestring.track import read_outcome

    folder = RunFolder.open(run)
    outcome = read_outcome(folder)
    write_page(folder, draw(folder), outcome)
    for line in folder.changes():
        terminal.say(f"note: {line}")
    found = verdicts_of(folder, outcome)
    terminal.verdicts(found)
    terminal.say(f"page: {folder.report}")
    return {"page": str(folder.report), "verdicts": encode(found)}
