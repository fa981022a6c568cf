"""How long the board takes with 200 runs of 5,000 lines each, and with a sweep of 200, in a real Chromium.

python bench/board.py [--runs 200] [--lines 5000]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import record

from shoestring.core.results import Outcome
from shoestring.core.run_folder import RunFolder
from shoestring.core.sweep_folder import SweepFolder, SweepIndex, SweepRun

RECIPE = '[run]\nname = "{name}"\n[budget]\nsteps = {steps}\n[model]\nfamily = "llama"\nwidth = {width}\n'


def write_runs(root: Path, runs: int, lines: int) -> None:
    """Runs that were killed: of finished ones the board reads fewer lines."""
    draw = random.Random(0)
    for number in range(runs):
        folder = root / f"run-{number:03d}"
        folder.mkdir()
        recipe = RECIPE.format(name=folder.name, steps=10 * lines, width=16 * (1 + number % 4))
        (folder / "recipe.toml").write_text(recipe)
        with (folder / "metrics.jsonl").open("w") as metrics, (folder / "timings.jsonl").open("w") as timings:
            timings.write('{"step": 0, "elapsed": 2.0, "event": "start"}\n')
            for line in range(1, lines + 1):
                step, loss = 10 * line, 2 + 3 / (1 + line / 50) ** 0.5 + draw.gauss(0, 0.05) + 0.002 * number
                values = {"step": step, "tokens": 128 * step, "loss": loss, "lr": 1e-3, "grad_norm": draw.random()}
                metrics.write(json.dumps(values) + "\n")
                if line % (lines // 10) == 0:
                    metrics.write(json.dumps({"step": step, "heldout_loss": loss, "heldout_error": 0.02}) + "\n")
                timings.write(json.dumps({"step": step, "elapsed": 2 + line / 10, "tokens_per_second": 12800.0}) + "\n")


def write_sweep(root: Path, runs: int) -> None:
    """Finished runs over two fields, ten widths each; their lines are few."""
    members = []
    for number in range(runs):
        lr, width = 1e-4 * (1 + number // 10), 16 * (1 + number % 10)
        run = RunFolder(root / "grid" / f"{number:03d}")
        run.path.mkdir(parents=True)
        run.recipe.write_text(RECIPE.format(name=run.path.name, steps=100, width=width) + f"[train]\nlr = {lr:g}\n")
        run.metrics.write_text(
            json.dumps({"step": 100, "heldout_loss": 2 + number / runs, "heldout_error": 0.02}) + "\n"
        )
        run.timings.write_text('{"step": 0, "elapsed": 2.0, "event": "start"}\n')
        Outcome(
            steps=100, tokens=12_800, seconds=60.0, segments=1, tokens_per_second=128.0, disk_bytes=10, peak_bytes=None,
            loss=2 + number / runs, shortened=None,
        ).write(run.done)  # fmt: skip
        values = {"train.lr": lr, "model.width": width}
        members.append(SweepRun(name=run.path.name, folder=f"../../grid/{run.path.name}", values=values))
    folder = SweepFolder(root / "sweeps" / "grid")
    folder.path.mkdir(parents=True)
    SweepIndex(name="grid", fields=("train.lr", "model.width"), runs=tuple(members)).write(folder.index)


def until(true: Callable[[], Any]) -> None:
    while not true():
        time.sleep(0.01)


def answers(address: str) -> bool:
    try:
        urllib.request.urlopen(address, timeout=5)  # noqa: S310 (our own server)
    except urllib.error.HTTPError:  # it wants the token
        return True
    except OSError:
        return False
    return True


class Page:
    """The page of a board in a browser, and the seconds of what is waited for."""

    def __init__(self, root: Path):
        self.found: dict[str, float] = {}
        self._root, self._started = root, time.perf_counter()

    def __enter__(self) -> Page:
        from playwright.sync_api import sync_playwright

        arguments = [sys.executable, "-m", "shoestring", "board", str(self._root), "--port", "0"]
        self._board = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
        assert self._board.stdout is not None
        address = re.findall(r"http\S+", self._board.stdout.readline())[0]
        until(lambda: answers(address.partition("?")[0]))
        self.note("from the command to the first answer")
        self._engine = sync_playwright().start()
        browser = self._engine.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        self.page = browser.new_page(viewport={"width": 1280, "height": 1000})
        self.begin()
        self.page.goto(address)
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.stop()
        self._board.terminate()
        self._board.wait()

    def begin(self) -> None:
        self._started = time.perf_counter()

    def until(self, true: str) -> None:
        until(lambda: self.page.evaluate(true))

    def note(self, what: str) -> None:
        self.found[what] = time.perf_counter() - self._started
        self.begin()


def of_runs(root: Path, runs: int) -> dict[str, float]:
    with Page(root) as board:
        board.page.wait_for_selector("#runs tbody tr")
        board.note(f"the list of {runs} runs")
        board.page.wait_for_selector("canvas")
        board.note("then the curves of the first six")
        board.until("![...rows.values()].some((row) => row.state === 'reading')")
        board.note("then until every line is read")
        board.page.wait_for_timeout(1500)
        board.begin()
        board.page.click("#all")
        board.until(f"!busy && plot.data.length === {2 * runs + 1}")
        board.note(f"the curves of all {runs}")
        board.page.select_option("#by", "seconds")
        board.until("!busy && plot.axes[0].label.startsWith('seconds')")
        board.note("the same by seconds")
        with (root / "run-000/metrics.jsonl").open("a") as file:
            file.write('{"step": 99999999, "tokens": 1, "loss": 2.0}\n')
        board.until("rows.get('run-000').step === 99999999")
        board.note("a new line, until it is in the list")
        return board.found


def of_a_sweep(root: Path, runs: int) -> dict[str, float]:
    with Page(root) as board:
        board.until(f"document.querySelectorAll('tr[data-sweep]').length === 1 && rows.size === {runs}")
        board.begin()
        board.page.click("tr[data-sweep]")
        board.until(f"document.querySelectorAll('#heat rect').length === {runs}")
        board.note(f"the figures and the table of a sweep of {runs} runs")
        return {name: seconds for name, seconds in board.found.items() if "sweep" in name}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--lines", type=int, default=5000)
    given = parser.parse_args()
    load, cores = os.getloadavg()[0], os.cpu_count()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as grid:
        write_runs(Path(folder), given.runs, given.lines)
        write_sweep(Path(grid), given.runs)
        seconds = of_runs(Path(folder), given.runs) | of_a_sweep(Path(grid), given.runs)
    values = {"runs": given.runs, "lines": given.lines, "load": load, "cores": cores, "seconds": seconds}
    record.write("board", values)


if __name__ == "__main__":
    main()
