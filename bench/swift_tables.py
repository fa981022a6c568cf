"""The generated tables of Swift: what its parts are worth, and how soon it has the loss of a Llama."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

NONE = "No record yet.\n"


def ablation_table(records: Sequence[dict[str, Any]]) -> str:
    """The loss of each variant at equal seconds or steps."""
    lines = []
    for r in records:
        for size, found in r["results"].items():
            base = found.get("as chosen", {}).get("fields")
            told = "" if base is None else f"; “as chosen” has {base['parts']}, pairs {base['pairs'] or 'no'}"
            lines += [f"{size}{told}:\n\n", "| variant | held-out loss | seeds | lr | steps | ms per step |\n"]
            lines.append("|---|---|---|---|---|---|\n")
            for name, variant in sorted(found.items(), key=lambda item: float(item[1]["loss"])):
                runs = [run for run in variant["runs"] if run["lr"] == variant["lr"]]
                error = "" if variant["error"] is None else f" ± {variant['error']:.3f}"
                steps, seconds = (statistics.mean(run[key] for run in runs) for key in ("steps", "wall_step_seconds"))
                lines.append(
                    f"| {name} | {variant['loss']:.3f}{error} | {variant['seeds']} | {variant['lr']:.3g} | "
                    f"{steps:,.0f} | {1000 * seconds:.1f} |\n"
                )
            commands = {run["command"] for variant in found.values() for run in variant["runs"] if "command" in run}
            lines.append("".join(f"\nBy `{command}`.\n" for command in sorted(commands)) + "\n")
        lines.append(f"By `python bench/ablation.py` on {r['machine']['device_name']}, {_commits(r)}, {r['date']}.\n\n")
    return "".join(lines).removesuffix("\n") or NONE


def time_to_loss_table(records: Sequence[dict[str, Any]]) -> str:
    """The seconds to the Llama's loss, and losses beside the peer's."""
    lines = []
    for r in records:
        lines.append("| task | Llama with AdamW | its rates | parts of the Swift | it has that loss after | share | ")
        lines.append("five_minutes.py and Swift |\n|---|---|---|---|---|---|---|\n")
        for task, found in r["results"].items():
            if "target" in found:
                lines.append(f"| {task} | {_row(found)} | {_beside(found)} |\n")
        lines.append(
            f"\nBy `python bench/time_to_loss.py` on {r['machine']['device_name']}, {_commits(r)}, {r['date']}. "
            f"Seconds are from the command to its end; losses are nats per token, of a stream above the oracle's.\n\n"
        )
    return "".join(lines).removesuffix("\n") or NONE


def _row(found: dict[str, Any]) -> str:
    parts = {run["parts"] for name, run in found["rows"].items() if name.startswith("swift:") and "parts" in run}
    loss = f"{found['target'] - found['least']:.3f} in {found['llama_seconds']:.0f} s | {found['llamas']} | "
    loss += "; ".join(sorted(parts)) or "–"
    if "share" not in found:
        return f"{loss} | not yet | –"
    line = f" (on a line between two: {found['on_line']:.0f} s)" if "on_line" in found else ""
    return f"{loss} | {found['seconds']:.0f} s{line} | {found['share']:.0%}"


def _beside(found: dict[str, Any]) -> str:
    def one(seconds: str, both: dict[str, Any]) -> str:
        ours = "–" if both["swift"] is None else f"{both['swift'] - found['least']:.3f}"
        return f"{seconds} s: {both['peer'] - found['least']:.3f} and {ours}"

    return "; ".join(one(*item) for item in sorted(found["beside"].items(), key=lambda item: float(item[0]))) or "–"


def _commits(r: dict[str, Any]) -> str:
    """Of all rows, which may be of several days."""
    rows = [
        run
        for found in r["results"].values()
        for run in (found["rows"].values() if "rows" in found else (run for v in found.values() for run in v["runs"]))
    ]
    return ", ".join(sorted({run["commit"] for run in rows})) or r["commit"]
