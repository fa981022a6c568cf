"""The generated tables of tokenizers, dropout of tokens, WikiText-2 by words, a deadline that moves, and writing."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

NONE = "No record yet.\n"
FIELDS = (
    "family",
    "parts",
    "width",
    "layers",
    "tied",
    "dropout",
    "attention_dropout",
    "output_dropout",
    "word_dropout",
)
OF_TRAIN = ("optimizer", "lr", "cooldown", "batch")
"""Fields that a table tells, where they were given."""
WAYS = ("short", "longer", "fresh")


def crowded_table(records: Sequence[dict[str, Any]]) -> str:
    """What a step takes where several runs share the processors."""
    lines = []
    for r in records:
        counts = list(next(iter(r["results"].values())))
        lines += [f"| milliseconds of a step | {' | '.join(f'{count} at once' for count in counts)} |\n"]
        lines.append("|---" * (1 + len(counts)) + "|\n")
        for way, found in r["results"].items():
            cells = [f"{1000 * found[count]['step_seconds']:,.0f}" for count in counts]
            lines.append(f"| {way} | {' | '.join(cells)} |\n")
        machine = f"{r['machine']['device_name']}, torch {r['machine']['versions']['torch']}"
        lines.append(f"\nBy `{r['command']}` on {machine}, {r['commit']}, {r['date']}: rows of {r['length']} bytes, ")
        lines.append(f"{r['rows']} in a step, {r['width']} channels, {r['layers']} layers.\n\n")
    return "".join(lines).removesuffix("\n") or NONE


def wikitext_table(records: Sequence[dict[str, Any]]) -> str:
    """Perplexities of runs on WikiText-2, with rows cut and with a window that slides."""
    lines = []
    for r in records:
        lines += [
            "| run | at once | seconds, steps | valid and test, rows cut | with a sliding window | commit, date |\n"
        ]
        lines.append("|---|---|---|---|---|---|\n")
        for name, run in r["results"].items():
            if "failed" in run:
                continue
            slid = run["sliding"]
            lines.append(
                f"| {name.partition(', ')[2] or 'chosen'}: {_told(run['changes'])} | {run.get('at_once', 1)} | "
                f"{run['seconds']:.0f}, {run['steps']:,} | "
                f"{run['valid_perplexity']:.1f} and {run['test_perplexity']:.1f} | "
                f"{slid['valid_perplexity']:.1f} and {slid['test_perplexity']:.1f} ({slid['context']} words before) | "
                f"{run['commit']}, {run['date']} |\n"
            )
        lines.append(f"\nBy `python bench/wikitext.py` on {r['machine']['device_name']}. ")
        lines.append("AWD-LSTM has 68.6 and 65.8 after days (Merity et al. 2017).\n\n")
    return "".join(lines).removesuffix("\n") or NONE


def _told(changes: Sequence[str]) -> str:
    """The fields of the network that were given, and the optimizer's."""
    given = dict(change.split("=", 1) for change in changes)
    shown = [f"{field} {given[f'model.{field}']}" for field in FIELDS if f"model.{field}" in given]
    shown += [f"{field} {given[f'train.{field}']}" for field in OF_TRAIN if f"train.{field}" in given]
    shown += [f"rows of {given['data.length']}"] if "data.length" in given else []
    return ", ".join(shown) or "all by “auto”"


def vocabulary_table(records: Sequence[dict[str, Any]]) -> str:
    """What dropout of what the output reads and of words gains, by how large a table of all tokens is for the text."""
    lines = []
    for r in records:
        lines.append("| text | parameters for each position | steps | epochs | seeds | without | with | change |\n")
        lines.append("|---|---|---|---|---|---|---|---|\n")
        for found in r["texts"]:
            without, dropped = (statistics.mean(found["losses"][way]) for way in ("without", "with"))
            lines.append(
                f"| {found['bytes'] // 1000} kB of {found['text']} | {found['ratio']:.1f} | {found['steps']:,} | "
                f"{found['epochs']:.0f} | {len(found['losses']['with'])} | {without:.3f} | {dropped:.3f} | "
                f"{dropped / without - 1:+.1%} |\n"
            )
        lines.append(f"\nBy `{r['command']}` on {r['machine']['device_name']}, {r['commit']}, {r['date']}.\n\n")
    return "".join(lines).removesuffix("\n") or NONE


