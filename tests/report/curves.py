"""Curves of runs that never were: a known law, a schedule, noise, and faults that are planted."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Lines = list[dict[str, Any]]


def cosine(step: int, steps: int, warmup: float = 0.05) -> float:
    """The learning rate as a share of its peak."""
    progress = (step - 0.5) / steps
    return (
        progress / warmup if progress < warmup else 0.5 + 0.5 * math.cos(math.pi * (progress - warmup) / (1 - warmup))
    )


def clean_lines(
    steps: int = 400, noise: float = 0.02, seed: int = 0, evaluations: int = 10, error: float | None = 0.01
) -> Lines:
    """A run that falls as 1.2 + 6 s^-0.4, with heavy-tailed noise of its batches."""
    random = np.random.default_rng(seed)
    lines: Lines = []
    for step in range(1, steps + 1):
        loss = 1.2 + 6 * step**-0.4
        seen = loss * (1 + noise * float(random.standard_t(5)))
        norm = 0.8 * float(np.exp(0.2 * random.standard_normal()))
        lines.append({"step": step, "loss": max(0.1, seen), "lr": 1e-3 * cosine(step, steps), "grad_norm": norm})
        if step % (steps // evaluations) == 0:
            lines.append({"step": step, "heldout_loss": loss + 0.02 + 0.003 * float(random.standard_normal())})
            lines[-1] |= {} if error is None else {"heldout_error": error}
    return lines


def changed(lines: Lines, name: str, change: Any) -> Lines:
    """The lines with `name` replaced by change(step, value), wherever they have it."""
    return [line | {name: change(line["step"], line[name])} if name in line else line for line in lines]
