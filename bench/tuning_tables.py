"""The generated tables of fine-tuning: how far models drift, and steps beside those of transformers.Trainer."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from shoestring.core.units import Bytes
from shoestring.report.sweep_figures import Line, step_curves
from shoestring.studies.drift import steps_to_half

BASES = ("stories", "wikipedia")


def overlap_table(records: Sequence[dict[str, Any]]) -> str:
    """How far two bases drift when they are tuned on English, and on Japanese; each base is of one record."""
    head = "| base | tuned on | seeds | overlap after 10 % | 50 % | 100 % of the steps | half is left after | "
    lines = [head + "of the most likely, at the end | KL, nats | held-out loss |\n", "|" + 10 * "---|" + "\n"]
    found = overlap_bases(records)
    for base, r in found.items():
        for language, curves in r["results"][base]["curves"].items():
            lines.append(f"| {base} | {language.title()} | {len(curves)} | {_drift(curves)} |\n")
    lines.append("\nMean ± standard deviation.")
    lines += [f" *{base}*: by {_origin(r).removeprefix('By ')}" for base, r in found.items()]
    return "".join(lines) + "\n"


def overlap_bases(records: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The record of each base; two of one base are refused."""
    found = [(base, r) for base in BASES for r in records if base in r["results"]]
    twice = {base for base, _ in found if [name for name, _ in found].count(base) > 1}
    if twice:
        raise SystemExit(f"{', '.join(sorted(twice))}: in two records of overlap; leave one of them")
    return dict(found)


def overlap_figure(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Overlap against steps: a panel for each base, a colour for each language, a line for each seed."""
    panels = []
    for base, r in overlap_bases(records).items():
        lines = [
            Line(f"{language} {seed}", language.title(), [(at["step"], at["overlap"]) for at in curve])
            for language, curves in r["results"][base]["curves"].items()
            for seed, curve in enumerate(curves)
        ]
        panels.append(step_curves(lines, "least likely tokens shared with the base") | {"width": 320, "title": base})
    whole = {name: panels[0][name] for name in ("$schema", "padding", "config")}
    inside = [{name: panel[name] for name in ("title", "width", "height", "layer")} for panel in panels]
    return whole | {"hconcat": inside}


def _drift(curves: list[list[dict[str, float]]]) -> str:
    """The cells of one language."""

    def spread(values: list[float], form: str = ".2f") -> str:
        error = f" ± {statistics.stdev(values):{form}}" if len(values) > 1 else ""
        return f"{statistics.fmean(values):{form}}{error}"

    last = int(curves[0][-1]["step"])
    parts = [
        [line["overlap"] for curve in curves for line in curve if line["step"] == s]
        for s in (last // 10, last // 2, last)
    ]
    halves = [steps_to_half([(line["step"], line["overlap"]) for line in curve]) for curve in curves]
    left, known = halves.count(None), [half for half in halves if half is not None]
    some = f" in {left} of {len(halves)} runs" if known else ""
    half = f"not within {last} steps{some}" if left else f"{spread(known, '.1f')} steps"
    ends = [[curve[-1][name] for curve in curves] for name in ("overlap_top", "overlap_kl", "heldout_loss")]
    return " | ".join([*map(spread, parts), half, *map(spread, ends)])


def finetune_table(records: Sequence[dict[str, Any]]) -> str:
    """Seconds and memory of all weights and of LoRA, ours beside transformers.Trainer."""
    lines = [
        "| weights | ms of a step | of transformers.Trainer | × as fast | memory | Trainer's | of it "
        "| ten overlaps in 1,000 steps |\n",
        "|---|---|---|---|---|---|---|---|\n",
    ]
    for r in records:
        for kind, name in (("full", "all"), ("lora", "LoRA of rank 8")):
            ours, theirs = (r["results"][f"{who} {kind}"] for who in ("ours", "trainer"))
            seconds = [1000 * who["seconds"] for who in (ours, theirs)]
            memory = [Bytes(who["peak_bytes"]).short() for who in (ours, theirs)]
            lines.append(
                f"| {name} | {seconds[0]:.0f} | {seconds[1]:.0f} | {seconds[1] / seconds[0]:.2f} | {memory[0]} | "
                f"{memory[1]} | {ours['peak_bytes'] / theirs['peak_bytes']:.2f} | {_overlaps(r, kind)} |\n"
            )
        lines.append(f"\n{_origin(r)}\n")
    return "".join(lines)


def _overlaps(r: dict[str, Any], kind: str) -> str:
    if f"overlap {kind}" not in r["results"]:
        return "not measured"
    seconds, steps = sum(r["results"][f"overlap {kind}"]["seconds"]), 1000 * r["results"][f"ours {kind}"]["seconds"]
    return f"{seconds:.2f} s, {seconds / steps:.1%}"


def _origin(r: dict[str, Any]) -> str:
    machine = f"{r['machine']['device_name']}, torch {r['machine']['versions']['torch']}"
    return f"By `{r['command']}` on {machine}, {r['commit']}, {r['date']}."
