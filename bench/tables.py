"""Write the generated parts of README.md and of docs/ from the records in results/.

    python bench/tables.py [--check]

A part stands between `<!-- generated: NAME -->` and `<!-- end -->`; nothing in it is typed by hand.
"""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

from icll_tables import draw_updates, icll_table
from strategy_gpu_table import strategies_gpu_table
from strategy_tables import draw_strategies, starts_line, stragglers_table, strategies_table
from swift_tables import ablation_table, time_to_loss_table
from text_tables import (
    crowded_table,
    floor_table,
    generate_table,
    longer_table,
    pieces_table,
    vocabulary_table,
    wikitext_table,
)
from tuning_tables import finetune_table, overlap_figure, overlap_table

from shoestring.core.units import counted

ROOT = Path(__file__).resolve().parent.parent
PAGES = tuple(
    ROOT / page for page in ("README.md", "docs/get-started.md", "docs/benchmarks.md", "docs/how-to/strategies.md")
)
PART = re.compile(r"(<!-- generated: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def results(name: str) -> list[dict[str, Any]]:
    """All records of a benchmark, by device."""
    return [json.loads(path.read_text()) for path in sorted((ROOT / "results").glob(f"{name}-*.json"))]


def _on(device: str, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [record for record in records if record["machine"]["device"] == device]


def demo_transcript() -> str:
    (record,) = [r for r in results("demo") if r["machine"]["device"] == "cpu"]
    return f"```text\n$ make demo\n{record['transcript']}\n```\n"


def demo_table() -> str:
    head = "| machine | demo | training tokens | held-out loss | bigram's | plan's error in time | commit, date |\n"
    lines = [head, "|---|---|---|---|---|---|---|\n"]
    for r in results("demo"):
        plan, outcome, evaluation = r["plan"], r["outcome"], r["evaluation"]
        error = outcome["seconds"] / plan["seconds"] - 1
        bigram = (evaluation.get("baselines") or evaluation["strategies"])["bigram"]  # older records: strategies
        lines.append(
            f"| {_machine(r)} | {r['seconds']:.0f} s | {outcome['tokens'] / 1e6:.2f} M | {evaluation['loss']:.3f} | "
            f"{bigram:.3f} | {error:+.1%} | {r['commit']}, {r['date']} |\n"
        )
    return "".join(lines) + "\nEach by `python bench/demo.py`.\n"


def summary_table() -> str:
    """Ours beside the best peer of the same record, one line for each kind of work."""
    lines = ["| work | ours | the best other | ratio |\n", "|---|---|---|---|\n"]

    def line(work: str, ours: float, others: dict[str, float], unit: str) -> None:
        name = max(others, key=others.__getitem__)
        lines.append(
            f"| {work} | {_rate(ours)}{unit} | {_rate(others[name])}{unit} ({name}) | {ours / others[name]:.2g} × |\n"
        )

    for r in results("deadline"):
        for name, found in r["results"].items():
            if "as chosen" not in found.get("beside", {}):
                continue
            told = found["beside"]["as chosen"]
            task, unit = "rows of permuted HMMs", "nats above the oracle's"
            if name.startswith("stories"):
                task, unit = "7 MB of stories as bytes", "nats"
            lines.append(
                f"| held-out loss after {found['time']:g} s, {task} | {told['loss']:.3f} {unit} | "
                f"{told['peer_loss']:.3f} (five_minutes.py, {counted(len(found['peer']), 'rate')}) | "
                f"{told['ratio']:.2f} × |\n"
            )
    for r in results("train"):
        for name, shape in r["shapes"].items() if r["machine"]["device"] != "cpu" else ():
            rates = {way: found["tokens_per_second"] for way, found in shape["ways"].items() if "error" not in found}
            others = {way: rate for way, rate in rates.items() if not way.startswith("ours")}
            if others:
                work = f"training {name}, {shape['rows']} × {shape['length']:,} tokens"
                line(work, rates["ours"], others, " tokens/s")
    for r in results("finetune"):
        for kind, name in (("full", "all weights"), ("lora", "LoRA")):
            ours, theirs = (16 * 512 / r["results"][f"{who} {kind}"]["seconds"] for who in ("ours", "trainer"))
            peer = "Trainer" if kind == "full" else "Trainer with peft"
            line(f"fine-tuning Qwen2.5-0.5B's shape, {name}, 16 × 512 tokens", ours, {peer: theirs}, " tokens/s")
    for r in results("hmm_em"):
        for s in r["shapes"] if r["machine"]["device"] != "cpu" else ():
            rates = {peer: s[f"{peer}_tokens_per_second"] for peer in ("pomegranate", "pyjuice")}
            if s["states"] in (50, 500) and (others := {peer: rate for peer, rate in rates.items() if rate}):
                work = f"EM of an HMM, {s['states']} states, {s['symbols']} symbols"
                line(work, s["ours_tokens_per_second"], others, " tokens/s")
    for r in results("measure"):
        for name, told in r["results"].items():
            peers = {peer: one for peer, one in told.items() if peer.split()[0] in ("accelerate", "lightning")}
            if peers:
                best = max(peers, key=lambda peer: peers[peer]["largest"])
                cells = [
                    f"{one['largest']} rows in {seconds:.1f} s, {one['out_of_memory']} times out of memory"
                    for one, seconds in (
                        (told["ours"], told["ours"]["trial_seconds"]), (peers[best], peers[best]["seconds"])
                    )
                ]  # fmt: skip
                lines.append(f"| largest batch, {name} | {cells[0]} | {cells[1]} ({best}) | |\n")
    for r in results("laws"):
        ours, theirs = r["fit"]["seconds"], {m: found["seconds"] for m, found in r["peer_fit"].items()}
        best = min(theirs, key=theirs.__getitem__)
        lines.append(
            f"| fitting a scaling law (CPU) | {_time(ours)} | {_time(theirs[best])} (SciPy {best}) | "
            f"{theirs[best] / ours:,.0f} × |\n"
        )
    return "".join(lines)


def kernels_table() -> str:
    lines = []
    for r in results("kernels"):
        lines += ["| model, layer | by | forward and backward | peak memory | error |\n", "|---|---|---|---|---|\n"]
        for name, layers in r["shapes"].items():
            for layer, ways in layers.items():
                for way, found in ways.items():
                    seconds, peak = found.get("seconds", 0.0), found.get("peak_bytes", 0)
                    measured = [f"{1000 * seconds:.2f} ms", f"{peak / 1e9:.2f} GB", f"{found.get('error', 0.0):.0e}"]
                    cells = [found["failed"], "–", "–"] if "failed" in found else measured
                    lines.append(f"| {name}: {layer} | {way} | {' | '.join(cells)} |\n")
        peers = ", ".join(f"{name} {version}" for name, version in r["peers"].items())
        lines.append(
            f"\nBy `{r['command']}` on {_machine(r)}, {peers}, {r['commit']}, {r['date']}. The error is the largest "
            f"relative difference from float64 over outputs and gradients; all inputs are in bf16.\n"
        )
    return "".join(lines)


def muon_table() -> str:
    lines = []
    for r in results("muon"):
        ways = list(next(iter(r["shapes"].values()))["seconds"])
        lines += [f"| matrices of | {' | '.join(ways)} | difference |\n", f"|---{'|---' * len(ways)}|---|\n"]
        for name, found in r["shapes"].items():
            times = " | ".join(f"{1000 * found['seconds'][way]:.2f} ms" for way in ways)
            lines.append(f"| {name} | {times} | {found['difference']:.0e} |\n")
        lines.append(
            f"\nBy `{r['command']}` on {_machine(r)}, {r['commit']}, {r['date']}. The difference is that of our update "
            f"from torch's with the same settings, relative to it.\n\n"
        )
    return "".join(lines).removesuffix("\n")


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


def sample_table() -> str:
    lines = []
    for r in results("hmm_sample"):
        gpu = r["machine"]["device"] != "cpu"
        head = ["H, E", "ours", "ours, permuted a row", "multinomial, 4,096", "its best batch", "× best multinomial"]
        head += [] if gpu else ["pomegranate", "× pomegranate"]
        lines += [f"| {' | '.join(head)} |\n", "|" + "---|" * len(head) + "\n"]
        for s in r["shapes"]:
            ours, theirs = s["ours_tokens_per_second"], s["multinomial_tokens_per_second"]
            best = max(theirs.values())
            cells = [f"{s['states']}, {s['symbols']}", _rate(ours["none"]), _rate(ours["sequence"])]
            cells += [_rate(theirs["4096"]), _rate(best), f"{ours['sequence'] / best:,.0f}"]
            if not gpu:
                other = s["pomegranate_tokens_per_second"]
                cells += [_rate(other), "–" if other is None else f"{ours['sequence'] / other:,.0f}"]
            lines.append(f"| {' | '.join(cells)} |\n")
        lines.append(f"\nTokens per second, by `{r['command']}` on {_machine(r)}, {r['commit']}, {r['date']}.\n\n")
        same, file, training = r["golden"], r["file"], r["training"]
        disk = [f"{file[name] / 1e9:.2f} GB/s" for name in ("ours_bytes_per_second", "disk_bytes_per_second")]
        lines.append(
            f"- {same['equal']} of {same['rows']} golden rows are equal; a file of {file['bytes'] / 1e9:.0f} GB is "
            f"written at {disk[0]}, plain bytes at {disk[1]}; as training data, rows take {training['share']:.2%} of a "
            f"step\n\n"
        )
    return "".join(lines)


def train_table() -> str:
    lines = []
    for r in results("train"):
        gpu = r["machine"]["device"] != "cpu"
        head = ["model, rows × tokens", "way", "tokens/s", *(["of the measured peak", "peak memory"] if gpu else [])]
        lines += [f"| {' | '.join(head)} |\n", "|" + "---|" * len(head) + "\n"]
        for name, shape in r["shapes"].items():
            for way, found in shape["ways"].items():
                cells = [f"{name}, {shape['rows']} × {shape['length']:,}", way]
                if "error" in found:
                    cells += [found["error"], *(["–", "–"] if gpu else [])]
                else:
                    cells.append(_rate(found["tokens_per_second"]))
                    if gpu:
                        share = found.get("of_measured_peak")
                        cells += ["–" if share is None else f"{share:.0%}", f"{found['peak_bytes'] / 1e9:.1f} GB"]
                lines.append(f"| {' | '.join(cells)} |\n")
        lines.append(f"\nBy `{r['command']}` on {_machine(r)}, {r['commit']}, {r['date']}.{_added(r)}")
        if gpu:
            ours = [shape["ways"]["ours"] for shape in r["shapes"].values() if "ours" in shape["ways"]]
            costs = [found["input_cost"] for found in ours if "input_cost" in found]
            found = [way for shape in r["shapes"].values() for way in shape["ways"].values()]
            peaks = sorted({way.get("product_flops") or r["product_flops"] for way in found})
            lines.append(
                f" The peak is the largest rate of a plain bf16 product in the same call, "
                f"{' to '.join(f'{peak / 1e12:.0f}' for peak in dict.fromkeys((peaks[0], peaks[-1])))} TFLOP/s; FLOPs "
                f"are those of matrix products, attention over all pairs of positions, the backward pass twice the "
                f"forward pass."
            )
            if costs:
                lines.append(_later(r) + f" New rows from the host make a step at most {max(costs):.1%} longer.")
        lines.append("\n\n")
    return "".join(lines)


def _later(r: dict[str, Any]) -> str:
    """How fast the steps after those of the table are, which a warmer chip takes."""
    rates = []
    for name, shape in r["shapes"].items():
        if times := shape["ways"].get("ours", {}).get("input_seconds", {}).get("fed"):
            rates.append(f"{name} {_rate(shape['rows'] * shape['length'] * len(times) / sum(times))}")
    return f" As the chip warms, ours is slower; over the steps that follow: {', '.join(rates)}." if rates else ""


def _added(r: dict[str, Any]) -> str:
    """The ways that were measured in a call of their own, and the commit of each."""
    ways = {
        (found["commit"], way) for shape in r["shapes"].values() for way, found in shape["ways"].items()
        if "commit" in found
    }  # fmt: skip
    return "".join(f" “{way}” was added in another call, {commit}." for commit, way in sorted(ways))


def memory_table() -> str:
    """The peaks of the runs on GPUs beside their estimates, then the seconds of their steps."""
    return "\n".join(filter(None, (part for r in results("train") for part in (_peaks(r), _steps(r)))))


def _peaks(r: dict[str, Any]) -> str:
    from estimate_error import memory_rows

    found = memory_rows(r)
    if not found:
        return ""
    lines = ["| model, rows × tokens | estimated | measured | error |\n", "|---|---|---|---|\n"]
    for row in found:
        sizes = [f"{size / 1e9:.2f} GB" for size in (row.estimated_bytes, row.measured_bytes)]
        lines.append(f"| {_run_label(row)} | {sizes[0]} | {sizes[1]} | {row.error:+.1%} |\n")
    return "".join(lines) + (
        f"\nMeasured by `{r['command']}` on {_machine(r)}, {r['commit']}, {r['date']}: the most that torch allocated. "
        f"Estimated by `shoestring.cost.memory`, from the recipe alone.\n"
    )


def _steps(r: dict[str, Any]) -> str:
    from estimate_error import step_rows

    found = step_rows(r)
    if not found:
        return ""
    head = ["model, rows × tokens", "estimated step: low – expected – high", "measured", "error of expected"]
    lines = [f"| {' | '.join(head)} |\n", "|" + "---|" * len(head) + "\n"]
    for row in found:
        ends = (row.estimated.low, row.estimated.expected, row.estimated.high)
        told = " – ".join(f"{1000 * seconds:.1f}" for seconds in ends)
        measured = f"{1000 * row.measured_seconds:.1f} ms"
        lines.append(f"| {_run_label(row)} | {told} ms | {measured} | {row.error:+.1%} |\n")
    within = sum(row.is_within for row in found)
    return "".join(lines) + (
        f"\nThe same runs; {within} of {len(found)} took between low and high. Estimated by `shoestring.cost.seconds`: "
        f"FLOPs, by the vendor's peak and one share of it for all models. For each model that is the least, the median "
        f"and the most of what the other models of this record reached. `--gpu` takes those of all of them: the error "
        f"is that of one share for all models on one GPU, not of another GPU or new sizes, which nobody measured.\n"
    )


def _run_label(row: Any) -> str:
    return f"{row.name}, {row.rows} × {row.length:,}" + ("" if row.way == "ours" else f", {row.way}")


def data_table() -> str:
    lines = []
    for r in results("data"):
        gather = _best(r["rows"]["gather"])
        lines.append("| shuffled rows of 1,024 tokens | rows/s | of the bare gather | mixes over | resumes in |\n")
        lines.append("|---|---|---|---|---|\n")
        for name, told in r["rows"].items():
            if "error" in told:
                lines.append(f"| {name} | – ({told['error']}) | | | |\n")
                continue
            form = _best(told)
            share = form["rows_per_second"] / gather["rows_per_second"]
            label = {"gather": "bare memory map", "shoestring": "**shoestring**"}.get(name, f"{name} {told['version']}")
            lines.append(
                f"| {label} | {form['rows_per_second']:,.0f} | {share:.0%} | {form['epoch']['regions'] / 64:.0%} "
                f"of the file | {form['resume']['seconds'] * 1000:.0f} ms |\n"
            )
        text, packed, far = r["tokenizing"], r["packing"], r["resume_at_row_100M_seconds"]
        lines.append(f"\nBy `{r['command']}` on {_machine(r)}, {r['commit']}, {r['date']}.\n\n")
        lines.append(
            f"- the first batch after row 100,000,000: {far['batch'] * 1000:.0f} ms, and {far['open'] * 1000:.0f} ms "
            f"to open the store; a small store, as in the table, is verified whole when it is opened\n"
            f"- {text['text']}, MB a CPU second: words counted {text['words_counted_mb_per_cpu_second']:.0f}, encoded "
            f"{text['words_encoded_mb_per_cpu_second']:.0f}; bytes {text['bytes_mb_per_cpu_second']:.0f}"
        )
        if "gpt2_mb_per_cpu_second" in text:
            alone = text["tokenizers_alone_mb_per_cpu_second"]
            lines.append(f"; GPT-2's BPE {text['gpt2_mb_per_cpu_second']:.2f} (the library alone {alone:.2f})")
        told = [
            f"{int(capacity) - 1:,}: {found['padding']:.3%} padding at {found['documents_per_second'] / 1e6:.0f} M/s"
            for capacity, found in packed.items()
        ]
        lines.append(f"\n- best-fit packing of 5 M story-length documents into rows of {'; '.join(told)}\n")
        memory = [
            f"{found['bytes'] / 1e6:.0f} MB of text in {found['seconds']:.0f} s, {found['peak_bytes'] / 1e6:.0f} MB"
            for found in r["preparing"].values()
        ]
        lines.append(f"- `prepare` by words, and its largest process: {'; '.join(memory)}\n")
    return "".join(lines)


def _best(told: dict[str, Any]) -> dict[str, Any]:
    """The fastest form of a peer."""
    return max(told["forms"], key=lambda form: form.get("rows_per_second", 0))


def _rate(value: float | None) -> str:
    if value is None:
        return "–"
    scale, unit = (1e9, " G") if value >= 1e9 else (1e6, " M") if value >= 1e6 else (1e3, " k")
    return f"{value / scale:.3g}{unit}"


def law_coverage_table() -> str:
    lines = []
    for r in results("law_coverage"):
        identified = r.get("identified", {})
        columns = list(next(iter(r["coverage"].values())))
        powers = [name for name in r["coverage"] if list(r["coverage"][name]) != columns]
        lines += ["| data | " + " | ".join(columns) + " |\n", "|---" * (len(columns) + 1) + "|\n"]
        for name, found in r["coverage"].items():
            if name in powers:
                continue
            known = {column: identified.get(name, {}).get(column, 1.0) for column in columns}
            cells = [
                f"{100 * found[c]:.0f}" + (f" ({100 * known[c]:.0f})" if known[c] < 0.995 else "") for c in columns
            ]
            lines.append(f"| {name} | " + " | ".join(cells) + " |\n")
        others = [
            f"{name}: " + ", ".join(f"{what} {100 * value:.0f}" for what, value in r["coverage"][name].items())
            for name in powers
        ]
        lines.append(
            f"\nPercent of {r['trials']} simulated data sets whose 95 % interval holds the truth, "
            f"± {100 * r['binomial_error']:.1f} by chance, with {r['resamples']} laws or resamples each; in brackets "
            f"the percent that identify the quantity, where that is not all. Power laws: {'; '.join(others)}. "
            f"By `{r['command']}`, {r['commit']}, {r['date']}.\n\n"
        )
    return "".join(lines)


def laws_table() -> str:
    lines = []
    for r in results("laws"):
        fit, bootstrap, peer = r["fit"], r["bootstrap"], r["peer_bootstrap"]
        lines += ["| way | time | × | lowest objective |\n", "|---|---|---|---|\n"]
        lines.append(f"| **shoestring**, one fit | {_time(fit['seconds'])} | | {fit['objective']:.11f} |\n")
        for method, found in r["peer_fit"].items():
            scaled = f" ({found['starts_run']} run, scaled)" if found["scaled"] else ""
            lines.append(
                f"| SciPy {method}, {found['starts']:,} starts{scaled} | {_time(found['seconds'])} | "
                f"{found['seconds'] / fit['seconds']:,.0f} | {found['objective']:.11f} |\n"
            )
        lines.append(f"| **shoestring**, {bootstrap['resamples']:,} resamples | {_time(bootstrap['seconds'])} | | |\n")
        lines.append(
            f"| SciPy BFGS, one start for each ({peer['resamples_run']} run, scaled) | {_time(peer['seconds'])} | "
            f"{peer['seconds'] / bootstrap['seconds']:,.0f} | |\n"
        )
        low, high = bootstrap["a_opt_95"]
        lines.append(
            f"\n{r['points']} Chinchilla points, Huber's penalty, by `{r['command']}` on {_machine(r)}, SciPy "
            f"{r['scipy']}, {r['commit']}, {r['date']}. The exponent of the best size is {fit['a_opt']:.4f}, 95 % "
            f"{low:.4f} to {high:.4f}. {bootstrap['failed']} of the resamples did not converge, and of "
            f"{bootstrap['checked']:,} that began elsewhere too, {bootstrap['moved']} found a lower minimum; none is "
            f"above BFGS' by more than {max(bootstrap['most_above_peer'], 1e-12):.0e}.\n\n"
        )
    return "".join(lines)


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:,.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def startup_table() -> str:
    lines = ["| command | median seconds |\n", "|---|---|\n"]
    for r in results("startup"):
        lines += [f"| `{name}` | {value:.2f} |\n" for name, value in r["seconds"].items()]
        lines.append(f"\nBy `{r['command']}` on {_machine(r)}, {r['commit']}, {r['date']}.\n")
    return "".join(lines)


def board_table() -> str:
    """What the board takes with many runs."""
    lines = []
    for r in results("board"):
        lines += [f"| {r['runs']} runs of {r['lines']:,} lines | seconds |\n", "|---|---|\n"]
        lines += [f"| {what} | {value:.2f} |\n" for what, value in r["seconds"].items()]
        busy = f"{r['load']:.1f} processes on {r['cores']} cores as it began"
        lines.append(f"\nBy `{r['command']}` on {_machine(r)}, {busy}, {r['commit']}, {r['date']}.\n")
    return "".join(lines)


def sweep_table() -> str:
    """What a sweep costs besides its runs."""
    lines = ["| work | seconds | per run |\n", "|---|---|---|\n"]
    for r in results("sweep"):
        found = r["results"]
        for name in ("seeds", "every cost differs"):
            each = found[name]
            work = f"`--dry-run` of {each['runs']:,} runs, of {each['distinct']:,} costs"
            lines.append(f"| {work} | {each['seconds']:.1f} | {1000 * each['per_run']:.1f} ms |\n")
        each = found["report"]
        work = f"`report` of {each['runs']:,} runs with {each['points']:,} points each"
        lines.append(f"| {work} | {each['seconds']:.1f} | {1000 * each['seconds'] / each['runs']:.1f} ms |\n")
        lines.append(f"\nBy `{r['command']}` on {_machine(r)}, {r['commit']}, {r['date']}.\n")
    return "".join(lines)


def halving_table() -> str:
    """What halving finds, beside whole grids."""
    lines = [
        "| grid | runs | judged by | of all steps | found | best | above it |\n",
        "|---|---|---|---|---|---|---|\n",
    ]
    for r in results("halving"):
        for grid, found in r["results"].items():
            for name, method in (("forecast", "forecast"), ("loss so far (ASHA)", "asha")):
                each = found[method]
                losses = f"{each['found']:.4f} | {each['best']:.4f} | {each['above']:.2%}"
                lines.append(f"| {grid} | {found['runs']} | {name} | {each['share']:.0%} | {losses} |\n")
        lines.append(f"\nBy `{r['command']}` on {_machine(r)}, {r['commit']}, {r['date']}.\n")
    return "".join(lines)


def same_table() -> str:
    """How often equal runs are taken for different."""
    lines = []
    for r in results("same"):
        found, beyond = r["kinds"], [kind["beyond"] for kind in r["kinds"].values()]
        lines.append(
            f"`shoestring law compare` took {r['different']} of {r['pairs']} pairs of equal kinds for different, "
            f"{r['seeds']} seeds each: {', '.join(found)}, {r['steps']} steps. Of single runs {min(beyond):.0%} to "
            f"{max(beyond):.0%} lay beyond the noise of their evaluations, so that alone is no verdict. "
            f"By `{r['command']}` on {_machine(r)}, {r['commit']}, {r['date']}.\n"
        )
    return "".join(lines)


def start_table() -> str:
    """From the command to the first step, and what became of a time budget."""
    head = "| machine | recipe, time | start | first step after | compiled after | in steps | held-out loss | bigram |"
    lines, peers = [f"{head} commit, date |\n", "|---|---|---|---|---|---|---|---|---|\n"], []
    for r in results("start"):
        for name, found in r["results"].items():
            for way in ("cold", "warm", "resume"):
                if way not in found:
                    continue
                told = found[way]
                compiled = told.get("compiled") or []
                after = f"{compiled[-1][1]:.1f} s" if compiled else ""
                share = f"{told['steps_share']:.0%}" if way == "cold" else ""
                loss = f"{told['loss']:.3f}" if "loss" in told else ""
                bigram = f"{told['baselines']['bigram']:.3f}" if "bigram" in told.get("baselines", {}) else ""
                lines.append(
                    f"| {_machine(r)} | {name} | {way} | {told['first_step']:.1f} s | {after} | {share} | {loss} | "
                    f"{bigram} | {told['commit']}, {told['date']} |\n"
                )
            if "wall" in (peer := found.get("peer", {})):
                ours = found["cold"]["wall"] - found["cold"]["parts"]["train"]
                peers.append(
                    f"On the rows of {name}, a cold run took {ours:.1f} s besides its steps, and the public trainer "
                    f"five_minutes.py {peer['besides_steps']:.1f} s.\n"
                )
    by = "\nBy `python bench/start.py`; the seconds are those of a run's own timeline.\n"
    return "".join((*lines, by, *peers))


def _beside_peer(found: dict[str, Any], changes: str, both: dict[str, float]) -> str:
    """The rest of a line: runs with the same fields, and the best of the peer's."""
    runs = [run for run in found["ours"] if (" ".join(run["changes"]) or "as chosen") == changes]
    peer, told = min(found["peer"], key=lambda run: run["nats"]), found["ours"][0]["baselines"]
    bigram = told["bigram"] if "oracle" not in told else told["bigram_in_context"] - told["oracle"]
    free = ", with compiling, which was not counted" * peer.get("compiles_free", False)
    taken = f"{max(run['wall'] for run in runs):.1f} and {peer['wall']:.1f}{free}"
    rates = ", ".join(f"{run['lr']:g}" for run in found["peer"])
    of_rates = f" of {rates}" * (len(found["peer"]) > 1)
    commits = sorted({f"{run['commit']}, {run['date']}" for run in [*runs, peer]})
    return (
        f"(taken: {taken}) | {bigram:.3f} | {both['peer_loss']:.3f} at {peer['lr']:g}{of_rates}, "
        f"{peer['depth']} layers, {peer['tokens'] / 1e6:,.0f} M tokens | {both['loss']:.3f}, {changes}, "
        f"{counted(len(runs), 'seed')}, {runs[0]['chosen']['model.layers']} layers, "
        f"{runs[0]['tokens'] / 1e6:,.0f} M tokens | {both['ratio']:.3f} | {', '.join(commits)}"
    )


def deadline_table() -> str:
    """What a deadline buys: ours beside a public trainer."""
    head = "| task | seconds | bigram | five_minutes.py at its best learning rate | ours | ours / theirs |"
    lines = [f"{head} commit, date |\n", "|---|---|---|---|---|---|---|\n"]
    for r in results("deadline"):
        for name, found in r["results"].items():
            for changes, both in found.get("beside", {}).items():
                lines.append(f"| {name.partition(',')[0]} | {found['time']:g} {_beside_peer(found, changes, both)} |\n")
        where = f"By `python bench/deadline.py` on {_machine(r)}"
        lines.append(f"\n{where}; losses in nats per token on the same rows, of a stream above the oracle's.\n")
    return "".join(lines)


def rates_table() -> str:
    """Best learning rates of small networks, and what "auto" chooses there."""
    from shoestring.planning.rates import best_lr

    head = (
        "| optimizer | parameters | positions | per step | best rate | its loss | chosen rate | expected loss there |\n"
    )
    lines = [head, "|---|---|---|---|---|---|---|---|\n"]
    for r in results("auto_law"):
        for o in sorted(r["optima"], key=lambda o: (o["optimizer"], o["tokens"], o["parameters"])):
            chosen = best_lr(o["parameters"], o["tokens"], o["batch"], o["optimizer"]).value
            loss = o["best_loss"] + o["curvature"] * math.log2(chosen / o["best_lr"]) ** 2
            lines.append(
                f"| {o['optimizer']} | {o['parameters']:,} | {o['tokens']:,} | {o['batch']:,} | {o['best_lr']:.4f} | "
                f"{o['best_loss']:.3f} | {chosen:.4f} | {loss:.3f} |\n"
            )
        origin = f"`{r['command']}` on {_machine(r)}, {r['commit']}, {r['date']}"
        lines.append(f"\nVertices of parabolas through sweeps of one seed, by {origin}.\n")
    return "".join(lines)


def regret_table() -> str:
    """The losses of what "auto" chooses, and of the best random setting of the same work."""
    lines = ["| text | chosen | its loss | best random setting | its loss | regret |\n", "|---|---|---|---|---|---|\n"]
    origins = []
    for r in (r for name in ("regret", "regret_repeated") for r in results(name)):
        best = min(r["random"], key=lambda run: run["loss"])
        text = "each row read once" if r["unique"] is None else f"{r['unique']:,} positions"
        chosen, other = (
            f"{s['width']} × {s['layers']}, {s['tokens']:,} positions, {s['batch']:,} per step, {s['lr']:.2g}, decay "
            f"{s['weight_decay']:.2g}"
            for s in (r["auto"]["setting"], best["setting"])
        )
        lines.append(
            f"| {text} | {chosen} | {r['auto']['loss']:.3f} | {other}, of {len(r['random'])} | {best['loss']:.3f} | "
            f"{r['regret']:+.1%} |\n"
        )
        origins.append(f"\n`{r['command']}` on {_machine(r)}, {r['commit']}, {r['date']}; one seed.\n")
    for r in results("regret_gpu"):
        for text, found in r["results"].items():
            autos = [run for name, run in found["runs"].items() if name.startswith("auto") and "loss" in run]
            best, loss = found["runs"][found["best"]], sum(run["loss"] for run in autos) / len(autos)
            lines.append(
                f"| {text} | {_timed_setting(autos[0])} | {loss:.3f} | {_timed_setting(best)}, of {found['random']} | "
                f"{best['loss']:.3f} | {found['regret']:+.1%} |\n"
            )
        origins.append(
            f"\n`{r['command']}` on {_machine(r)}, {r['commit']}, {r['date']}; mean of the seeds of what is chosen.\n"
        )
    return "".join((*lines, *origins))


def _timed_setting(run: dict[str, Any]) -> str:
    s = run["chosen"] | run["setting"]
    return (
        f"{s['model.width']} × {s['model.layers']}, {run['tokens']:,} positions, {s['train.batch']} rows per step, "
        f"{s['train.lr']:.2g}, decay {s['train.weight_decay']:.2g}"
    )


def probes_table() -> str:
    """Regret of the law, and of each way of probing."""
    lines, origins = list[str](), list[str]()
    for r in results("lr_probe"):
        names = list(next(iter(r["tasks"].values()))["regret"])
        lines.append(f"| task | {' | '.join(names)} |\n|---|{'---|' * len(names)}\n")
        for task, found in r["tasks"].items():
            seeds = f"{len(found['seeds'])} seed{'s' * (len(found['seeds']) > 1)}"
            values = " | ".join(f"{found['regret'][name]:.1%}" for name in names)
            lines.append(f"| {task}, {found['steps']:,} steps, {seeds} | {values} |\n")
        origins.append(f"\n`{r['command']}` on {_machine(r)}, {r['commit']}, {r['date']}.\n")
    return "".join((*lines, *origins))


def means_table() -> str:
    """What means of the weights gain."""
    lines, origins = list[str](), list[str]()
    for r in results("weight_average"):
        names = list(next(iter(r["tasks"].values()))["gains"])
        lines.append(f"| task | seeds | loss | {' | '.join(names)} |\n|---|---|---|{'---|' * len(names)}\n")
        for task, found in r["tasks"].items():
            plain = sum(run["losses"][-1]["plain"] for run in found["runs"]) / len(found["runs"])
            values = " | ".join(f"{gain:+.2%} ± {error:.2%}" for gain, error in map(found["gains"].get, names))
            lines.append(f"| {task} | {len(found['runs'])} | {plain:.3f} | {values} |\n")
        origins.append(
            f"\nShares are of the run's steps. `{r['command']}` on {_machine(r)}, {r['commit']}, {r['date']}.\n"
        )
    return "".join((*lines, *origins))


def kill_table() -> str:
    """Kills, full disks and little memory, and what came of them; problems by name."""
    lines = []
    labels = {"kills": "`kill -9`", "full disk": "a full disk", "little memory": "too little memory"}
    for r in results("kill"):
        head = ["by", "commands", "trials", "interruptions", "files that differ", "files left", "other faults"]
        lines += [f"| {' | '.join([*head, 'commit, date'])} |\n", "|" + "---|" * (len(head) + 1) + "\n"]
        for part, found in r["parts"].items():
            numbers = [len(found["commands"]), *(found[name] for name in ("trials", "kills"))]
            numbers += [found[name] for name in ("differing", "left", "failed")]
            cells = [labels[part], *(f"{n:,}" for n in numbers), f"{found['commit']}, {found['date']}"]
            lines.append(f"| {' | '.join(cells)} |\n")
        kills, memory = r["parts"]["kills"], r["parts"]["little memory"]
        lines.append(
            f"\nBy `python bench/kill.py` on {_machine(r)}; the disk has {r['disk']}. Of the kills "
            f"{kills['at_calls']:,} fell at a call that changes files, the others at a random time; "
            f"{kills['others']:,} took another process than the first one, and {kills['twice']:,} commands were killed "
            f"twice. For want of memory {memory['smaller']:,} runs took smaller micro-batches.\n\n"
        )
        for part, found in r["parts"].items():
            lines += [f"- {labels[part]}: {problem}\n" for problem in found["problems"]]
    return "".join(lines)


def measure_table() -> str:
    """The largest batches that were found; then plans against runs, each by the worst of its runs."""
    return "".join(_searches(r) + _plans_against_runs(r) for r in results("measure"))


def _searches(r: dict[str, Any]) -> str:
    head = ["workload", "finder", "largest batch", "true", "share", "trials", "out of memory", "seconds of trials"]
    lines = [f"| {' | '.join(head)} |\n", "|" + "---|" * len(head) + "\n"]
    found = {name: told for name, told in r["results"].items() if not name.startswith("runs:")}
    for name, told in found.items():
        true = told.get("true", {}).get("largest")
        for finder in ("ours", *(other for other in told if other.split()[0] in ("accelerate", "lightning"))):
            one = told[finder]
            label = "**shoestring**" if finder == "ours" else finder
            if "error" in one:
                lines.append(f"| {name} | {label} | – ({one['error']}) | | | | | |\n")
                continue
            largest, seconds = one["largest"], one.get("trial_seconds", one.get("seconds"))
            batches = [f"{batch:,}" if batch else "–" for batch in (largest, true)]
            share = f"{largest / true:.1%}" if largest and true else "–"
            cells = [name, label, *batches, share, str(one["trials"]), str(one["out_of_memory"]), f"{seconds:.1f}"]
            lines.append(f"| {' | '.join(cells)} |\n")
    return "".join(lines) + f"\nRows at a time, {_origins(r, found)}.\n\n" if found else ""


def _plans_against_runs(r: dict[str, Any]) -> str:
    head = ["workload, budget", "runs", "of the budget used", "by its own account", "error in seconds"]
    head += ["in memory", "in a step", "trials", "out of memory"]
    lines = [f"| {' | '.join(head)} |\n", "|" + "---|" * len(head) + "\n"]
    found = {name: told for name, told in r["results"].items() if name.startswith("runs:")}
    for name, told in found.items():
        ended = [run for run in told["runs"] if "error" not in run]
        failed = f", {len(told['runs']) - len(ended)} failed" if len(ended) < len(told["runs"]) else ""
        shared = sorted({run.get("at_once") or 1 for run in told["runs"]}) or [1]
        beside = f", {' and '.join(map(str, shared))} at a time" if shared != [1] else ""
        cells = [f"{name.removeprefix('runs:')}, {told['budget']}", f"{len(told['runs'])}{failed}{beside}"]
        cells += [_range([run[key] for run in ended]) for key in ("used_share", "budget_share")]
        cells += [_worst([run[key] for run in ended]) for key in ("seconds_error", "memory_error", "step_error")]
        cells += [_most([run[key] for run in ended]) for key in ("trials", "out_of_memory")]
        lines.append(f"| {' | '.join(cells)} |\n")
    return "".join(lines) + f"\nThe worst of the runs, {_origins(r, found)}.\n\n" if found else ""


def _origins(r: dict[str, Any], found: dict[str, Any]) -> str:
    """The command without its choice of names, where it ran, and which commits were measured when."""
    parts = [part for told in found.values() for part in (told, *told.get("runs", ()))]
    of = sorted({f"{part['commit']}, {part['date']}" for part in parts if "commit" in part})
    return f"by `python bench/measure.py` on {_machine(r)}, {'; '.join(of)}"


def _range(values: list[float]) -> str:
    """The least, and the most where it is another."""
    ends = [f"{end:.1%}" for end in (min(values), max(values))] if values else ["–"]
    return " to ".join(dict.fromkeys(ends))


def _worst(values: list[float | None]) -> str:
    """The one farthest from zero."""
    known = [value for value in values if value is not None]
    return f"{max(known, key=abs):+.1%}" if known else "–"


def _most(values: list[int | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{max(known)}" if known else "–"


def _machine(r: dict[str, Any]) -> str:
    machine = r["machine"]
    return f"{machine['device_name']}, torch {machine['versions']['torch']}"


PARTS = {
    "demo-transcript": demo_transcript,
    "demo-table": demo_table,
    "summary-table": summary_table,
    "kernels-table": kernels_table,
    "muon-table": muon_table,
    "startup-table": startup_table,
    "board-table": board_table,
    "hmm-table": hmm_table,
    "sample-table": sample_table,
    "data-table": data_table,
    "train-table": train_table,
    "laws-table": laws_table,
    "law-coverage-table": law_coverage_table,
    "memory-table": memory_table,
    "measure-table": measure_table,
    "kill-table": kill_table,
    "start-table": start_table,
    "sweep-table": sweep_table,
    "halving-table": halving_table,
    "icll-table": lambda: icll_table(results("icll_sweep")),
    "same-table": same_table,
    "overlap-table": lambda: overlap_table(results("overlap")),
    "finetune-table": lambda: finetune_table(results("finetune")),
    "deadline-table": deadline_table,
    "time-to-loss-table": lambda: time_to_loss_table(results("time_to_loss")),
    "ablation-table": lambda: ablation_table(results("ablation")),
    "pieces-table": lambda: pieces_table(results("pieces")),
    "wikitext-table": lambda: wikitext_table([*results("wikitext"), *results("wikitext_variants")]),
    "floor-table": lambda: floor_table(results("stream_floor")),
    "longer-table": lambda: longer_table(results("longer")),
    "crowded-table": lambda: crowded_table(results("crowded")),
    "generate-table": lambda: generate_table(results("generate")),
    "rates-table": rates_table,
    "regret-table": regret_table,
    "probes-table": probes_table,
    "means-table": means_table,
    "vocabulary-table": lambda: vocabulary_table(results("vocabulary_dropout")),
    "strategies-table": lambda: strategies_table(_on("cpu", results("strategies"))),
    "strategies-gpu-table": lambda: strategies_gpu_table(_on("cuda", results("strategies"))),
    "stragglers-table": lambda: stragglers_table(results("stragglers")),
    "starts-line": lambda: starts_line(results("starts")),
}


def generated(text: str) -> str:
    return PART.sub(lambda match: match.group(1) + PARTS[match.group(2)]() + match.group(3), text)


def draw_curves() -> None:
    """docs/images/train_curves.svg: the losses as trained, beside those of fp32 without compilation."""
    from curves import loss_curves

    from shoestring.report.figures import svg

    for r in results("train"):
        if "error" not in r.get("curves", {"error": ""}):
            figure = svg(loss_curves(r["curves"], "step", "training loss"))
            (ROOT / "docs/images/train_curves.svg").write_text(figure + "\n")


def draw_overlap() -> None:
    """docs/images/overlap.svg: overlap against steps, of both bases and languages."""
    from shoestring.report.figures import svg

    (ROOT / "docs/images/overlap.svg").write_text(svg(overlap_figure(results("overlap"))) + "\n")


def main() -> None:
    pages = {path: (path.read_text(), generated(path.read_text())) for path in PAGES}
    if "--check" in sys.argv:
        stale = [path.name for path, (old, new) in pages.items() if old != new]
        sys.exit(f"{', '.join(stale)} is not what results/ say; run: python bench/tables.py" if stale else 0)
    for path, (_, new) in pages.items():
        path.write_text(new)
    draw_curves()
    draw_overlap()
    draw_updates(results("icll_sweep"), ROOT / "docs/images")
    draw_strategies(_on("cpu", results("strategies")), ROOT / "docs")


if __name__ == "__main__":
    main()
