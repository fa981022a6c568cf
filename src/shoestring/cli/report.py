"""`shoestring report`."""

from __future__ import annotations

from shoestring.cli.options import AsJson, RunPath, Verbose


def report(run: RunPath, as_json: AsJson = False, verbose: Verbose = False) -> None:
    """Write the page of a run from its records.

    The run may be finished or still going.
    """
    from shoestring.cli.terminal import Terminal, print_json
    from shoestring.core.facts import Outcome
    from shoestring.core.run_folder import RunFolder
    from shoestring.report.page import draw, write_page

    folder = RunFolder.open(run)
    outcome = Outcome.read(folder.done) if folder.done.is_file() else None
    write_page(folder, draw(folder), outcome)
    Terminal(to_stderr=as_json).say(f"page: {folder.report}")
    if as_json:
        print_json({"page": str(folder.report)})
