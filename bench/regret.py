"""Regret of `auto`: its held-out loss against the best of random settings of the same work, on the real stories.

Every run has the same FLOPs, not the same time, so a busy machine changes nothing. Size, batch, learning rate and decay
are drawn at random, by their logarithms.

python bench/regret.py [--runs 12] [--flops 4e11] [--unique TOKENS] [--resume FILE] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import math
import random
from dataclasses import asdict
from pathlib import Path

import record
import torch
from auto_law import Runs
from small_runs import LENGTH, VOCABULARY, Setting

from shoestring.core.family import network_cost
from shoestring.core.recipe_file import build
from shoestring.core.sections import number
from shoestring.core.warmup import least_steps, warmup_share
from shoestring.planning.auto import Facts, choose

SIZES = ((32, 2), (48, 2), (64, 2), (96, 2), (128, 2), (128, 3))
BATCHES = (128, 256, 512, 1024, 2048)
RATES, DECAYS = (5e-4, 3e-2), (0.03, 3.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=12, help="random settings")
    parser.add_argument("--flops", type=float, default=4e11, help="of each run")
    parser.add_argument("--unique", type=int, default=None, help="positions of text; default: none is repeated")
    parser.add_argument("--resume", type=Path, default=Path("regret.jsonl"), help="finished runs, a line each")
    parser.add_argument("--out", type=Path, default=None, help="write the record here instead of results/")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    runs, drawn = Runs(arguments.resume), random.Random(0)
    chosen = auto_setting(arguments.flops, arguments.unique)
    loss = runs.loss(chosen)
    print("auto", asdict(chosen), loss, flush=True)
    others = []
    for _ in range(arguments.runs):
        setting = random_setting(drawn, arguments.flops, arguments.unique)
        others.append({"setting": asdict(setting), "loss": runs.loss(setting)})
        print(others[-1], flush=True)
    best = min(other["loss"] for other in others)
    values = {"auto": {"setting": asdict(chosen), "loss": loss}, "random": others, "regret": loss / best - 1}
    print(f"regret {values['regret']:+.2%}")
    name = "regret" if arguments.unique is None else "regret_repeated"
    record.write(name, values | {"flops": arguments.flops, "unique": arguments.unique}, arguments.out)


def tokens_for(flops: float, setting: Setting) -> int:
    return int(flops / network_cost(setting.model, VOCABULARY, LENGTH).train_flops_per_token)


def log_uniform(drawn: random.Random, ends: tuple[float, float]) -> float:
    return math.exp(drawn.uniform(*map(math.log, ends)))


def random_setting(drawn: random.Random, flops: float, unique: int | None) -> Setting:
    width, layers = drawn.choice(SIZES)
    rate, decay = (log_uniform(drawn, ends) for ends in (RATES, DECAYS))
    batch = drawn.choice(BATCHES)
    made = Setting(width=width, layers=layers, tokens=1, batch=batch, lr=rate, weight_decay=decay, unique=unique)
    return Setting(**asdict(made) | {"tokens": tokens_for(flops, made)})


def auto_setting(flops: float, unique: int | None) -> Setting:
    """What a recipe with this budget and nothing else given is trained with."""
    recipe = build(
        {
            "budget": {"flops": flops, **({} if unique is None else {"epochs": "auto"})},
            "data": {"length": LENGTH},
            "model": {"size": "auto", "dropout": "auto"},
            "train": {"lr": "auto", "warmup": "auto", "weight_decay": "auto", "beta2": "auto"},
        },
        "regret",
    )
    facts = Facts(vocabulary=VOCABULARY, unique=unique, device="cpu", speed=None)
    made = choose(recipe, facts).applied(recipe, "regret")
    model, train = made.model, made.train
    setting = Setting(
        width=model.width,
        layers=model.layers,
        tokens=1,
        batch=made.batch * LENGTH,
        lr=number(train.lr),
        unique=unique,
        weight_decay=number(train.weight_decay),
        beta2=number(train.beta2),
        dropout=number(model.dropout),
    )
    tokens = tokens_for(flops, setting)
    if unique is not None:
        tokens = min(tokens, int(number(made.budget.epochs or 1.0) * unique))
    warmup = warmup_share(max(1, tokens // setting.batch), number(train.warmup), least_steps(made))
    return Setting(**asdict(setting) | {"tokens": tokens, "warmup": warmup})


if __name__ == "__main__":
    main()
