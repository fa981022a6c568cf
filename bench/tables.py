"""Write the generated parts of README.md from the records in results/.

    python bench/tables.py [--check]

A part stands between `<!-- generated: NAME -->` and `<!-- end -->`; nothing in it is typed by hand.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PART = re.compile(r"(<!-- generated: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def results(name: str) -> list[dict[str, Any]]:
    """All records of a benchmark, by device."""
    return [json.loads(path.read_text()) for path in sorted((ROOT / "results").glob(f"{name}-*.json"))]


def demo_transcript() -> str:
    (record,) = [r for r in results("demo") if r["machine"]["device"] == "cpu"]
    return f"```text\n$ make demo\n{record['transcript']}\n```\n"


def demo_table() -> str:
    head = "| machine | demo | training tokens | held-out loss | bigram's | plan's error in time | commit, date |\n"
    lines = [head, "|---|---|---|---|---|---|---|\n"]
    for r in results("demo"):
        plan, outcome, evaluation = r["plan"], r["outcome"], r["evaluation"]
        error = outcome["seconds"] / plan["seconds"] - 1
        lines.append(
            f"| {_machine(r)} | {r['seconds']:.0f} s | {outcome['tokens'] / 1e6:.2f} M | {evaluation['loss']:.3f} | "
            f"{evaluation['strategies']['bigram']:.3f} | {error:+.1%} | {r['commit']}, {r['date']} |\n"
        )
    return "".join(lines) + "\nEach by `python bench/demo.py`.\n"


def hmm_table() -> str:
    lines = []
    for r in results("hmm_em"):
        peers = ["hmmlearn"] if r["machine"]["device"] == "cpu" else ["pomegranate", "pyjuice"]
        head = [
            "H, E, L",
            "ours, tokens/s",
            *(f"{p}, tokens/s" for p in peers),
            *(f"× {p}" for p in peers),
            "difference",
        ]
        lines += [f"| {' | '.join(head)} |\n", "|" + "---|" * len(head) + "\n"]
        for s in r["shapes"]:
            ours, theirs = s["ours_tokens_per_second"], [s[f"{p}_tokens_per_second"] for p in peers]
            cells = [f"{s['states']}, {s['symbols']}, {s['length']}", _rate(ours), *(_rate(x) for x in theirs)]
            if "pyjuice" in peers:  # it takes powers of two only
                cells[-1] += f" (H = {1 << (s['states'] - 1).bit_length()})"
            cells += ["–" if x is None else f"{ours / x:,.0f}" for x in theirs]
            cells.append(f"{max(s['accuracy'].values()):.0e}")
            lines.append(f"| {' | '.join(cells)} |\n")
        lines.append(f"\nBy `{r['command']}` on {_machine(r)}, {r['commit']}, {r['date']}.\n\n")
        for name, found in r.get("memory", {}).items():
            lines.append(f"- {name}: {found['peak_bytes'] / 2**30:.1f} GiB, {found['seconds']:.2g} s an epoch\n")
    return "".join(lines)


def _rate(value: float | None) -> str:
    if value is None:
        return "–"
    scale, unit = (1e6, " M") if value >= 1e6 else (1e3, " k")
    return f"{value / scale:.3g}{unit}"


def startup_table() -> str:
    lines = ["| command | median seconds |\n", "|---|---|\n"]
    for r in results("startup"):
        lines += [f"| `{name}` | {value:.2f} |\n" for name, value in r["seconds"].items()]
        lines.append(f"\nBy `{r['command']}` on {_machine(r)}, {r['commit']}, {r['date']}.\n")
    return "".join(lines)


def _machine(r: dict[str, Any]) -> str:
    machine = r["machine"]
    return f"{machine['device_name']}, torch {machine['versions']['torch']}"


PARTS = {
    "demo-transcript": demo_transcript,
    "demo-table": demo_table,
    "startup-table": startup_table,
    "hmm-table": hmm_table,
}


def generated(text: str) -> str:
    return PART.sub(lambda match: match.group(1) + PARTS[match.group(2)]() + match.group(3), text)


def main() -> None:
    old = README.read_text()
    new = generated(old)
    if "--check" in sys.argv:
        sys.exit(0 if old == new else "README.md is not what results/ say; run: python bench/tables.py")
    README.write_text(new)


if __name__ == "__main__":
    main()
