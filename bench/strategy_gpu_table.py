"""The generated table of strategies on one GPU."""

from __future__ import annotations

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
    said += "whole command, tokens/s of the steps after the first fifth. "
    said += f"Left out, as the time was over: {', '.join(r['left_out'])}. " if r["left_out"] else ""
    return "".join(lines) + f"\n{said}By `{r['command']}`, {r['commit']}, {r['date']}.\n"
