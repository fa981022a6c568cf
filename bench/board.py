"""How long the board takes with 200 runs of 5,000 lines each, and a sweep of as many more, in a real Chromium.

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


def measure(root: Path, runs: int) -> dict[str, float]:
    from playwright.sync_api import sync_playwright

    found: dict[str, float] = {}
    started = time.perf_counter()

    def note(what: str) -> None:
        nonlocal started
        found[what] = time.perf_counter() - started
        started = time.perf_counter()

    arguments = [sys.executable, "-m", "shoestring", "board", str(root), "--port", "0"]
    board = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    assert board.stdout is not None
    try:
        address = re.findall(r"http\S+", board.stdout.readline())[0]
        until(lambda: answers(address.partition("?")[0]))
        note("from the command to the first answer")
        with sync_playwright() as engine:
            browser = engine.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1280, "height": 1000})
            started = time.perf_counter()
            page.goto(address)
            page.wait_for_selector("#runs tbody tr")
            note(f"the list of {2 * runs} runs")
            page.wait_for_selector("canvas")
            note("then the curves of the first six")
            until(lambda: page.evaluate("![...rows.values()].some((row) => row.state === 'reading')"))
            note("then until every line is read")
            page.wait_for_timeout(1500)
            started = time.perf_counter()
            page.click("#all")
            until(lambda: page.evaluate(f"!busy && plot.data.length === {2 * 2 * runs + 1}"))
            note(f"the curves of all {2 * runs}")
            page.select_option("#by", "seconds")
            until(lambda: page.evaluate("!busy && plot.axes[0].label.startsWith('seconds')"))
            note("the same by seconds")
            with (root / "run-000/metrics.jsonl").open("a") as file:
                file.write('{"step": 99999999, "tokens": 1, "loss": 2.0}\n')
            until(lambda: page.evaluate("rows.get('run-000').step === 99999999"))
            note("a new line, until it is in the list")
            page.click("tr[data-sweep]")
            until(lambda: page.evaluate(f"document.querySelectorAll('#heat rect').length === {runs}"))
            note(f"the figures and the table of a sweep of {runs} runs")
            browser.close()
    finally:
        board.terminate()
        board.wait()
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--lines", type=int, default=5000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_runs(Path(folder), given.runs, given.lines)
        write_sweep(Path(folder), given.runs)
        load, cores = os.getloadavg()[0], os.cpu_count()
        seconds = measure(Path(folder), given.runs)
    values = {"runs": given.runs, "lines": given.lines, "load": load, "cores": cores, "seconds": seconds}
    record.write("board", values)


if __name__ == "__main__":
    main()
