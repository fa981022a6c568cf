"""Rows drawn from an HMM: ours beside `torch.multinomial` in batches and pomegranate's `sample`, in one run.

    python bench/hmm_sample.py [--out FOLDER]

Rows of 100 tokens from the same tables. Ours is timed as a user calls it, with the permutations and with 32-bit
probabilities; `torch.multinomial` draws one token of all sequences at a time, at the batch of 4,096 that the notebooks
used and at others; pomegranate's `sample` runs on the CPU where it is installed, and draws a few sequences, for each
takes it the same time. Before anything is timed, the rows of
tests/streams/golden.json are made on the device and compared byte for byte.

To a file: `hmm sample` into a folder on the disk, and plain writes of as many bytes with the same number of files, each
flushed to the disk, on the same disk, one after the other. As training data: the rows of a batch beside the step of a
Llama that reads them.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import record
import torch

from shoestring.core.sections import Model
from shoestring.core.train_section import Train
from shoestring.data.store.fixed_rows import Job, shard_rows, write_rows
from shoestring.models.language_model import build
from shoestring.probe.machine import pick_device, reset_peak, resident
from shoestring.streams.hmm import HmmStream
from shoestring.streams.source import TRAIN, StreamRows, on_host
from shoestring.training.learner import Learner

LENGTH = 100
SHAPES = ((200, 200), (500, 200))
"""States, symbols."""
KINDS = ("none", "block:4096", "pool:1000", "sequence")
GOLDEN = record.ROOT / "tests/streams/golden.json"


def tables(states: int, symbols: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Start, transition and emission with peaked rows, the same everywhere."""
    rng = np.random.default_rng(1)
    made = [rng.random((states, cells)) ** 8 for cells in (states, symbols)]
    transition, emission = (table / table.sum(1, keepdims=True) for table in made)
    return np.full(states, 1 / states), transition, emission


