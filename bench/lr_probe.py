"""Whether short probes of the learning rate inside the budget beat the law alone: regret against the best of three.

Every task is trained at factors of the law's rate, full length. A probe is a short run at one factor, with a warm-up
and a decay of its own; the factor with the lowest held-out loss is taken. The steps of all probes are taken from the
run.

python bench/lr_probe.py [--seeds 3] [--tasks "NAME;NAME"] [--resume FILE] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import record
import torch
from auto_law import Runs
from small_runs import Setting, parameters

from shoestring.core.warmup import warmup_share
from shoestring.planning.auto import best_beta2
from shoestring.planning.rates import best_lr
from shoestring.planning.regularisation import best_decay

SHARE = 0.08
"""Of the steps, what all probes may take together."""
FULL = (0.5, 1.0, 2.0)
"""Factors of the law's rate at full length."""
SHORT = (0.125, 0.25, *FULL)
"""Factors of probes."""
LENGTHS = {"third": SHARE / 3, "whole": SHARE}
"""Of a probe: three of them make up the share, or each takes as much."""
WAYS: dict[str, tuple[str, dict[float, float]]] = {
    "near": ("third", {0.5: 0.5, 1.0: 1.0, 2.0: 2.0}),
    "shorter runs want less": ("third", {0.125: 0.5, 0.25: 1.0, 0.5: 2.0}),
    "near, three times the share": ("whole", {0.5: 0.5, 1.0: 1.0, 2.0: 2.0}),
    "shorter runs want less, three times the share": ("whole", {0.25: 0.5, 0.5: 1.0, 1.0: 2.0}),
}
"""The length of a probe, and by its factor that of the run."""
TASKS = {
    "stories": {"text": "stories", "optimizer": "adamw"},
    "wikitext": {"text": "wikitext", "optimizer": "adamw"},
    "stories, muon": {"text": "stories", "optimizer": "muon"},
}


def setting_of(task: str, seed: int, tokens: int) -> Setting:
    """The setting of a task with the law's rate."""
    setting = Setting(width=32, layers=2, tokens=tokens, batch=128, lr=1.0, seed=seed, **TASKS[task])  # type: ignore[arg-type]
    n = parameters(setting)
    return replace(
        setting,
        lr=best_lr(n, tokens, setting.batch, setting.optimizer).value,
        beta2=best_beta2(setting.batch).value,
    )


def run(runs: Runs, setting: Setting, factor: float, share: float = 1.0) -> float:
    """The held-out loss at a factor of the setting's rate, in a share of its steps."""
    lr = setting.lr * factor
    tokens = round(setting.tokens * share)
    short = replace(setting, lr=lr, tokens=tokens)
    decay = best_decay(parameters(setting), setting.tokens, setting.steps, lr).value
    return runs.loss(replace(short, weight_decay=decay, warmup=warmup_share(short.steps, 0.05, 50)))


def regrets(full: Mapping[float, float], short: Mapping[str, Mapping[float, float]], paid: float) -> dict[str, float]:
    """Loss over the best of the three, minus 1: of the law, and of each way of probing; `paid` is by what factor a run
    is worse that is shorter by the share."""
    best = min(full.values())
    found = {"law": full[1.0] / best - 1}
    for name, (length, factors) in WAYS.items():
        losses = short[length]
        winner = factors[min(factors, key=lambda factor: losses[factor])]
        found[name] = full[winner] * paid / best - 1
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=250_000, help="positions of a full run")
    parser.add_argument("--tasks", default=";".join(TASKS), help="names, with ; between them")
    parser.add_argument("--resume", type=Path, default=Path("lr_probe.jsonl"), help="finished runs, a line each")
    parser.add_argument("--out", type=Path, default=None, help="write the record here instead of results/")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    runs = Runs(arguments.resume)
    results: dict[str, Any] = {}
    for task in arguments.tasks.split(";"):
        paid, found = 0.0, list[dict[str, Any]]()
        for seed in range(arguments.seeds):
            setting = setting_of(task, seed, arguments.tokens)
            short = {
                name: {factor: run(runs, setting, factor, share) for factor in SHORT} for name, share in LENGTHS.items()
            }
            full = {factor: run(runs, setting, factor) for factor in FULL}
            if not paid:
                paid = run(runs, setting, 1.0, 1 - SHARE) / full[1.0]
            found.append({"seed": seed, "full": full, "short": short, "regret": regrets(full, short, paid)})
            print(task, json.dumps(found[-1]), flush=True)
        means = {name: statistics.mean(each["regret"][name] for each in found) for name in ("law", *WAYS)}
        results[task] = {"lr": setting.lr, "steps": setting.steps, "paid": paid, "seeds": found, "regret": means}
        print(task, {name: f"{value:.2%}" for name, value in means.items()}, f"paid {paid - 1:.2%}", flush=True)
    record.write("lr_probe", {"share": SHARE, "tasks": results}, arguments.out)


if __name__ == "__main__":
    main()
