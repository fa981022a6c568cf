"""The largest batch: ours beside accelerate's and Lightning's finders and the true maximum; then plans against runs.

    python bench/measure.py [--only NAME …] [--no-true] [--peers] [--number N] [--at-once N] [--add] [--budget 3m]
                            [--tiny] [--out X]

Names are NAME for a search and runs:NAME for runs. A search on a workload has:
- ours: `shoestring.probe.search` as `shoestring measure` uses it. Trials, those out of memory, their seconds (compiling
  left out), and the wall clock of everything, processes and compiling included;
- true: bisection between what ours verified and what its line says is impossible, to half a percent; a process of its
  own after every batch that did not fit;
- on `transformers-gpt2`, or with --peers on all: `accelerate.find_executable_batch_size` from 1,024 and Lightning's
  `scale_batch_size`, power and binsearch, on the same steps.
`transformers-gpt2` is that library's GPT-2 124M as it comes, with bf16 autocast and fused AdamW: peers' own ground.
The batch of `hmm-500` is the rows that an E-step takes at once.

runs:NAME trains for --budget, --number times, from nothing (no profile, nothing compiled); plan beside outcome. With
--at-once, runs share the device and disturb each other: the promises must hold there too, at fewer steps.

Results are merged into the record that is there, name by name, so that the work can be divided over several calls; runs
take the place of those there, or with --add stand beside them. Every result and every run has its commit and date.
--tiny is the same with small models on any machine; a limit takes the place of a device that is full.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any

import record
import torch
from measure_workloads import NAMES, PEERS_OWN, RECIPES, TIMEOUT, TINY_BYTES, build_workload, open_trials, write_recipe

from shoestring.core import recipe_file
from shoestring.core.records import Profile
from shoestring.core.run_folder import RunFolder
from shoestring.core.schema import encode
from shoestring.planning.split import margin_bytes
from shoestring.probe.machine import pick_device
from shoestring.probe.search import FRAGMENTATION, find_largest
from shoestring.probe.trials import Trial, Workload
from shoestring.runs.timeline import parts_of
from shoestring.track import read_lines

TOLD = ("largest", "tried", "out_of_memory", "trial_seconds", "seconds", "stopped", "error")
"""Of a search, what is printed as soon as it is there."""
PEERS = ("accelerate", "lightning binsearch", "lightning power")
GAP = 0.005
"""Of the true largest batch: how far it may be above what is known to fit."""
SECONDS = 8.0
"""That one pass may take, as in `shoestring measure` on a GPU."""
NO_MEMORY = "CUDA out of memory."
"""What both peers know a full device by."""


def ours(name: str, tiny: bool, folder: Path) -> dict[str, Any]:
    first = 64 if "hmm" in name else 1
    started = time.perf_counter()
    tried: list[int] = []
    with open_trials(name, tiny, folder) as trials:
        facts = trials.begin(first)
        ready = time.perf_counter() - started
        limit = TINY_BYTES if tiny else facts["available_bytes"]
        margin = 0 if tiny else margin_bytes(limit, facts["machine"]["device"])

        def trial(batch: int, apart: bool, timed: bool) -> Trial:
            tried.append(batch)
            if apart:
                trials.renew()
            return trials.trial(batch, least=1 if timed else 0)

        holes = FRAGMENTATION[facts["machine"]["device"]]
        found = find_largest(trial, limit, margin, TIMEOUT if tiny else SECONDS, first, holes)
    if not found.trials or (last := found.trials[-1]).usage is None:
        raise SystemExit(f"{name}: {found.stopped or 'the system does not tell how much memory is used'}")
    return {
        "largest": found.law.largest,
        "tried": tried,
        **{key: getattr(found.law, key) for key in ("trials", "out_of_memory", "trial_seconds")},
        "wall_seconds": time.perf_counter() - started,
        "first_step_seconds": ready,
        "law": encode(found.law),
        "stopped": found.stopped,
        "compile_seconds": sum(one.compile_seconds for one in found.trials),
        "usages": [[one.batch, *(one.usage or ())] for one in found.trials],
        "predicted_share": found.law.predict(last.batch) / last.usage.held,
    }


def true_largest(name: str, tiny: bool, folder: Path, law: dict[str, Any]) -> dict[str, Any]:
    """A process serves as long as batches fit; a limit where the device is not to be filled."""
    tried: dict[int, bool] = {}
    with open_trials(name, tiny, folder) as trials:

        def fits(batch: int) -> bool:
            try:
                usage = trials.trial(batch, least=0).usage
            except MemoryError:
                tried[batch] = False
            else:
                tried[batch] = not tiny or (usage is not None and usage.held <= TINY_BYTES)
            print(f"  {name} true: {batch} {'fits' if tried[batch] else 'does not fit'}", flush=True)
            return tried[batch]

        low = law["verified"]
        high = int((law["limit_bytes"] - law["fixed_bytes"]) / max(1.0, law["row_bytes"])) + 1
        high = max(low + 1, high)
        step = max(1, high // 50)
        while fits(high):  # holes were squeezed out, or the line was too steep
            low, high, step = high, high + step, 2 * step
        while high - low > max(1, GAP * low):
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
    return {"largest": low, "tried": tried}


def peer(method: str, name: str, tiny: bool, folder: Path) -> dict[str, Any]:
    """A finder of others, in this process; the model is built anew for every trial of accelerate's, as it advises."""
    tried: list[int] = []
    failed: list[int] = []

    def steps(workload: Workload, batch: int) -> None:
        tried.append(batch)
        try:
            for _ in range(3):
                workload.accumulate(batch)
                workload.update()
            if tiny and (usage := workload.usage()) is not None and usage.held > TINY_BYTES:
                raise MemoryError
        except (MemoryError, torch.OutOfMemoryError):
            failed.append(batch)
            workload.forget()
            raise RuntimeError(NO_MEMORY) from None

    started = time.perf_counter()
    if method == "accelerate":
        from accelerate.utils import find_executable_batch_size

        @find_executable_batch_size(starting_batch_size=64 if tiny else 1024)
        def search(batch_size: int) -> int:
            gc.collect()
            steps(build_workload(name, tiny, folder), batch_size)
            return batch_size

        found = search()
    else:
        found = _lightning(method.removeprefix("lightning "), lambda: build_workload(name, tiny, folder), steps)
    seconds = time.perf_counter() - started
    return {"largest": found, "tried": tried, "trials": len(tried), "out_of_memory": len(failed), "seconds": seconds}


