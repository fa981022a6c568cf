"""`shoestring doctor`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from shoestring.cli import options


@click.command()
@click.argument("folder", type=options.PATH, default="runs")
@options.output
def doctor(folder: Path, terminal: options.Terminal) -> options.Result:
    """Look at Python, torch, GPU, Triton, disk, Slurm and the extras, and say how to mend what is missing.

    FOLDER is where runs will be written. A few megabytes are written there for a moment, to see how fast it is.
    """
    from shoestring.probe.doctor import examine

    found = list(examine(folder))
    rows = [(check.what, check.state, check.found) for check in found]
    terminal.table("This machine", ("", "state", "found"), rows)
    mended = [f"{check.what}: {check.mend}" for check in found if check.mend]
    terminal.say("\n".join(mended) if mended else "nothing to mend")
    return {"checks": [asdict(check) for check in found]}