def pieces_table(records: Sequence[dict[str, Any]]) -> str:
    """Nats per byte of the same held-out text by tokenizer."""
    lines = []
    for r in records:
        lines += [
            "| text, time | tokenizer | nats per byte | network, steps | dropout, epochs | seconds | commit, date |\n"
        ]
        lines.append("|---|---|---|---|---|---|---|\n")
        for name, found in r["results"].items():
            text, seconds, tokenizer, seed = name.split(", ")
            chosen = found["chosen"]
            at_once = f", {found['at_once']} runs at once" if found["at_once"] > 1 else ""
            lines.append(
                f"| {text}, {seconds}{at_once} | {tokenizer.rpartition(':')[0]}, {seed} | "
                f"{found['nats_per_byte']:.4f} | "
                f"{chosen['model.width']} × {chosen['model.layers']}, {found['steps']:,} | "
                f"{chosen['model.dropout']:g}, {chosen['budget.epochs']:g} | {found['wall']:.0f} | "
                f"{found['commit']}, {found['date']} |\n"
            )
        lines.append(f"\nBy `python bench/pieces.py` on {r['machine']['device_name']}.\n\n")
    return "".join(lines).removesuffix("\n") or NONE


def longer_table(records: Sequence[dict[str, Any]]) -> str:
    """A run that gets more time than it was planned for, beside a new run of all the time."""
    lines = []
    for r in records:
        lines += ["| text, time | first run | continued | a new run of all the time | difference | commit, date |\n"]
        lines.append("|---|---|---|---|---|---|\n")
        for name, found in r["results"].items():
            for pair in found["pairs"]:
                runs = " | ".join(f"{pair[way]['loss']:.4f}, {pair[way]['steps']:,} steps" for way in WAYS)
                when = f"{found['commit']}, {found['date']}"
                lines.append(f"| {name} | {runs} | {pair['difference']:+.1%} | {when} |\n")
        lines.append(f"\nBy `python bench/longer.py` on {r['machine']['device_name']}.\n\n")
    return "".join(lines).removesuffix("\n") or NONE


def floor_table(records: Sequence[dict[str, Any]]) -> str:
    """What is above the oracle of a stream for one who knows its HMM, and not a row's permutation."""
    lines = []
    for r in records:
        lines += ["| particles | nats above the oracle | rows |\n", "|---|---|---|\n"]
        for found in r["results"]:
            above = f"{found['above']:.3f} ± {found['error']:.3f}"
            lines.append(f"| {found['particles']:,} | {above} | {found['rows']} |\n")
        machine = r["machine"]["device_name"]
        lines.append(f"\nBy `python bench/stream_floor.py` on {machine}, {r['commit']}, {r['date']}.\n\n")
    return "".join(lines).removesuffix("\n") or NONE


def generate_table(records: Sequence[dict[str, Any]]) -> str:
    """Tokens per second of texts: step by step, recorded, and the limit of the memory."""
    lines = []
    for r in records:
        lines += ["| network, texts | tokens/s, one step after another | recorded | share of the limit |\n"]
        lines.append("|---|---|---|---|\n")
        for name, case in r["results"].items():
            speeds, share = case["tokens_per_second"], case["share_of_limit"]
            lines.append(
                f"| {name} | {speeds['kept']:,.1f} | {speeds.get('recorded', float('nan')):,.0f} | "
                f"{share.get('recorded', float('nan')):.2f} of {case['limit']:,.0f} tokens/s |\n"
            )
        lines.append(f"\nBy `python bench/generate.py` on {r['machine']['device_name']}, {r['commit']}, {r['date']}. ")
        lines.append("The limit reads all weights, keys and values once per token.\n\n")
    return "".join(lines).removesuffix("\n") or NONE
