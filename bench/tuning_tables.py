"""The generated tables of fine-tuning: how far models drift, and steps beside those of transformers.Trainer."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from shoestring.core.units import Bytes
from shoestring.studies.drift import steps_to_half


def overlap_table(records: Sequence[dict[str, Any]]) -> str:
    """How far two bases drift when they are tuned on English, and on Japanese."""
    head = (
        "| base | tuned on | seeds | overlap after 10 % | 50 % | 100 % of the steps | half is left after | KL, nats | "
    )
    lines = [head + "held-out loss |\n", "|---|---|---|---|---|---|---|---|---|\n"]
    for r in records:
        for base in (name for name in ("stories", "wikipedia") if name in r["results"]):
            for language, curves in r["results"][base]["curves"].items():
                lines.append(f"| {base} | {language.title()} | {len(curves)} | {_drift(curves)} |\n")
        lines.append(f"\n{_origin(r)} Mean ± standard deviation.\n")
    return "".join(lines)


def _drift(curves: list[list[dict[str, float]]]) -> str:
    """The cells of one language."""

    def spread(values: list[float], form: str = ".2f") -> str:
        error = f" ± {statistics.stdev(values):{form}}" if len(values) > 1 else ""
        return f"{statistics.fmean(values):{form}}{error}"

    last = curves[0][-1]["step"]
    parts = [
        [line["overlap"] for curve in curves for line in curve if line["step"] == s]
        for s in (last // 10, last // 2, last)
    ]
    halves = [steps_to_half([(line["step"], line["overlap"]) for line in curve]) for curve in curves]
    half = "–" if None in halves else f"{spread([h for h in halves if h is not None], '.1f')} steps"
    ends = [[curve[-1][name] for curve in curves] for name in ("overlap_kl", "heldout_loss")]
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
