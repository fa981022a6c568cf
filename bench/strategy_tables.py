"""The generated tables of strategies: the runs side by side, the virtual clock beside real runs, and starts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

QUIET = 1.0
"""The load of a machine whose seconds are worth reading."""
T = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""Student's t at 97.5 %, by the number of values."""


def strategies_table(records: Sequence[dict[str, Any]]) -> str:
    return "".join(map(_strategies, records))


def _strategies(r: dict[str, Any]) -> str:
    quiet = r["load"] < QUIET
    names = [
        "setting",
        "runs",
        "loss",
        "perplexity",
        "to sync 1",
        "macro-F1",
        "staleness, mean and most",
        "sent by each",
    ]
    names += ["seconds", "tokens/s", "speed-up"] if quiet else []
    lines = [f"| {' | '.join(names)} |\n", f"|{'---|' * len(names)}\n"]
    base = r["results"]["sync 1"]
    for name, runs in r["results"].items():
        if runs:
            cells = [name, str(len(runs)), *_learned(runs, base), *(_pace(runs, base) if quiet else [])]
            lines.append(f"| {' | '.join(cells)} |\n")
    chosen = "; ".join(f"{strategy} {_chosen(tried)}" for strategy, tried in r["tuning"].items())
    said = f"Best of what each strategy tried, by the loss of another seed: {chosen}. "
    said += "Losses with 95 % intervals over seeds where there are several. "
    said += "" if quiet else f"The machine was busy (load {r['load']:.0f} on two cores): no seconds. "
    said += f"Left out, as the time was over: {len(r['left_out'])} runs. " if r["left_out"] else ""
    return "".join(lines) + f"\n{said}By `{r['command']}`, {r['commit']}, {r['date']}.\n"


def _learned(runs: list[dict[str, Any]], base: list[dict[str, Any]]) -> list[str]:
    loss, one = (statistics.fmean(run["loss"] for run in part) for part in (runs, base[: len(runs)]))
    scores = [run["macro_f1"] for run in runs if run.get("macro_f1") is not None]
    stale = [run for run in runs if run["staleness_mean"] is not None]
    mean = statistics.fmean(run["staleness_mean"] for run in stale) if stale else 0.0
    sent = runs[0]["sent_bytes"]
    return [
        _interval([run["loss"] for run in runs]),
        f"{math.exp(loss):.1f}",
        f"{loss / one - 1:+.1%}",
        _interval(scores) if scores else "–",
        f"{mean:.2f}, {max(run['staleness_max'] for run in stale)}" if stale else "–",
        "–" if not sent else f"{sent / 1e6:.1f} MB",
    ]


def _pace(runs: list[dict[str, Any]], base: list[dict[str, Any]]) -> list[str]:
    seconds, one = (statistics.fmean(run["training_seconds"] for run in part) for part in (runs, base))
    whole = statistics.fmean(run["seconds"] for run in runs)
    return [f"{whole:.1f}", f"{runs[0]['tokens'] / seconds:,.0f}", f"{one / seconds:.2f}×"]


def _interval(values: list[float]) -> str:
    mean = statistics.fmean(values)
    if len(values) < 2:
        return f"{mean:.3f}"
    half = T[len(values)] * statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean:.3f} ± {half:.3f}"


def _chosen(tried: list[dict[str, Any]]) -> str:
    best = min(tried, key=lambda each: each["loss"])
    fields = ", ".join(f"{name} {value}" for name, value in best["fields"].items())
    losses = ", ".join(f"{each['loss']:.3f}" for each in tried)
    return f"{fields} ({losses})"


def stragglers_table(records: Sequence[dict[str, Any]]) -> str:
    return "".join(map(_stragglers, records))


def _stragglers(r: dict[str, Any]) -> str:
    lines = ["| run | simulated | taken | error | throughput to sync |\n", "|---|---|---|---|---|\n"]
    for name, told in r["results"].items():
        error = told["simulated"] / told["seconds"] - 1
        sync = r["results"]["sync" + name[name.index(",") :]]
        cells = [name, f"{told['simulated']:.1f} s", f"{told['seconds']:.1f} s", f"{error:+.1%}"]
        lines.append(f"| {' | '.join(cells)} | {sync['seconds'] / told['seconds']:.2f}× |\n")
    steps = f"{r['steps']} steps whose passes sleep, {r['share']} for the rows of each worker"
    said = f"{steps}; load {r['load']:.0f} on two cores. By `{r['command']}`, {r['commit']}, {r['date']}."
    return f"{''.join(lines)}\n{said}\n"


def starts_line(records: Sequence[dict[str, Any]]) -> str:
    return "".join(
        f"{r['hung']} of {len(r['results'])} starts hung: {_ends(r['results'])}. By `{r['command']}`, {r['commit']}, "
        f"{r['date']}.\n"
        for r in records
    )


def _ends(results: list[dict[str, Any]]) -> str:
    killed = sum(-9 in each["codes"] for each in results)
    stopped = sum(each["end"].startswith("SIGTERM") and not each["done"] for each in results)
    rest = len(results) - killed - stopped
    stops = f"{killed} lost a process to kill -9, {stopped} were stopped by SIGTERM"
    return f"{stops}, {rest} had no accident or ended before it"
