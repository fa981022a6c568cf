"""The generated tables and the figure of `bench/icll_sweep.py`: times, the grid of HMMs, Llamas on their streams."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

NAMES = {"hmms": "HMMs over states, words and lengths", "llamas": "Llamas on their streams", "update": "HMMs by update"}


def icll_table(records: Sequence[dict[str, Any]]) -> str:
    """Of each record: times beside their forecasts, the losses of the grid, and those of the Llamas."""
    return "".join(_times(r) + _grid(r) + _llamas(r) for r in records if not r["small"])


def _times(r: dict[str, Any]) -> str:
    lines = ["| sweep | runs | forecast | taken | off |\n", "|---|---|---|---|---|\n"]
    for name, label in NAMES.items():
        found = r["results"][name]
        times = f"{found['forecast']:.0f} s | {found['seconds']:.0f} s | {found['off']:+.1%}"
        lines.append(f"| {label} | {len(found['runs'])} | {times} |\n")
    machine = f"{r['machine']['device_name']}, torch {r['machine']['versions']['torch']}"
    return "".join(lines) + f"\nBy `{r['command']}` on {machine}, {r['commit']}, {r['date']}.\n\n"


def _grid(r: dict[str, Any]) -> str:
    """Held-out losses, a row for each number of states."""
    cells = {
        (run["values"]["hmm.states"], run["values"]["data.tokenizer"], run["values"]["data.length"]): run["loss"]
        for run in r["results"]["hmms"]["runs"]
    }
    columns = sorted({key[1:] for key in cells})
    head = " | ".join(f"{words.removeprefix('words:')} words, rows of {length}" for words, length in columns)
    lines = [f"| states | {head} |\n", "|---" * (len(columns) + 1) + "|\n"]
    for states in sorted({key[0] for key in cells}):
        losses = (f"{cells[states, *column]:.3f}" for column in columns)
        lines.append(f"| {states} | {' | '.join(losses)} |\n")
    return "".join(lines) + "\nHeld-out nats per token after six epochs.\n\n"


def _llamas(r: dict[str, Any]) -> str:
    lines = ["| Llama on the stream of | held-out loss | positions |\n", "|---|---|---|\n"]
    for run in r["results"]["llamas"]["runs"]:
        stream = run["values"]["data.stream"].removeprefix("hmm:runs/")
        lines.append(f"| {stream} | {run['loss']:.3f} | {run['tokens'] / 1e6:.0f} M |\n")
    return "".join(lines)


def draw_updates(records: Sequence[dict[str, Any]], folder: Path) -> None:
    """icll_updates.svg: held-out loss against tokens, by the rows between two updates."""
    from shoestring.report.figures import svg
    from shoestring.report.sweep_figures import Line, step_curves

    for r in records:
        curves = r["results"]["update"]["curves"]
        lines = [
            Line(name, name.removeprefix("update-update_every") + " rows", [(x, y) for x, y in points])
            for name, points in curves.items()
        ]
        figure = svg(step_curves(lines, "held-out loss", "tokens"))
        (folder / "icll_updates.svg").write_text(figure + "\n")
