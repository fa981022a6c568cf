"""Whether a sweep takes as long as it was said to: 12 runs, the forecast before, after each run, and what they took.

    python bench/sweep_total.py [--steps 400] [--runs 12] [--out FOLDER]

It says something only where nothing else uses the machine: other processes slow the runs, and not the forecast. How
much they used is recorded, and how long the driver took to start the next run after one had ended.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import record

from shoestring.core.sweep_folder import SweepFolder
from shoestring.core.units import Seconds
from shoestring.probe.load import load
from shoestring.track import read_lines

RECIPE = """
[run]
name = "total"

[budget]
steps = {steps}

[data]
source = "stories"
tokenizer = "words:200"
length = 64
documents = 2000

[model]
width = 64
layers = 2
heads = 4

[train]
batch = 8
lr = 1e-3

[evaluate]
every = 0.25
"""


def measure(folder: Path, runs: int) -> dict[str, Any]:
    """Run the sweep, and compare."""
    widths = "model.width=32,64,96,128"
    command = [sys.executable, "-m", "shoestring", "sweep", "total.toml", "--over", widths, "--seeds", str(runs // 4)]
    before, started = load(), time.perf_counter()
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    seconds, after = time.perf_counter() - started, load()
    events = read_lines(SweepFolder(folder / "sweeps/total").events)
    begun, finished = events[0], events[-1]
    corrected = [float(Seconds.parse(text.replace(" ", ""))) for text in re.findall(r"left, (.*?) in all", said)]
    taken = {line["run"]: line["seconds"] for line in events if line["event"] == "ended"}
    assert len(taken) == runs, said
    busy = None if before.all is None or after.all is None else (after.all - before.all) / seconds
    return {
        "runs": runs,
        "forecast": begun["seconds"],
        "interval": begun["interval"],
        "seconds": finished["seconds"],
        "off": finished["seconds"] / begun["seconds"] - 1,
        "corrected": corrected,
        "waits": waits(events),
        "processors_used": busy,
    }


def waits(events: list[dict[str, Any]]) -> list[float]:
    """Seconds from the end of a run, as it was seen, to the start of the next one in its place."""
    ended: list[float] = []
    found = []
    for line in events:
        if line["event"] == "ended":
            ended.append(line["time"])
        elif line["event"] == "started" and ended:
            found.append(line["time"] - ended.pop(0))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    out = None if given.out is None else given.out.resolve()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("total.toml").write_text(RECIPE.format(steps=given.steps))
        found = measure(Path(folder), given.runs)
        os.chdir(record.ROOT)
    print(f"{found['forecast']:.1f} s were forecast and {found['seconds']:.1f} taken ({found['off']:+.1%})")
    print(f"after the runs it said {', '.join(f'{each:.1f}' for each in found['corrected'])}")
    print(f"the longest wait for a new run was {max(found['waits'], default=0.0):.2f} s")
    record.write("sweep_total", {"results": found}, out)


if __name__ == "__main__":
    main()
