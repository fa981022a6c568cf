"""Means of the weights beside the weights themselves: held-out losses at the end of runs whose learning rate decays.

One training gives all of them: the mean over the last steps, and running means whose memory is a share of the run.

python bench/weight_average.py [--seeds 3] [--tasks "NAME;NAME"] [--resume FILE] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import record
import torch
from small_runs import Setting, parameters, train
from torch import Tensor

from shoestring.core.warmup import warmup_share
from shoestring.planning.auto import best_beta2
from shoestring.planning.rates import best_lr
from shoestring.planning.regularisation import best_decay, best_dropout
from shoestring.training.learner import Learner

SHARES = (0.02, 0.05, 0.1, 0.2)
"""Of the run: what a mean is over."""
SCORES = 2
M = 1_000_000


def chosen(**values: Any) -> Setting:
    """A setting with what "auto" chooses."""
    setting = Setting(lr=1.0, **values)
    n, d, steps = parameters(setting), setting.tokens, setting.steps
    lr = best_lr(n, d, setting.batch, setting.optimizer).value
    dropout = best_dropout(n, setting.unique, None if setting.unique is None else d / setting.unique).value
    return replace(
        setting, lr=lr, weight_decay=best_decay(n, d, steps, lr, setting.unique).value, dropout=dropout,
        beta2=best_beta2(setting.batch).value, warmup=warmup_share(steps, 0.05, 50),
    )  # fmt: skip


TASKS: dict[str, Callable[[], Setting]] = {
    "read once, cosine": lambda: chosen(width=64, layers=2, tokens=M, batch=1024),
    "read once, linear": lambda: chosen(width=64, layers=2, tokens=M, batch=1024, schedule="linear"),
    "400 kB, 8 epochs": lambda: chosen(width=32, layers=2, tokens=3_200_000, batch=2048, unique=400_000),
    "demo": lambda: Setting(
        width=128, layers=3, tokens=600 * 12 * 128, batch=12 * 128, lr=1.5e-2, optimizer="muon",
        warmup=warmup_share(600, 0.05, 50), text="words",
    ),
}  # fmt: skip


class Means:
    """Running means of the weights, and means over the last steps."""

    def __init__(self, setting: Setting) -> None:
        self._steps, self._kept = setting.steps, dict[str, dict[str, Tensor]]()
        self._learner: Learner | None = None
        self.losses: list[dict[str, float]] = []

    @torch.no_grad()
    def after(self, step: int, learner: Learner) -> None:
        self._learner = learner
        for share in SHARES:
            memory = max(1.0, share * self._steps)
            self._add(f"running {share:g}", learner, 1 / min(memory, step))
            if (first := step - (self._steps - round(memory))) > 0:
                self._add(f"last {share:g}", learner, 1 / first)

    def _add(self, name: str, learner: Learner, weight: float) -> None:
        masters = learner.optimizer.masters
        means = self._kept.setdefault(name, {key: p.detach().clone() for key, p in masters.items()})
        for key, mean in means.items():
            mean.lerp_(masters[key].detach(), weight)

    @torch.no_grad()
    def score(self, _: int, score: Callable[[], float]) -> None:
        assert self._learner is not None, "an update came before"
        masters, found = self._learner.optimizer.masters, dict[str, float]()
        own = {key: p.detach().clone() for key, p in masters.items()}
        for name, means in self._kept.items():
            for key, mean in means.items():
                masters[key].copy_(mean)
            found[name] = score()
        for key, weights in own.items():
            masters[key].copy_(weights)
        self.losses.append(found)


def measured(setting: Setting) -> dict[str, Any]:
    """Losses along a run: of its weights, and of each mean."""
    means = Means(setting)
    plain = train(setting, SCORES, means.after, means.score)
    return {
        "setting": asdict(setting),
        "losses": [{"step": step, "plain": loss} | found for (step, loss), found in zip(plain, means.losses)],
    }


def gains(runs: list[dict[str, Any]]) -> dict[str, tuple[float, float]]:
    """By how much each mean's last loss is below that of the weights: mean over the seeds, and its standard error."""
    ends = [run["losses"][-1] for run in runs]
    found = {}
    for name in (name for name in ends[0] if name not in ("step", "plain")):
        shares = [1 - end[name] / end["plain"] for end in ends]
        error = statistics.stdev(shares) / len(shares) ** 0.5 if len(shares) > 1 else 0.0
        found[name] = statistics.mean(shares), error
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", default=";".join(TASKS), help="names, with ; between them")
    parser.add_argument("--resume", type=Path, default=Path("weight_average.jsonl"), help="finished runs, a line each")
    parser.add_argument("--out", type=Path, default=None, help="write the record here instead of results/")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    lines = arguments.resume.read_text().splitlines() if arguments.resume.is_file() else []
    known = {json.dumps(each["setting"], sort_keys=True): each for each in map(json.loads, lines)}
    results = {}
    for task in arguments.tasks.split(";"):
        runs = []
        for seed in range(arguments.seeds):
            setting = replace(TASKS[task](), seed=seed)
            key = json.dumps(asdict(setting), sort_keys=True)
            if key not in known:
                known[key] = measured(setting)
                with arguments.resume.open("a") as file:
                    file.write(json.dumps(known[key]) + "\n")
            runs.append(known[key])
            print(task, seed, json.dumps({k: round(v, 4) for k, v in runs[-1]["losses"][-1].items()}), flush=True)
        results[task] = {"gains": gains(runs), "runs": runs}
        shown = {name: f"{gain:+.2%} ± {error:.2%}" for name, (gain, error) in gains(runs).items()}
        print(task, json.dumps(shown), flush=True)
    record.write("weight_average", {"tasks": results}, arguments.out)


if __name__ == "__main__":
    main()
