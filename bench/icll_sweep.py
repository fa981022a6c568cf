"""The sweep of recipes/icll in small: HMMs over H × E × L, their updates, then Llamas on streams of three, with times.

    python bench/icll_sweep.py [--small] [--out FOLDER]

On a GPU it takes up to nine minutes; --small is a miniature for a CPU, to see that it goes through. Times that were
said before are recorded beside those that it took, with the held-out losses of all runs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import record

from shoestring.core.sweep_folder import SweepFolder
from shoestring.studies.sweep.results import Report, read_report
from shoestring.track import read_lines

RECIPES = record.ROOT / "recipes/icll"
GRIDS: dict[bool, dict[str, Any]] = {
    False: {
        "hmm": {"states": [50, 100, 200], "words": [100, 200], "lengths": [50, 100], "documents": 50_000, "epochs": 6},
        "update": [256, 1024, 4096],
        "llama": {"time": "40s", "width": 256, "layers": 4, "batch": 256},
    },
    True: {
        "hmm": {"states": [2, 4], "words": [300], "lengths": [10, 20], "documents": 100, "epochs": 2},
        "update": [16, 64],
        "llama": {"time": "25s", "width": 16, "layers": 1, "batch": 8},
    },
}


def write_recipes(small: bool) -> None:
    """The recipes of recipes/icll, with smaller grids."""
    grid = GRIDS[small]
    hmm, llama = grid["hmm"], grid["llama"]
    base = f"[budget]\nepochs = {hmm['epochs']}\n[data]\ndocuments = {hmm['documents']}\n"
    words = [f"words:{count}" for count in hmm["words"]]
    Path("hmms.toml").write_text(
        f'extends = "{RECIPES}/hmm.toml"\n[run]\nname = "hmms"\n{base}[sweep]\nthen = "llamas.toml"\n'
        f"[sweep.over]\nhmm.states = {hmm['states']}\ndata.tokenizer = {words}\ndata.length = {hmm['lengths']}\n"
    )
    Path("update.toml").write_text(
        f'extends = "{RECIPES}/hmm.toml"\n[run]\nname = "update"\n{base}tokenizer = "{words[0]}"\n'
        f'length = {hmm["lengths"][0]}\n[hmm]\nstates = {hmm["states"][0]}\nupdate = "every"\n'
        f"[sweep.over]\nhmm.update_every = {grid['update']}\n"
    )
    length = hmm["lengths"][0]
    settings = [(states, hmm["words"][0]) for states in hmm["states"]] + [(hmm["states"][-1], hmm["words"][-1])]
    streams = [f"hmm:runs/hmms-states{s}-tokenizerwords{w}-length{length}" for s, w in dict.fromkeys(settings)][-3:]
    Path("llamas.toml").write_text(
        f'extends = "{RECIPES}/llama.toml"\n[run]\nname = "llamas"\n[budget]\ntime = "{llama["time"]}"\n'
        f"[data]\nlength = {length}\n[model]\nwidth = {llama['width']}\nlayers = {llama['layers']}\nheads = 4\n"
        f"hidden = {4 * llama['width']}\n[train]\nbatch = {llama['batch']}\n[evaluate]\nevery = 0.1\n"
        f"[sweep.over]\ndata.stream = {streams}\n"
    )


def swept(recipe: str) -> None:
    subprocess.run([sys.executable, "-m", "shoestring", "sweep", recipe], check=True, stdout=sys.stderr)


def told(name: str) -> dict[str, Any]:
    """The time that was said before a sweep, what it took, and the losses."""
    folder = SweepFolder(Path("sweeps") / name)
    events = read_lines(folder.events)
    begun, ended = events[0], events[-1]
    report: Report = read_report(folder)
    return {
        "forecast": begun["seconds"],
        "seconds": ended["seconds"],
        "off": ended["seconds"] / begun["seconds"] - 1 if begun["seconds"] else None,
        "runs": [
            {"values": row.values, "loss": row.results["loss"], "tokens": row.results["tokens"]} for row in report.rows
        ],
        "curves": {row.name: row.curve for row in report.rows} if name == "update" else {},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a miniature for a CPU")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    out = None if given.out is None else given.out.resolve()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_recipes(given.small)
        swept("hmms.toml")
        swept("update.toml")
        heat = [
            sys.executable,
            "-m",
            "shoestring",
            "sweep",
            "report",
            "sweeps/hmms",
            "--heat",
            "hmm.states,data.length",
        ]
        subprocess.run(heat, check=True, stdout=sys.stderr)
        results = {name: told(name) for name in ("hmms", "llamas", "update")}
        os.chdir(record.ROOT)
    for name, found in results.items():
        print(f"{name}: {found['forecast']:.0f} s were forecast and {found['seconds']:.0f} taken")
    record.write("icll_sweep", {"small": given.small, "results": results}, out)


if __name__ == "__main__":
    main()