def seconds(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    """The median, once everything is compiled."""

    def once() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started

    once()
    return statistics.median(once() for _ in range(repeats))


def golden(device: torch.device) -> dict[str, int]:
    """How many golden rows there are, and how many the device makes as they are."""
    rows = equal = 0
    content = json.loads(GOLDEN.read_text())
    for case in content["rows"]:
        model = content["models"][case["model"]]
        given = [np.array(model[name]) / model["of"] for name in ("start", "transition", "emission")]
        kinds = {name: case[name] for name in ("seed", "symbols", "states")}
        made = HmmStream(*given, length=content["length"], **kinds).rows(case["first"], len(case["rows"]), device)
        digits = 2 * made.element_size()
        found = ["".join(f"{token:0{digits}x}" for token in row) for row in made.tolist()]
        rows += len(found)
        equal += sum(one == other for one, other in zip(found, case["rows"], strict=True))
    return {"rows": rows, "equal": equal}


def multinomial(states: int, symbols: int, batch: int, device: torch.device) -> Callable[[], torch.Tensor]:
    """The loop of the notebooks: one call for all emissions of a position, one for all moves."""
    start, transition, emission = (torch.from_numpy(table).float().to(device) for table in tables(states, symbols))

    def draw() -> torch.Tensor:
        state = torch.multinomial(start, batch, replacement=True)
        out = torch.empty((batch, LENGTH), dtype=torch.int32, device=device)
        for t in range(LENGTH):
            out[:, t] = torch.multinomial(emission[state], 1)[:, 0]
            state = torch.multinomial(transition[state], 1)[:, 0]
        return out

    return draw


def pomegranate_rate(states: int, symbols: int, sequences: int) -> float | None:
    clustering = types.ModuleType("apricot")  # which its import asks for, and nothing here uses
    clustering.FacilityLocationSelection = clustering.FeatureBasedSelection = None  # type: ignore[attr-defined]
    sys.modules.setdefault("apricot", clustering)
    try:
        from pomegranate.distributions import Categorical
        from pomegranate.hmm import DenseHMM
    except ImportError:
        return None
    start, transition, emission = tables(states, symbols)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        emissions = [Categorical(emission[i : i + 1].tolist()) for i in range(states)]
        model = DenseHMM(
            emissions, edges=transition.tolist(), starts=start.tolist(), ends=[1e-9] * states, sample_length=LENGTH
        )
        took = seconds(lambda: model.sample(sequences), torch.device("cpu"), 1)
    return sequences * LENGTH / took


def speeds(states: int, symbols: int, device: torch.device, rows: int, repeats: int) -> dict[str, Any]:
    ours = {}
    for kind in KINDS:
        stream = HmmStream(*tables(states, symbols), seed=0, length=LENGTH, symbols=kind)

        def work() -> None:
            stream._shuffled.clear()  # every call makes its own permutations
            stream.rows(0, rows, device)

        ours[kind] = rows * LENGTH / seconds(work, device, repeats)
    batches = (4096, 65536) if device.type == "cuda" else (256, 1024, 4096)
    peers = {
        batch: batch * LENGTH / seconds(multinomial(states, symbols, batch, device), device, 3) for batch in batches
    }
    found = {
        "states": states,
        "symbols": symbols,
        "length": LENGTH,
        "rows": rows,
        "ours_tokens_per_second": ours,
        "multinomial_tokens_per_second": {str(batch): rate for batch, rate in peers.items()},
        "pomegranate_tokens_per_second": pomegranate_rate(states, symbols, 30) if device.type == "cpu" else None,
    }
    print(found, flush=True)
    return found


def to_a_file(device: torch.device, folder: Path, gigabytes: float) -> dict[str, Any]:
    """Bytes per second of our store, and of the same bytes written plainly; and the peak of memory at two sizes."""
    stream = HmmStream(*tables(200, 200), seed=0, length=LENGTH, symbols="sequence")
    each = shard_rows(LENGTH, 200)

    def make(_: str, first: int, count: int) -> np.ndarray:
        return on_host(stream.rows(first, count, device))

    def store(rows: int) -> float:
        target = folder / "store"
        job = Job(source={}, symbols=200, length=LENGTH, rows={"train": rows}, shard_rows=each)
        started = time.perf_counter()
        write_rows(target, job, None, make)
        took = time.perf_counter() - started
        shutil.rmtree(target)
        return took

    def plain(rows: int) -> float:
        content = os.urandom(each * LENGTH)
        started = time.perf_counter()
        for number in range(-(-rows // each)):
            with open(folder / f"plain-{number}", "wb") as file:
                file.write(content[: min(each, rows - number * each) * LENGTH])
                file.flush()
                os.fsync(file.fileno())
        took = time.perf_counter() - started
        for path in folder.glob("plain-*"):
            path.unlink()
        return took

    rows = int(gigabytes * 1e9) // LENGTH
    store(each)  # compiles
    peaks = {}
    for part in (rows // 4, rows):
        reset_peak(device)
        store(part)
        memory = resident()
        host_peak = None if memory is None else memory.highest
        peaks[str(part)] = torch.cuda.max_memory_reserved(device) if device.type == "cuda" else host_peak
    pairs = [(store(rows), plain(rows)) for _ in range(3)]
    ours, theirs = (statistics.median(pair[i] for pair in pairs) for i in (0, 1))
    found = {
        "bytes": rows * LENGTH,
        "ours_bytes_per_second": rows * LENGTH / ours,
        "disk_bytes_per_second": rows * LENGTH / theirs,
        "peak_bytes_by_rows": peaks,
    }
    print(found, flush=True)
    return found


def as_training_data(device: torch.device) -> dict[str, Any]:
    """Seconds to get the rows of a step, and of the step that reads them."""
    small = device.type == "cpu"
    batch, model = (32, Model(width=128, layers=4, heads=4)) if small else (512, Model(width=1024, layers=8, heads=8))
    stream = HmmStream(*tables(200, 200), seed=0, length=LENGTH + 1, symbols="sequence")
    learner = Learner(build(model, 200, LENGTH, 0), Train(batch=batch), device)
    source = StreamRows(stream, TRAIN, device)
    steps = 8 if small else 200

    def train(number: int) -> None:
        loss = learner.accumulate(torch.as_tensor(source.rows(source.order(0, number, batch))), batch)
        learner.update(loss, 1e-4)

    train(0)
    state = {"step": 0}

    def rows_only() -> None:
        for _ in range(steps):
            state["step"] += 1
            source.rows(source.order(0, state["step"], batch))

    def whole() -> None:
        for _ in range(5):
            state["step"] += 1
            train(state["step"])

    found = {
        "batch": batch,
        "rows_seconds": seconds(rows_only, device, 3) / steps,
        "step_seconds": seconds(whole, device, 3) / 5,
    }
    found["share"] = found["rows_seconds"] / found["step_seconds"]
    print(found, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--disk", type=Path, help="folder on the disk to write to")
    arguments = parser.parse_args()
    device = pick_device()
    gpu = device.type == "cuda"
    same = golden(device)
    print(same, flush=True)
    rows = 20_000_000 if gpu else 400_000
    values = {
        "golden": same,
        "shapes": [speeds(*shape, device, rows, 5 if gpu else 3) for shape in SHAPES],
        "training": as_training_data(device),
    }
    gc.collect()  # the learner, before memory is measured
    with tempfile.TemporaryDirectory(dir=arguments.disk) as folder:
        values["file"] = to_a_file(device, Path(folder), 4 if gpu else 1)
    record.write("hmm_sample", values, arguments.out)


if __name__ == "__main__":
    main()
