"""What each part of a Swift is worth: each left out or added in turn, AdamW for Muon, and a Llama.

    python bench/ablation.py [--size 25m|124m | --width 128 --layers 3 --heads 4] [--steps 200 | --seconds 60]
                             [--length 128] [--batch 12] [--seeds 3] [--factors 1 | --rates 0.0075 0.015]
                             [--adamw-rates 0.003] [--llama-rates 0.015 0.03] [--documents 20000]
                             [--text FILE | --stream markov:50|hmm:RUN]
                             [--tokenizer words:640] [--only NAME ...] [--limit SECONDS] [--out FOLDER]

With --steps all have as many steps. With --seconds each has as many as it can take in so many seconds of steps:
compiling before them and scoring after them are not counted, and its learning rate follows the seconds. "as chosen"
has the parts that `shoestring best` chooses. Learning
rates are --factors times the law's, or given. Rates of a variant are compared by the mean over seeds. --size has rows
of 512 bytes, 64 a step. All runs are of one process, the record is written after each, and runs that it has are not
repeated; no run begins that would end after --limit.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import record
import torch
from timed import Timed, rows_of, timed_run

from shoestring.core.hmm_sections import Stream
from shoestring.core.recipe import Recipe
from shoestring.core.run_sections import Budget, Run
from shoestring.core.scoring_sections import Evaluate
from shoestring.core.sections import Data, Model
from shoestring.core.specs import PartsSpec, PermutationSpec, SourceSpec, StreamSpec, TokenizerSpec
from shoestring.core.train_section import Train
from shoestring.core.units import Count
from shoestring.models.language_model import build
from shoestring.planning.regularisation import LEAST_PAIRS, POINTER
from shoestring.probe.machine import pick_device
from shoestring.runs.best import SWIFT_PARTS
from shoestring.training.learner import Learner

SWIFT = SWIFT_PARTS[pick_device().type]
CHOSEN = tuple(SWIFT.split(", "))
"""Left out in turn; the other parts are added."""
PAIRS = LEAST_PAIRS if pick_device().type == "cpu" else None
"""Rows for a token and the one before it, which are chosen where no text is read often."""
SIZES = {
    "25m": {"width": 512, "layers": 8, "heads": 8},
    "124m": {"width": 1024, "layers": 10, "heads": 16},
}
"""Parameters of the blocks."""
OF_SIZE = {"length": 512, "batch": 64, "tokenizer": "bytes", "rows": 512, "documents": 50_000}
"""Other options that --size changes."""
VOCABULARY = 640
"""Ids of the rows with which steps on a CPU are timed."""
TIMED = 8


class Rate(NamedTuple):
    """A learning rate: a number, or a factor of the law's."""

    lr: float | None = None
    factor: float | None = None

    @property
    def name(self) -> str:
        return f"{self.lr:g}" if self.lr is not None else f"{self.factor:g} × law"


def variants() -> dict[str, dict[str, Any]]:
    """The fields of [model] and [train] that differ, by name."""
    chosen = {"family": "swift", "tied": False, "parts": SWIFT, "pairs": PAIRS}
    found: dict[str, dict[str, Any]] = {"as chosen": chosen}
    for name in CHOSEN:
        found[f"no {name}"] = chosen | {"parts": ", ".join(part for part in CHOSEN if part != name)}
    for name in PartsSpec.names:
        if name not in CHOSEN:
            found[f"with {name}"] = chosen | {"parts": f"{SWIFT}, {name}"}
    found["no pairs" if PAIRS else "with pairs"] = chosen | {"pairs": None if PAIRS else LEAST_PAIRS}
    found["with pointer"] = chosen | {"pointer": POINTER}
    found["tied head"] = chosen | {"tied": True}
    found["adamw"] = chosen | {"optimizer": "adamw"}
    found["llama"] = {"family": "llama", "tied": False}
    found["llama, adamw"] = {"family": "llama", "tied": False, "optimizer": "adamw"}
    return found


def recipe_of(asked: argparse.Namespace, variant: dict[str, Any], lr: float, seed: int, place: Path) -> Recipe:
    shape = {"width": asked.width, "layers": asked.layers, "heads": asked.heads}
    model = {name: value for name, value in variant.items() if name != "optimizer"}
    text = None if asked.text is None else SourceSpec(f"text:{asked.text.resolve()}")
    corpus = Data(
        source=text or SourceSpec("stories"),
        documents=None if text else asked.documents,
        tokenizer=TokenizerSpec(asked.tokenizer),
        length=asked.length,
        folder=str(place / "stores"),
    )
    permuted = Stream(symbols=PermutationSpec("sequence"), start="stationary") if asked.stream else None
    return Recipe(
        run=Run(name="ablation", folder=str(place / "runs"), seed=seed),
        budget=Budget(steps=Count(1)),
        data=Data(stream=StreamSpec(asked.stream), length=asked.length) if asked.stream else corpus,
        stream=permuted if (asked.stream or "").startswith("hmm:") else None,
        model=Model(**shape, **model),
        train=Train(batch=asked.batch, lr=lr, optimizer=variant.get("optimizer", "muon"), schedule=asked.schedule),
        evaluate=Evaluate(rows=asked.rows, every=1.0),
    )


