"""What each part of a Swift is worth: all parts, each left out in turn, AdamW for Muon, and a Llama.

python bench/ablation.py [--width 128] [--layers 3] [--heads 4] [--length 128] [--batch 12] [--steps 200 | --seconds 60]
                         [--seeds 3] [--rates 0.0075 0.015] [--adamw-rates 0.003] [--llama-rates 0.015 0.03]
                         [--source stories] [--tokenizer words:640] [--only NAME ...] [--out FOLDER]

With --steps all have as many steps. With --seconds each has as many as it can take in so many seconds of training, by
a run of 100 steps before. Rates of a variant are compared by the mean over seeds. The record is written after each run,
and runs that it has are not repeated.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import record
import torch

import shoestring
from shoestring.core.recipe import Recipe
from shoestring.core.scoring_sections import Evaluate
from shoestring.core.sections import Budget, Data, Model, Run, Train
from shoestring.core.specs import PartsSpec, SourceSpec, TokenizerSpec
from shoestring.models.language_model import build
from shoestring.probe.machine import pick_device
from shoestring.training.learner import Learner

PARTS = tuple(name for name in PartsSpec.names if name != "embedding_norm")
"""All that are left out in turn."""
PROBE = 100
"""Steps that measure the speed of a variant."""
VOCABULARY = 640
"""Ids of the rows with which steps on a CPU are timed."""
TIMED = 8


def variants() -> dict[str, dict[str, Any]]:
    """The fields of [model] and [train] that differ, by name."""
    every = {"family": "swift", "tied": False, "parts": ", ".join(PARTS)}
    found: dict[str, dict[str, Any]] = {"all parts": every}
    for name in PARTS:
        found[f"no {name}"] = every | {"parts": ", ".join(part for part in PARTS if part != name)}
    found["tied head"] = every | {"tied": True}
    found["with embedding_norm"] = every | {"parts": ", ".join([*PARTS, "embedding_norm"])}
    found["adamw"] = every | {"optimizer": "adamw"}
    found["qk_norm and gains"] = {"family": "swift", "parts": "qk_norm, gains"}
    found["llama"] = {"family": "llama"}
    return found


def recipe_of(
    asked: argparse.Namespace, variant: dict[str, Any], lr: float, seed: int, steps: int, place: Path
) -> Recipe:
    shape = {"width": asked.width, "layers": asked.layers, "heads": asked.heads}
    model = {name: value for name, value in variant.items() if name != "optimizer"}
    return Recipe(
        run=Run(name=str(time.time_ns()), folder=str(place / "runs"), seed=seed),
        budget=Budget(steps=steps),
        data=Data(
            source=SourceSpec(asked.source),
            tokenizer=TokenizerSpec(asked.tokenizer),
            length=asked.length,
            folder=str(place / "stores"),
        ),
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


def speed(asked: argparse.Namespace, variant: dict[str, Any], lr: float, place: Path) -> float:
    """Steps per second of training."""
    outcome = shoestring.train(recipe_of(asked, variant, lr, 0, PROBE, place), show=False).outcome
    return outcome.tokens_per_second / (asked.batch * asked.length)


def measured(asked: argparse.Namespace, name: str, lr: float, seed: int, steps: int, place: Path) -> dict[str, Any]:
    """One run."""
    recipe = recipe_of(asked, variants()[name], lr, seed, steps, place)
    run = shoestring.train(recipe, show=False)
    step = asked.batch * asked.length / run.outcome.tokens_per_second
    found = {"lr": lr, "seed": seed, "steps": run.outcome.steps, "loss": run.outcome.loss, "wall_step_seconds": step}
    return found | ({"cpu_step_seconds": step_seconds(recipe)} if pick_device().type == "cpu" else {})


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The best rate by the mean over seeds, with that mean and its standard error."""
    by_rate: dict[float, list[float]] = {}
    for run in runs:
        by_rate.setdefault(run["lr"], []).append(run["loss"])
    lr, losses = min(by_rate.items(), key=lambda item: statistics.mean(item[1]))
    error = statistics.stdev(losses) / len(losses) ** 0.5 if len(losses) > 1 else None
    return {"lr": lr, "loss": statistics.mean(losses), "error": error, "seeds": len(losses)}


def rates_of(asked: argparse.Namespace, name: str) -> list[float]:
    special: dict[str, list[float]] = {"adamw": asked.adamw_rates, "llama": asked.llama_rates}
    return special.get(name, asked.rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, kind, usual in (
        ("width", int, 128), ("layers", int, 3), ("heads", int, 4), ("length", int, 128), ("batch", int, 12),
        ("steps", int, 200), ("seconds", float, None), ("seeds", int, 3), ("rows", int, 256),
        ("source", str, "stories"), ("tokenizer", str, "words:640"), ("schedule", str, "cosine"),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=kind, default=usual)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.0075, 0.015])
    parser.add_argument("--adamw-rates", type=float, nargs="+", default=[0.003, 0.006])
    parser.add_argument("--llama-rates", type=float, nargs="+", default=[0.015, 0.03])
    parser.add_argument("--only", nargs="+", choices=list(variants()), default=list(variants()))
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    size = f"{asked.width} × {asked.layers}, {asked.tokenizer}, {asked.batch} rows of {asked.length}, "
    size += f"{asked.steps} steps" if asked.seconds is None else f"{asked.seconds:g} s"
    results = record.earlier("ablation", asked.out)
    found: dict[str, Any] = results.setdefault(size, {})
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        for seed in range(asked.seeds):
            for name in asked.only:
                own = found.setdefault(name, {"runs": []})
                for lr in rates_of(asked, name):
                    if any((run["lr"], run["seed"]) == (lr, seed) for run in own["runs"]):
                        continue
                    if asked.seconds is not None and "steps_per_second" not in own:
                        own["steps_per_second"] = speed(asked, variants()[name], lr, place)
                    steps = asked.steps if asked.seconds is None else int(asked.seconds * own["steps_per_second"])
                    own["runs"].append(measured(asked, name, lr, seed, steps, place))
                    print(name, own["runs"][-1], flush=True)
                    found[name] = own | summary(own["runs"])
                    own = found[name]
                    record.write("ablation", {"results": results}, asked.out)


if __name__ == "__main__":
    main()
