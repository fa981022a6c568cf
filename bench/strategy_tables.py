"""The generated tables of strategies: the runs side by side, the virtual clock beside real runs, and starts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

QUIET = 0.3
"""Cores that others may keep busy when a run begins whose seconds are worth reading."""
T = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""Student's t at 97.5 %, by the number of values."""
NAMES = [
    "setting",
    "total batch",
    "runs",
    "loss",
    "perplexity",
    "to sync 1",
    "macro-F1",
    "staleness, mean and most",
    "sent by each",
    "seconds",
    "tokens/s",
    "speed-up",
]
FIGURE = "images/strategies.svg"


def strategies_table(records: Sequence[dict[str, Any]]) -> str:
    return "".join(map(_strategies, records))


def _strategies(r: dict[str, Any]) -> str:
    lines = [f"| {' | '.join(NAMES)} |\n", f"|{'---|' * len(NAMES)}\n"]
    base = r["results"]["sync 1"]
    for name, runs in r["results"].items():
        if runs:
            cells = [name, str(runs[0]["batch"]), str(len(runs)), *_learned(runs, base), *_pace(runs, base)]
            lines.append(f"| {' | '.join(cells)} |\n")
    chosen = "; ".join(f"{strategy} {_chosen(strategy, r)}" for strategy in r["tuning"])
    busy = [name for name, runs in r["results"].items() if not _is_quiet(runs)]
    said = f"Settings, each strategy's own, by the loss of another seed: {chosen}. "
    said += "95 % intervals over seeds; to sync 1 seed by seed. "
    said += f"No seconds, as the machine was busy: {', '.join(busy)}. " if busy else ""
    said += f"Left out: {len(r['left_out'])} runs. " if r["left_out"] else ""
    if r.get("seconds"):
        chosen_in = f", and choosing the rates {r['tuning_seconds'] / 60:.1f}" if "tuning_seconds" in r else ""
        said += f"All of these runs took {r['seconds'] / 60:.1f} minutes{chosen_in}. "
    said += f"By `{r['command']}`, {r['commit']}, {r['date']}.\n"
    figure = f"\n![Held-out loss against seconds, first seed](../{FIGURE})\n" if timed(r) else ""
    return "".join(lines) + f"\n{said}{figure}"


def timed(r: dict[str, Any]) -> list[str]:
    """The settings of a record with seconds worth drawing; none if there is only one."""
    found = [name for name, runs in r["results"].items() if _is_quiet(runs)]
    return found if len(found) > 1 else []


def draw_strategies(records: Sequence[dict[str, Any]], folder: Path) -> None:
    """strategies.svg: held-out loss against seconds since the start, of the first seed."""
    from shoestring.report.figures import svg
    from shoestring.report.sweep_figures import Line, step_curves

    for r in records:
        lines = [Line(name, name, [(x, y) for x, y in r["results"][name][0]["curve"]]) for name in timed(r)]
        if lines:
            (folder / FIGURE).write_text(svg(step_curves(lines, "held-out loss", "seconds")) + "\n")


def _is_quiet(runs: list[dict[str, Any]]) -> bool:
    busy = [run.get("busy_cores") for run in runs]
    return bool(busy) and all(cores is not None and cores < QUIET for cores in busy)


def _learned(runs: list[dict[str, Any]], base: list[dict[str, Any]]) -> list[str]:
    loss, one = (statistics.fmean(run["loss"] for run in part) for part in (runs, base[: len(runs)]))
    scores = [run["macro_f1"] for run in runs if run.get("macro_f1") is not None]
    stale = [run for run in runs if run["staleness_mean"] is not None]
    mean = statistics.fmean(run["staleness_mean"] for run in stale) if stale else 0.0
    sent = runs[0]["sent_bytes"]
    return [
        _interval([run["loss"] for run in runs]),
        f"{math.exp(loss):.1f}",
        f"{loss / one - 1:+.1%}" + _apart(runs, base),
        _interval(scores) if scores else "–",
        f"{mean:.2f}, {max(run['staleness_max'] for run in stale)}" if stale else "–",
        "–" if not sent else f"{sent / 1e6:.1f} MB",
    ]


def _apart(runs: list[dict[str, Any]], base: list[dict[str, Any]]) -> str:
    """Half of the 95 % interval of the difference, seed by seed; the seeds differ more than the settings do."""
    ratios = [run["loss"] / one["loss"] for run, one in zip(runs, base, strict=False)]
    if len(ratios) < 2 or runs is base:
        return ""
    return f" ± {T[len(ratios)] * statistics.stdev(ratios) / math.sqrt(len(ratios)):.1%}"


def _pace(runs: list[dict[str, Any]], base: list[dict[str, Any]]) -> list[str]:
    if not _is_quiet(runs):
        return ["–"] * 3
    seconds, one = (statistics.fmean(run["training_seconds"] for run in part) for part in (runs, base))
    whole, rate = _interval([run["seconds"] for run in runs], 1), f"{runs[0]['tokens'] / seconds:,.0f}"
    return [whole, rate, f"{one / seconds:.2f}×" if _is_quiet(base) else "–"]


def _interval(values: list[float], digits: int = 3) -> str:
    mean = statistics.fmean(values)
    if len(values) < 2:
        return f"{mean:.{digits}f}"
    half = T[len(values)] * statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean:.{digits}f} ± {half:.{digits}f}"


def _chosen(strategy: str, r: dict[str, Any]) -> str:
    """The fields of a strategy's rows, and the losses of all that was tried."""
    tried = r["tuning"][strategy]
    fields = min(tried, key=lambda each: each["loss"])["fields"]
    rows = [row for name, rows in r["results"].items() if name.startswith(strategy) for row in rows]
    used = rows[0].get("fields", fields) if rows else fields
    losses = ", ".join(f"{_told(each['fields'], used)}{each['loss']:.3f}" for each in tried)
    said = "" if used == fields else "; not the lowest, see results/log.md"
    return f"{', '.join(f'{name} {value}' for name, value in used.items())} (tried: {losses}{said})"


def _told(fields: dict[str, str], used: dict[str, str]) -> str:
    """What differs from the fields that are used."""
    return "".join(f"{name.partition('.')[2]} {value} " for name, value in fields.items() if used.get(name) != value)


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