def _lightning(mode: str, build: Callable[[], Workload], steps: Callable[[Workload, int], None]) -> int | None:
    try:
        import lightning.pytorch as pl
        from lightning.pytorch.tuner import Tuner
    except ModuleNotFoundError:
        import pytorch_lightning as pl
        from pytorch_lightning.tuner import Tuner

    class Endless(torch.utils.data.IterableDataset[torch.Tensor]):
        """Without a length: Lightning tries no batch above the number of batches there are."""

        def __iter__(self) -> Iterator[torch.Tensor]:
            while True:
                yield torch.zeros(1)

    class Module(pl.LightningModule):  # type: ignore[misc]
        """The steps are the workload's own; a weight of no use is what Lightning's own step updates."""

        def __init__(self) -> None:
            super().__init__()
            self.batch_size = 1
            self.idle = torch.nn.Parameter(torch.zeros(1))
            self._work = build()

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            steps(self._work, len(batch))
            return self.idle.sum()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD([self.idle], lr=0.0)

        def train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(Endless(), batch_size=self.batch_size)

    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)  # the tuner writes a checkpoint where it is
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        accelerator = "gpu" if pick_device().type == "cuda" else "cpu"
        trainer = pl.Trainer(max_epochs=1, accelerator=accelerator, devices=1, enable_model_summary=False, **quiet)
        found: int | None = Tuner(trainer).scale_batch_size(Module(), mode=mode, init_val=1, steps_per_trial=1)
        os.chdir("/")
    return found


