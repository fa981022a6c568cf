"""The generated table of strategies on one GPU."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

HEAD = (
    "setting",
    "effective batch",
    "loss",
    "perplexity",
    "seconds",
    "tokens/s",
    "speed-up",
    "staleness, mean and most",
)

FIRST_FIFTH = 0.2
"""Of the steps, left out of the pace by older records."""


def strategies_gpu_table(records: Sequence[dict[str, Any]]) -> str:
    return "".join(map(_table, records))


def _table(r: dict[str, Any]) -> str:
    lines = [f"| {' | '.join(HEAD)} |\n", f"|{'---|' * len(HEAD)}\n"]
    base = r["results"].get("sync 1")
    for name, (run,) in r["results"].items():
        stale = run["staleness_mean"]
        cells = [
            name,
            str(run["batch"]),
            f"{run['loss']:.3f}",
            f"{run['perplexity']:.0f}",
            f"{run['seconds']:.1f}",
            f"{run['tokens_per_second']:,.0f}",
            "–" if base is None else f"{run['tokens_per_second'] / base[0]['tokens_per_second']:.2f}×",
            "–" if stale is None else f"{stale:.2f}, {run['staleness_max']}",
        ]
        lines.append(f"| {' | '.join(cells)} |\n")
    rates = {name.split()[0]: f"{run['lr']:g}" for name, (run,) in r["results"].items()}
    said = f"{r['machine']['device_name']}, {r['steps']} steps from random weights; `local` averages every "
    said += f"{r['sync_every']}. Rates, not tuned here: {', '.join(map(' '.join, rates.items()))}. Seconds are of the "
    said += f"whole command, tokens/s of the last steps: {_paced(r)}. "
    said += f"Left out, as the time was over: {', '.join(r['left_out'])}. " if r["left_out"] else ""
    commits = ", ".join(dict.fromkeys(run["commit"] for (run,) in r["results"].values()))
    command = re.sub(r" --only \S+", "", re.sub(r"--data \S+", "--data FOLDER", r["command"]))
    return "".join(lines) + f"\n{said}By `{command}`, {commits}, {r['date']}.\n"


def _paced(r: dict[str, Any]) -> str:
    """Of which share of the steps the pace of each setting is."""
    shares: dict[float, list[str]] = {}
    for name, (run,) in r["results"].items():
        shares.setdefault(1 - run.get("paced_from", FIRST_FIFTH), []).append(name)
    return "; ".join(f"{share:.0%} of them for {', '.join(names)}" for share, names in shares.items())
