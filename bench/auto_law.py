"""The learning rate of small networks: a law like the published ones, which were fitted on 46 M parameters and more.

Each configuration (width, layers, tokens, batch, optimizer) is trained at learning rates a factor of 2 apart, until the
best lies between two others; its optimum is the vertex of a parabola in the logarithm of the rate. Weight decay, β2 and
warm-up are those that "auto" chooses beside each rate.
`lr = a · N^b · D^c · B^d` is fitted to the optima.

python bench/auto_law.py [--first COUNT] [--resume FILE] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import record
import torch
from small_runs import Setting, parameters, train

from shoestring.core.warmup import warmup_share
from shoestring.planning.auto import best_beta2
from shoestring.planning.regularisation import best_decay

FIRST = (0.005, 0.01)
"""Learning rates of the first runs."""
M = 1_000_000
DESIGN: tuple[tuple[int, int, int, int, str], ...] = (
    (64, 2, M // 2, 1024, "adamw"),
    (32, 2, M // 2, 1024, "adamw"),
    (128, 3, M // 2, 1024, "adamw"),
    (64, 2, M // 2, 1024, "muon"),
    (32, 2, M // 2, 1024, "muon"),
    (128, 3, M // 2, 1024, "muon"),
    (64, 2, 2 * M, 2048, "muon"),
    (64, 2, M // 2, 512, "adamw"),
    (32, 2, 2 * M, 2048, "adamw"),
    (64, 2, 2 * M, 2048, "adamw"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--resume", type=Path, default=Path("auto_law.jsonl"), help="finished runs, a line each")
    parser.add_argument("--out", type=Path, default=None, help="write the record here instead of results/")
    parser.add_argument("--first", type=int, default=len(DESIGN), help="only so many configurations")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    runs = Runs(arguments.resume)
    optima = []
    for width, layers, tokens, batch, optimizer in DESIGN[: arguments.first]:
        setting = Setting(
            width=width, layers=layers, tokens=tokens, batch=batch, lr=FIRST[0], optimizer=optimizer,
            beta2=best_beta2(batch).value, warmup=warmup_share(tokens // batch, 0.05, 50),
        )  # fmt: skip
        losses = sweep(runs, setting)
        optima.append(asdict(setting) | {"parameters": parameters(setting), "losses": losses, **vertex(losses)})
        print(json.dumps(optima[-1]), flush=True)
    laws = {kind: fit([o for o in optima if o["optimizer"] == kind]) for kind in ("adamw", "muon")}
    print(json.dumps(laws, indent=2))
    record.write("auto_law", {"optima": optima, "laws": laws}, arguments.out)


class Runs:
    """Losses of finished runs, kept in a file."""

    def __init__(self, path: Path):
        self._path = path
        lines = path.read_text().splitlines() if path.is_file() else []
        found = map(json.loads, lines)
        self._known = {_key(Setting(**each["setting"])): each["loss"] for each in found}

    def loss(self, setting: Setting) -> float:
        key = _key(setting)
        if key not in self._known:
            self._known[key] = train(setting)[-1][1]
            with self._path.open("a") as file:
                file.write(json.dumps({"setting": asdict(setting), "loss": self._known[key]}) + "\n")
        return self._known[key]


def _key(setting: Setting) -> str:
    return json.dumps(asdict(setting), sort_keys=True)


def sweep(runs: Runs, setting: Setting) -> dict[float, float]:
    """Losses by learning rate, until the best is neither the smallest nor the largest rate."""

    def loss(lr: float) -> float:
        decay = best_decay(parameters(setting), setting.tokens, setting.steps, lr).value
        return runs.loss(replace(setting, lr=lr, weight_decay=decay))

    losses = {lr: loss(lr) for lr in FIRST}
    while True:
        best = min(losses, key=lambda lr: losses[lr])
        if best == min(losses):
            new = best / 2
        elif best == max(losses):
            new = best * 2
        else:
            return dict(sorted(losses.items()))
        losses[new] = loss(new)


def vertex(losses: dict[float, float]) -> dict[str, float]:
    """The vertex of the parabola through the best rate and its neighbours, and the loss there."""
    rates = sorted(losses)
    at = rates.index(min(losses, key=lambda lr: losses[lr]))
    three = rates[at - 1 : at + 2]
    a, b, c = np.polyfit([math.log2(lr) for lr in three], [losses[lr] for lr in three], 2)
    return {"best_lr": float(2 ** (-b / (2 * a))), "best_loss": float(c - b * b / (4 * a)), "curvature": float(a)}


def fit(optima: list[dict[str, Any]]) -> dict[str, float] | None:
    """Least squares of log lr on log N, log D and log B, as far as they vary."""
    if len(optima) < 2:
        return None
    names = [name for name in ("parameters", "tokens", "batch") if len({o[name] for o in optima}) > 1]
    if len(optima) <= len(names):
        names = names[: len(optima) - 1]
    matrix = np.array([[1.0, *(math.log(o[name]) for name in names)] for o in optima])
    target = np.array([math.log(o["best_lr"]) for o in optima])
    found = np.linalg.lstsq(matrix, target, rcond=None)[0]
    error = float(np.sqrt(np.mean((matrix @ found - target) ** 2)))
    return {"factor": float(math.exp(found[0])), **dict(zip(names, map(float, found[1:]))), "error": error}


if __name__ == "__main__":
    main()
