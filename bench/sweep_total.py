"""Whether sweeps take as long as they were said to: 12 runs, the forecast before, after each run, and what they took.

    SHOESTRING_CACHE=$(mktemp -d) python bench/sweep_total.py [widths hmms masked rates] [--out FOLDER]

It says something only where nothing else uses the machine: other processes slow the runs, and not the forecast. How
much they used is recorded, and how long the driver took to start the next run after one had ended. With an empty cache
all is measured anew, as on a new machine.
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
from typing import Any, NamedTuple

import record

from shoestring.core.sweep_folder import SweepFolder
from shoestring.core.units import Seconds
from shoestring.probe.load import load
from shoestring.track import read_lines

HEAD = """
[run]
name = "total"

[budget]
{budget}

[data]
source = "stories"
tokenizer = "words:{words}"
length = 64
documents = {documents}

[evaluate]
every = 0.25
"""
NETWORK = """
[model]
family = "{family}"
width = 64
layers = 2
heads = 4

[train]
batch = 8
lr = 1e-3
"""
HMM = """
[hmm]
states = 20
update = "online"
"""


class Setting(NamedTuple):
    """A sweep of 12 runs."""

    recipe: str
    over: tuple[str, ...]
    seeds: int


def network(family: str = "llama", documents: int = 2000, steps: int = 400) -> str:
    head = HEAD.format(budget=f"steps = {steps}", words=200, documents=documents)
    return head + NETWORK.format(family=family)


SWEEPS = {
    "widths": Setting(network(), ("model.width=32,64,96,128",), 3),
    "hmms": Setting(
        HEAD.format(budget="epochs = 40", words=100, documents=8000) + HMM, ("hmm.states=20,40,80,160",), 3
    ),
    "masked": Setting(network("masked_lm"), ("model.layers=1,2,4", "train.batch=8,16"), 2),
    "rates": Setting(network(), ("train.lr=1e-4,2e-4,5e-4,1e-3,2e-3,5e-3",), 2),
}
"""Networks of several widths; HMMs; masked models of several depths and batches; and runs that cost the same."""


def measure(folder: Path, setting: Setting) -> dict[str, Any]:
    """Run the sweep, and compare."""
    over = [word for each in setting.over for word in ("--over", each)]
    command = [sys.executable, "-m", "shoestring", "sweep", "total.toml", *over, "--seeds", str(setting.seeds)]
    before, started = load(), time.perf_counter()
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    seconds, after = time.perf_counter() - started, load()
    events = read_lines(SweepFolder(folder / "sweeps/total").events)
    begun, finished = events[0], events[-1]
    corrected = [float(Seconds.parse(text.replace(" ", ""))) for text in re.findall(r"left, (.*?) in all", said)]
    taken = {line["run"]: line["seconds"] for line in events if line["event"] == "ended"}
    assert len(taken) == 12, said
    busy = None if before.all is None or after.all is None else (after.all - before.all) / seconds
    return {
        "runs": len(taken),
        "before": seconds - finished["seconds"],
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
    parser.add_argument("sweeps", nargs="*", metavar="SWEEP", help=f"of {', '.join(SWEEPS)}; default: all")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    out = None if given.out is None else given.out.resolve()
    if unknown := set(given.sweeps) - set(SWEEPS):
        parser.error(f"no sweep is named {', '.join(sorted(unknown))}")
    results = {}
    for name in given.sweeps or SWEEPS:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            Path("total.toml").write_text(SWEEPS[name].recipe)
            found = results[name] = measure(Path(folder), SWEEPS[name])
            os.chdir(record.ROOT)
        print(f"{name}: {found['forecast']:.1f} s were forecast and {found['seconds']:.1f} taken ({found['off']:+.1%})")
        print(f"  {found['before']:.1f} s were taken before the first run, and after the last")
        print(f"  after the runs it said {', '.join(f'{each:.1f}' for each in found['corrected'])}")
        print(f"  the longest wait for a new run was {max(found['waits'], default=0.0):.2f} s")
    record.write("sweep_total", {"results": results}, out)


if __name__ == "__main__":
    main()
