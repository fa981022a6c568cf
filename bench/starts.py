"""Starts and stops of groups of processes: none may hang, whoever is killed, and whenever.

    python bench/starts.py [--starts 50] [--seed 0]

Each start is a whole run of a tiny model by 2 or 3 processes, forked from one that has loaded torch. It ends by itself,
or one process is killed (`kill -9`), or all get SIGTERM, at a random instant. As the parent of a run's workers does,
this one tells the first process that another ended, which it asks for only before all are connected, and ends the
others soon after the first. A start hangs if its first process is still there after three minutes.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import record

sys.path[:0] = [str(record.ROOT / "tests")]
from commands import NO_FIGURES, forks  # noqa: E402

PATIENCE, GRACE = 180.0, 5.0
"""Seconds that the first process has, and the others after it."""
ENDED = "ended"
"""A file: one process has."""
RECIPE = """
[budget]
steps = 24
[data]
source = "stories"
tokenizer = "words:100"
length = 32
documents = 300
heldout = 0.1
[model]
width = 16
layers = 1
heads = 2
[train]
batch = 6
lr = 3e-3
checkpoint_every = "1ms"
[evaluate]
rows = 8
every = 0.5
"""


class Start(NamedTuple):
    """What is started, and how it ends."""

    strategy: str
    workers: int
    end: str
    """"by itself", "SIGTERM to all", or "kill -9 of" a worker."""
    after: float
    """Seconds."""


def drawn(rng: random.Random, number: int, longest: float) -> Start:
    """The start of this number; every fifth one ends by itself."""
    strategy, workers = ("sync", "local")[number % 2], rng.choice((2, 3))
    ends = ["by itself"] if number % 5 == 0 else ["SIGTERM to all", *(f"kill -9 of {n}" for n in range(workers))]
    return Start(strategy, workers, rng.choice(ends), rng.uniform(0.0, longest))


def work(rank: int, port: int, folder: Path, start: Start) -> None:
    """One process of a start."""
    import torch

    from shoestring.core.clock import Clock
    from shoestring.core.errors import Fault, ShoestringError
    from shoestring.core.recipe_file import load
    from shoestring.runs import runner
    from shoestring.runs.reporter import Reporter

    torch.set_num_threads(1)
    os.chdir(folder)
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": start.workers, "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in ranks.items()} | {"MASTER_ADDR": "127.0.0.1", NO_FIGURES: "1"}
    every = ("parallel.sync_every=4",) if start.strategy == "local" else ()
    recipe = load("tiny.toml", (f"parallel.strategy={start.strategy}", *every))

    def watch() -> None:
        if (folder / ENDED).exists():
            raise Fault("a worker ended before all were connected")

    try:
        runner._run_together(recipe, Reporter(), Clock(), None, None, None, watch)
    except ShoestringError as error:
        (folder / f"said-{rank}").write_text(str(error))
        os._exit(3)


def played(start: Start) -> dict[str, Any]:
    """How a start ended."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        (folder / "tiny.toml").write_text(RECIPE)
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        begun = time.monotonic()
        started = [forks().Process(target=work, args=(rank, port, folder, start)) for rank in range(start.workers)]
        for process in started:
            process.start()
        if start.end != "by itself":
            started[0].join(start.after)
            kind, chosen = signal.SIGTERM, started
            if start.end.startswith("kill"):
                kind, chosen = signal.SIGKILL, [started[int(start.end.split()[-1])]]
            for process in chosen:
                if process.exitcode is None and process.pid is not None:
                    os.kill(process.pid, kind)
            (folder / ENDED).touch()
        started[0].join(PATIENCE)
        hung = started[0].exitcode is None
        for process in started[1:]:
            process.join(0.0 if hung else GRACE)
        late = [rank for rank, process in enumerate(started) if process.exitcode is None]
        for process in started:
            process.kill()
            process.join()
        codes = [process.exitcode for process in started]
        done = any((folder / "runs").glob("*/DONE"))
        said = [path.read_text() for path in sorted(folder.glob("said-*"))]
    seconds = time.monotonic() - begun
    return {
        **start._asdict(),
        "seconds": seconds,
        "codes": codes,
        "done": done,
        "hung": hung,
        "late": late,
        "said": said,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    results = [played(Start("local", 2, "by itself", 0.0)) for _ in range(2)]
    longest = results[1]["seconds"]  # the first one also loads torch
    for number in range(2, arguments.starts):
        results.append(played(drawn(rng, number, longest)))
        print(number, results[-1], flush=True)
    hung = sum(each["hung"] for each in results)
    print(f"{hung} of {len(results)} hung")
    record.write("starts", {"results": results, "hung": hung, "load": os.getloadavg()[0]}, arguments.out)


if __name__ == "__main__":
    main()
