"""What a step takes where several runs share the processors of one machine: ours, as torch waits, and transformers.

    python bench/crowded.py [--width 96] [--layers 2] [--rows 8] [--length 128] [--runs 1 2 3] [--seconds 8]
                            [--repeats 3] [--out FOLDER]

So many equal processes train a Swift by Muon (of transformers: a Llama by AdamW, of the same shape), each with a thread
for every processor, and count their steps while all of them work. "ours" waits briefly while others need the
processors (`shoestring.probe.brief_waits`), "as torch waits" does not. The median over repeats and processes counts;
the ways take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import record
import torch
from train import peer_model

from shoestring.core.sections import Model
from shoestring.core.specs import PartsSpec
from shoestring.core.train_section import Train
from shoestring.models.language_model import build
from shoestring.probe.brief_waits import brief_waits
from shoestring.runs.best import SWIFT_PARTS
from shoestring.training.learner import Learner

WAYS = ("ours", "as torch waits", "transformers")
VOCABULARY = 512
SETTLES = 2.0
"""Seconds before steps count."""
SHAPE = ("width", "layers", "rows", "length")


def our_step(asked: argparse.Namespace) -> Callable[[], object]:
    shape = {"width": asked.width, "layers": asked.layers, "heads": asked.width // 32}
    model = Model(family="swift", parts=PartsSpec(SWIFT_PARTS["cpu"]), tied=False, **shape)
    settings = Train(batch=asked.rows, lr=1e-3, optimizer="muon")
    learner = Learner(build(model, VOCABULARY, asked.length, 0), settings, torch.device("cpu"))
    rows = torch.randint(VOCABULARY, (asked.rows, asked.length + 1))
    return lambda: learner.update(learner.accumulate(rows, asked.rows), 1e-3)


def their_step(asked: argparse.Namespace) -> Callable[[], object]:
    spec = {"family": "llama", "tied": False, "width": asked.width, "layers": asked.layers, "heads": asked.width // 32}
    model = peer_model(spec, VOCABULARY, asked.length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rows = torch.randint(VOCABULARY, (asked.rows, asked.length))

    def step() -> None:
        loss = model(input_ids=rows, labels=rows).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()

    return step


def one(asked: argparse.Namespace) -> None:
    """In a process of its own: say when it is ready, wait for a line, and print the seconds of the steps that count."""
    step = their_step(asked) if asked.one == "transformers" else our_step(asked)
    step()
    print("ready", flush=True)
    sys.stdin.readline()
    found, begun = list[float](), time.perf_counter()
    with brief_waits() if asked.one == "ours" else nullcontext():
        while (now := time.perf_counter()) - begun < SETTLES + asked.seconds:
            step()
            if now - begun > SETTLES:
                found.append(time.perf_counter() - now)
    print(json.dumps(found))


def together(asked: argparse.Namespace, way: str, runs: int) -> list[float]:
    """The mean seconds of a step of each of so many processes."""
    told = [f"--{name}={getattr(asked, name)}" for name in (*SHAPE, "seconds")]
    command = [sys.executable, __file__, "--one", way, *told]
    children = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(runs)
    ]
    for child in children:
        assert child.stdout is not None and child.stdout.readline() == "ready\n", "it has begun"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
    found = [json.loads(child.communicate()[0]) for child in children]
    return [statistics.mean(steps) for steps in found if steps]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, usual in (("width", 96), ("layers", 2), ("rows", 8), ("length", 128), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--one", choices=WAYS)
    parser.add_argument("--out", type=Path, help="folder of the record; default: results")
    asked = parser.parse_args()
    if asked.one:
        one(asked)
        return
    taken: dict[tuple[str, int], list[float]] = {}
    for _ in range(asked.repeats):
        for runs in asked.runs:
            for way in WAYS:
                taken.setdefault((way, runs), []).extend(together(asked, way, runs))
    results: dict[str, Any] = {}
    for (way, runs), seconds in taken.items():
        results.setdefault(way, {})[str(runs)] = {"step_seconds": statistics.median(seconds), "all": seconds}
        print(f"{way}, {runs} at once: {1000 * statistics.median(seconds):.0f} ms per step")
    record.write("crowded", {**{name: getattr(asked, name) for name in SHAPE}, "results": results}, asked.out)


if __name__ == "__main__":
    main()