def step_seconds(recipe: Recipe) -> float:
    """Processor seconds of a step on a CPU, the least of some: other processes hardly change it."""
    learner = Learner(build(recipe.model, VOCABULARY, recipe.data.length, 0), recipe.train, torch.device("cpu"))
    rows, found = torch.randint(VOCABULARY, (recipe.batch, recipe.data.length + 1)), []
    for _ in range(TIMED):
        begun = time.process_time()
        learner.update(learner.accumulate(rows, len(rows)), 1e-3)
        found.append(time.process_time() - begun)
    return min(found)


def measured(asked: argparse.Namespace, name: str, rate: Rate, seed: int, place: Path) -> dict[str, Any]:
    """One run."""
    recipe = recipe_of(asked, variants()[name], rate.lr or 1e-3, seed, place)
    steps = asked.steps if asked.seconds is None else None
    corpus = rows_of(recipe_of(asked, variants()[name], 1e-3, 0, place))  # the same rows for all seeds
    run: Timed = timed_run(recipe, corpus, seconds=asked.seconds, steps=steps, factor=rate.factor)
    found = {"rate": rate.name, "seed": seed, "wall_step_seconds": run.seconds / run.steps, **run._asdict()}
    return found | ({"cpu_step_seconds": step_seconds(recipe)} if pick_device().type == "cpu" else {})


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The best rate by the mean over seeds, with that mean and its standard error."""
    by_rate: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        by_rate.setdefault(run["rate"], []).append(run)
    best = min(by_rate.values(), key=lambda same: statistics.mean(run["loss"] for run in same))
    losses = [run["loss"] for run in best]
    error = statistics.stdev(losses) / len(losses) ** 0.5 if len(losses) > 1 else None
    return {"lr": best[0]["lr"], "loss": statistics.mean(losses), "error": error, "seeds": len(losses)}


def rates_of(asked: argparse.Namespace, name: str) -> list[Rate]:
    special: dict[str, list[float] | None] = {"adamw": asked.adamw_rates, "llama": asked.llama_rates}
    given = special.get(name, None if name == "llama, adamw" else asked.rates)
    return [Rate(lr=lr) for lr in given] if given else [Rate(factor=factor) for factor in asked.factors]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=list(SIZES))
    for name, kind, usual in (
        ("width", int, 128), ("layers", int, 3), ("heads", int, 4), ("length", int, 128), ("batch", int, 12),
        ("steps", int, 200), ("seconds", float, None), ("seeds", int, 3), ("rows", int, 256),
        ("documents", int, 20_000), ("tokenizer", str, "words:640"), ("schedule", str, "cooldown"),
        ("limit", float, float("inf")), ("text", Path, None), ("stream", str, None), ("out", Path, None),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=kind, default=usual)
    parser.add_argument("--factors", type=float, nargs="+", default=[1.0])
    for name in ("rates", "adamw-rates", "llama-rates"):
        parser.add_argument(f"--{name}", type=float, nargs="+")
    parser.add_argument("--only", nargs="+", choices=list(variants()), default=list(variants()))
    begun, sized = time.perf_counter(), parser.parse_known_args()[0].size
    if sized is not None:
        parser.set_defaults(**SIZES[sized], **OF_SIZE)
    asked = parser.parse_args()
    text = "built-in stories" if asked.text is None else asked.text.name.partition(".")[0]
    permuted = "an HMM's rows, each permuted" if (asked.stream or "").startswith("hmm:") else asked.stream
    what = permuted or f"{text}, {asked.tokenizer}"
    size = f"{asked.width} × {asked.layers}, {what}, {asked.batch} rows of {asked.length}, "
    size += f"{asked.steps} steps" if asked.seconds is None else f"{asked.seconds:g} s"
    results = record.earlier("ablation", asked.out)
    found: dict[str, Any] = results.setdefault(size, {})
    for name in [name for name, variant in found.items() if variant.get("fields") != variants().get(name)]:
        del found[name]  # of another choice
    with tempfile.TemporaryDirectory() as temporary:
        place, longest = Path(temporary), asked.seconds or 0.0
        for seed, name in ((seed, name) for seed in range(asked.seeds) for name in asked.only):
            own = found.setdefault(name, {"fields": variants()[name], "runs": []})
            for rate in rates_of(asked, name):
                if any((run["rate"], run["seed"]) == (rate.name, seed) for run in own["runs"]):
                    continue
                started = time.perf_counter()
                if started - begun + longest > asked.limit:
                    print(f"{name} is left: {asked.limit:g} s would not suffice")
                    return
                origin = {"commit": record.commit(), "command": record.command()}
                own["runs"].append(measured(asked, name, rate, seed, place) | origin)
                longest = max(longest, time.perf_counter() - started)
                print(f"{name}: {own['runs'][-1]}", flush=True)
                own |= summary(own["runs"])
                record.write("ablation", {"results": results}, asked.out)


if __name__ == "__main__":
    main()