def peer_apart(method: str, name: str, tiny: bool, folder: Path) -> dict[str, Any]:
    """In a process of its own; what it said where it did not end well."""
    command = [sys.executable, __file__, "--peer", method, "--only", name, "--scratch", str(folder)]
    command += ["--tiny"] if tiny else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"no end within {TIMEOUT:.0f} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode == 0 and lines:
        found: dict[str, Any] = json.loads(lines[-1])
        return found
    return {"error": (done.stderr.strip().splitlines() or ["no message"])[-1]}


def search(
    name: str,
    tiny: bool,
    folder: Path,
    true: dict[str, Any] | None,
    with_peers: bool,
    keep: Callable[[dict[str, Any]], None],
) -> None:
    """`keep` is given what there is, after each part. Where a `true` largest batch is given, it is not looked for."""
    if name != PEERS_OWN:
        write_recipe(name, tiny, folder)
    seconds: dict[str, float] = {}
    found: dict[str, Any] = {"seconds": seconds}

    def part(label: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        started = time.perf_counter()
        found[label] = work()
        seconds[label] = time.perf_counter() - started
        answer: dict[str, Any] = found[label]
        told = {key: answer[key] for key in TOLD if key in answer}
        print(f"{name}: {label} {json.dumps(told)} ({seconds[label]:.0f} s)", flush=True)
        keep(found)
        return answer

    mine = part("ours", lambda: ours(name, tiny, folder))
    if true is None:
        real = part("true", lambda: true_largest(name, tiny, folder, mine["law"]))
    else:
        real = true
    if real:
        found["true"] = real
        found["share"] = (mine["largest"] or 0) / max(1, real["largest"])
        keep(found)
    for method in PEERS if with_peers else ():
        part(method, lambda method=method: peer_apart(method, name, tiny, folder))  # type: ignore[misc]


# --- plans against runs


def run(name: str, tiny: bool, folder: Path, budget: str) -> dict[str, Any]:
    """One run from nothing: its plan, what came of it, and the wall clock of the process."""
    file = write_recipe(name, tiny, folder, budget)
    verb = ["hmm", "fit"] if "hmm" in name else ["train"]
    command = [sys.executable, "-m", "shoestring", *verb, str(file), "--json"]
    caches = {"SHOESTRING_CACHE": "profiles", "TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
    environment = os.environ | {variable: str(folder / place) for variable, place in caches.items()}
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False, env=environment)
    wall = time.perf_counter() - started
    if done.returncode:
        return {"error": "\n".join(done.stderr.strip().splitlines()[-8:]), "wall_seconds": wall}
    told, recipe = json.loads(done.stdout), recipe_file.load(file)
    plan, outcome, run_folder = told["plan"], told["outcome"], RunFolder.of(recipe)
    profile, timings = Profile.read(run_folder.profile), read_lines(run_folder.timings)
    allowed, law = float(recipe.budget.time or 0), profile.memory
    return {
        "wall_seconds": wall,
        "used_share": wall / allowed,
        "budget_share": outcome["seconds"] / allowed,
        "seconds_error": outcome["seconds"] / plan["seconds"] - 1,
        "memory_error": relative(plan["peak_bytes"], outcome["peak_bytes"]),
        "step_error": relative(outcome["tokens_per_second"], plan["tokens_per_second"]),
        "trials": None if law is None else law.trials,
        "trial_seconds": None if law is None else law.trial_seconds,
        "out_of_memory": (0 if law is None else law.out_of_memory)
        + sum(line.get("event") == "halved" for line in timings),
        "plan": {key: plan[key] for key in ("steps", "seconds", "parts", "step_seconds", "peak_bytes", "per_device")},
        "timeline": parts_of(timings),
        "events": [
            {key: line[key] for key in ("event", "step", "elapsed") if key in line}
            for line in timings
            if "event" in line
        ],
        "profile": encode(profile),
        "outcome": outcome,
    }


def relative(planned: float | None, actual: float | None) -> float | None:
    """Actual by planned, less one; None where one of them is not known."""
    return None if not planned or actual is None else actual / planned - 1


def runs(names: list[str], tiny: bool, budget: str, number: int, at_once: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each name's runs as they end, `at_once` of them at a time, in the order of the names, again and again."""

    def one(name: str) -> tuple[str, dict[str, Any]]:
        with tempfile.TemporaryDirectory() as scratch:
            return name, run(name, tiny, Path(scratch), budget) | {"at_once": at_once}

    with ThreadPoolExecutor(at_once) as pool:
        for job in as_completed([pool.submit(one, name) for name in names * number]):
            name, found = job.result()
            told = {key: value for key, value in found.items() if key not in ("outcome", "profile")}
            print(f"runs:{name}: {json.dumps(told)}", flush=True)
            yield name, found


# --- the record


def with_earlier(old: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
    """A result of runs, with those that are there of the same budget before them."""
    if old is None or old["budget"] != new["budget"]:
        return new
    return new | {"runs": [*old["runs"], *new["runs"]]}


def known(old: dict[str, Any] | None) -> dict[str, Any]:
    """The true largest batch of an earlier search with where it is from; nothing where there is none."""
    if old is None or "true" not in old:
        return {}
    return {key: old[key] for key in ("commit", "date")} | old["true"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="of " + ", ".join(NAMES) + "; or runs:NAME")
    parser.add_argument("--tiny", action="store_true", help="small models and a limit, on any machine")
    parser.add_argument("--no-true", action="store_true", help="keep the true largest batch that is known")
    parser.add_argument("--peers", action="store_true", help="peers on every search, not on theirs only")
    parser.add_argument("--number", type=int, default=2, help="of runs each")
    parser.add_argument("--at-once", type=int, default=1, help="runs that share the device")
    parser.add_argument("--add", action="store_true", help="runs to those there, instead of in their place")
    parser.add_argument("--budget", default="3m", help="of time, for runs")
    parser.add_argument("--out", type=Path, default=None, help="write the record here instead of results/")
    parser.add_argument("--peer", choices=PEERS, help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer:
        print(json.dumps(peer(arguments.peer, arguments.only[0], arguments.tiny, arguments.scratch)))
        return
    wanted = arguments.only or [*NAMES, *(f"runs:{name}" for name in RECIPES)]
    if unknown := [name for name in wanted if name.removeprefix("runs:") not in NAMES or name == f"runs:{PEERS_OWN}"]:
        parser.error(f"--only {' '.join(unknown)}: unknown")
    results = {} if arguments.tiny else record.earlier("measure", arguments.out)
    before = dict(results)

    def keep(name: str, found: dict[str, Any]) -> None:
        results[name] = origin | found
        record.write("measure-tiny" if arguments.tiny else "measure", {"results": results}, arguments.out)

    origin = {"commit": record.commit(), "date": time.strftime("%Y-%m-%d")}
    for name in (name for name in wanted if not name.startswith("runs:")):
        started = time.perf_counter()
        with_peers = arguments.peers or name == PEERS_OWN
        true = known(results.get(name)) if arguments.no_true else None
        with tempfile.TemporaryDirectory() as scratch:
            search(name, arguments.tiny, Path(scratch), true, with_peers, partial(keep, name))
        print(f"{name}: {time.perf_counter() - started:.0f} s in all", flush=True)
    trained = [name.removeprefix("runs:") for name in wanted if name.startswith("runs:")]
    ours_now: dict[str, list[dict[str, Any]]] = {}
    for name, found in runs(trained, arguments.tiny, arguments.budget, arguments.number, arguments.at_once):
        earlier = before.get(f"runs:{name}") if arguments.add else None
        ours_now.setdefault(name, []).append(origin | found)
        keep(f"runs:{name}", with_earlier(earlier, {"budget": arguments.budget, "runs": ours_now[name]}))


if __name__ == "__main__":
    main()
