"""Training speed: ours beside `transformers`, compiled and not, and its `Trainer`, on the same rows in one run.

    python bench/train.py [--only NAME …] [--ways WAY …] [--profile] [--out FOLDER]

A step is forward, backward, clipping and AdamW (of a Swift: Muon) on bf16 products and fp32 weights, with new rows from
the host every time. Ours is the learner and the loop of `shoestring train`. Every measurement has a process of its own;
after the first steps, which compile, the median of the following steps counts. The cost of the input is what steps take
longer than steps whose rows are on the device already, measured by turns. FLOPs are those of
`shoestring.core.records.Cost`: matrix products, attention over every pair of positions without a discount for the
causal mask, the backward pass twice the forward pass. Utilisation is stated against the largest rate of a plain bf16
product measured in the same run, and against the 989 TFLOP/s of the vendor.

With --only or --ways the other results stay as they are in the record, and the new ones name their own commit and date.
Every result is in the record as soon as it is there.

Curves: the losses of 200 steps as trained here, and of the same steps in fp32 without compilation, on built-in stories.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import record
import torch

from shoestring.core.family import network_cost as cost
from shoestring.core.sections import Model
from shoestring.core.train_section import Train
from shoestring.data.pack.order import RowIndex
from shoestring.datasets.source import TokenSource
from shoestring.models.batch import Batch
from shoestring.models.language_model import build
from shoestring.probe.machine import describe_machine, pick_device
from shoestring.runs.best import SWIFT_PARTS
from shoestring.training.checkpoint import State
from shoestring.training.learner import Learner
from shoestring.training.loop import Loop, Report
from shoestring.training.schedule import Schedule
from shoestring.training.stepper import Stepper

VENDOR_FLOPS = 989e12
CHILD_SECONDS = 120
LLAMA = {"family": "llama", "tied": False}
SHAPES: dict[str, tuple[dict[str, Any], int, int, int]] = {
    # name: model, vocabulary, length, rows
    "llama-1024x8": ({**LLAMA, "width": 1024, "layers": 8, "heads": 8, "hidden": 4096}, 200, 100, 512),
    "llama-768x12": ({**LLAMA, "width": 768, "layers": 12, "heads": 12, "hidden": 3072}, 50304, 1024, 32),
    "gpt2-124m": ({"family": "gpt2", "width": 768, "layers": 12, "heads": 12}, 50257, 1024, 64),
    "perceiver-512x9": (
        {"family": "perceiver_ar", "width": 512, "layers": 9, "heads": 8, "latents": 512}, 32000, 2048, 32,
    ),
    "llama-512x9": ({**LLAMA, "tied": True, "width": 512, "layers": 9, "heads": 8, "hidden": 2048}, 32000, 2048, 32),
    "swift-124m": (
        {"family": "swift", "parts": SWIFT_PARTS["cuda"], "tied": False, "width": 768, "layers": 12, "heads": 12},
        50304, 1024, 64,
    ),
    "demo": ({"family": "llama", "width": 128, "layers": 3, "heads": 4}, 605, 128, 16),
}  # fmt: skip
KEPT = ("commit", "command", "date", "steps", "product_flops", "vendor_flops", "shapes", "curves")
"""Of a record that results are added to."""
PEERS = ("transformers compiled", "Trainer")
ALL_WAYS = ("ours", "ours recomputing", "ours compiled", "transformers", *PEERS)
ON_GPU = {
    "llama-1024x8": ("ours", *PEERS),
    "llama-768x12": ("ours", *PEERS),
    "gpt2-124m": ("ours", *PEERS),
    "perceiver-512x9": ("ours", "ours recomputing"),
    "llama-512x9": ("ours",),
    "swift-124m": ("ours",),
}
ON_CPU = {"demo": ("ours", "ours compiled", "transformers", "transformers compiled")}


class RandomRows:
    """Rows of random tokens in memory, gathered anew every step."""

    def __init__(self, vocabulary: int, length: int):
        self._rows = np.random.default_rng(0).integers(0, vocabulary, (1 << 13, length + 1), dtype=np.int64)

    def order(self, seed: int, step: int, batch: int) -> RowIndex:
        return RowIndex.first(np.random.default_rng([seed, step]).integers(0, len(self._rows), batch))

    def batch(self, index: RowIndex) -> Batch:
        return Batch(torch.from_numpy(self._rows[index.rows]))


class RowsThere:
    """Those rows of the first steps, on the device already: nothing to gather, nothing to copy."""

    def __init__(self, source: RandomRows, steps: int, batch: int, device: torch.device):
        self._there = [source.batch(source.order(0, step, batch)).to(device) for step in range(steps)]

    def order(self, seed: int, step: int, batch: int) -> RowIndex:  # noqa: ARG002
        return RowIndex.first(np.full(batch, step))

    def batch(self, index: RowIndex) -> Batch:
        return self._there[index.rows[0]]


def ours(name: str, way: str, steps: int, profile: bool) -> dict[str, Any]:
    spec, vocabulary, length, rows = SHAPES[name]
    device, model = pick_device(), Model(**spec)
    recompute = "full" if way == "ours recomputing" else "none"
    compiles = True if way == "ours compiled" else None
    optimizer = "muon" if model.family == "swift" else "adamw"
    settings = Train(batch=rows, lr=1e-4, optimizer=optimizer, recompute=recompute, compile=compiles)  # type: ignore[arg-type]
    learner = Learner(build(model, vocabulary, length, 0), settings, device)
    times: list[float] = []

    def note(state: State, report: Report) -> State:
        times.append(report.seconds)
        return state

    def steady(source: TokenSource) -> float:
        """The median of the later half of the steps; they are `times` then."""
        times.clear()
        stepper = Stepper(learner, source, settings, batch=rows, per_device=rows, seed=0)
        Loop(stepper, [note]).run(State(recipe="", data="", schedule=Schedule(total=steps)))
        return statistics.median(times[steps // 2 :])

    source = RandomRows(vocabulary, length)
    there = RowsThere(source, steps, rows, device)
    started = time.perf_counter()
    found = {"seconds": steady(source)}
    found["first_steps_seconds"] = time.perf_counter() - started - sum(times[steps // 2 :])
    found |= input_cost(lambda: steady(source), lambda: steady(there))
    if profile:
        show_profile(lambda: steady(source))
    return found | {"flops_per_token": cost(model, vocabulary, length).train_flops_per_token}


def input_cost(fed: Callable[[], float], there: Callable[[], float]) -> dict[str, Any]:
    """What rows from the host cost a step, as a share of it. By turns and back, as the clock of a chip drifts."""
    times: dict[str, list[float]] = {"fed": [], "there": []}
    for one in ["fed", "there", "there", "fed"] * 2:
        times[one].append((fed if one == "fed" else there)())
    cost = statistics.mean(times["fed"]) / statistics.mean(times["there"]) - 1
    pairs = [a / b - 1 for a, b in zip(times["fed"], times["there"], strict=True)]
    return {"input_cost": cost, "input_cost_spread": statistics.stdev(pairs), "input_seconds": times}


def show_profile(work: Callable[[], object]) -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
        work()
    print(found.key_averages().table(sort_by="self_cuda_time_total", row_limit=60, max_name_column_width=90))


def peer_model(spec: dict[str, Any], vocabulary: int, length: int) -> Any:
    """The network of `transformers` of the same shape."""
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    if spec["family"] == "gpt2":
        return GPT2LMHeadModel(GPT2Config(vocab_size=vocabulary, n_positions=length, attn_pdrop=0.0, embd_pdrop=0.0,
                                          resid_pdrop=0.0))  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=vocabulary, hidden_size=spec["width"], num_hidden_layers=spec["layers"],
        num_attention_heads=spec["heads"], num_key_value_heads=spec["heads"], max_position_embeddings=max(length, 2048),
        intermediate_size=spec.get("hidden") or -(-8 * spec["width"] // 96) * 32, attn_implementation="sdpa",
        tie_word_embeddings=spec.get("tied", True),
    ))  # fmt: skip


def peer(name: str, way: str, steps: int) -> dict[str, Any]:
    """`transformers` with torch's fused AdamW."""
    spec, vocabulary, length, rows = SHAPES[name]
    device = pick_device()
    model = peer_model(spec, vocabulary, length).to(device)
    called = torch.compile(model) if way.endswith("compiled") else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    source = RandomRows(vocabulary, length)
    times = []
    for step in range(steps):
        if step == steps // 2 and device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        started = time.perf_counter()
        ids = source.batch(source.order(0, step, rows)).ids[:, :length].to(device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            loss = called(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        times.append(time.perf_counter() - started)
    return {"seconds": statistics.median(times[steps // 2 :])}


def trainer(name: str, steps: int) -> dict[str, Any]:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    spec, vocabulary, length, rows = SHAPES[name]
    source = RandomRows(vocabulary, length)
    times: list[float] = []

    class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
        def __len__(self) -> int:
            return 1 << 20

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            ids = torch.from_numpy(source._rows[index % len(source._rows)][:length])
            return {"input_ids": ids, "labels": ids}

    class Note(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            times.append(time.perf_counter())
            if len(times) == steps // 2 and torch.cuda.is_available():
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, per_device_train_batch_size=rows, max_steps=steps, bf16=torch.cuda.is_available(),
            torch_compile=True, optim="adamw_torch_fused", report_to=[], logging_strategy="no", save_strategy="no",
            dataloader_num_workers=4, dataloader_pin_memory=True, disable_tqdm=True,
        )  # fmt: skip
        Trainer(
            model=peer_model(spec, vocabulary, length), args=arguments, train_dataset=Rows(), callbacks=[Note()]
        ).train()
    return {"seconds": (times[-1] - times[steps // 2]) / (steps - 1 - steps // 2)}


def one(name: str, way: str, steps: int, profile: bool) -> dict[str, Any]:
    torch.set_float32_matmul_precision("high")
    if way.startswith("ours"):
        found = ours(name, way, steps, profile)
    else:
        found = trainer(name, steps) if way == "Trainer" else peer(name, way, steps)
    _, _, length, rows = SHAPES[name]
    found["tokens_per_second"] = rows * length / found["seconds"]
    if torch.cuda.is_available():
        found["peak_bytes"] = torch.cuda.max_memory_allocated()
        found["reserved_bytes"] = torch.cuda.max_memory_reserved()
    return found


def product_flops() -> float:
    """The largest rate of a plain bf16 product."""
    rates = []
    for m, k, n in ((8192, 8192, 8192), (16384, 8192, 8192), (51200, 1024, 8192), (51200, 4096, 1024)):
        a, b = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in ((m, k), (k, n)))
        for _ in range(3):
            a @ b
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(20):
            a @ b
        torch.cuda.synchronize()
        rates.append(2 * m * k * n * 20 / (time.perf_counter() - started))
    return max(rates)


def curves(steps: int = 200) -> dict[str, list[float]]:
    """Losses on the built-in stories, as trained here and in fp32 without compilation."""
    from shoestring.data.read.corpora import Stories

    device, rows, length = pick_device(), 64, 256
    text = "\n".join(document.text for document, _ in zip(Stories(0).documents(), range(6000)))
    ids = np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64)
    starts = np.random.default_rng(0).integers(0, len(ids) - length - 1, (steps, rows))
    model, found = Model(width=256, layers=6, heads=8, hidden=768), {}
    for name, settings in (
        ("as trained", Train(batch=rows, lr=1e-3)),
        ("fp32, not compiled", Train(batch=rows, lr=1e-3, precision="fp32", compile=False)),
    ):
        torch.backends.cuda.matmul.allow_tf32 = False
        learner, losses = Learner(build(model, 256, length, 0), settings, device), []
        for step in range(steps):
            batch = torch.from_numpy(ids[starts[step][:, None] + np.arange(length + 1)])
            tally = learner.accumulate(batch, rows)
            learner.update(tally, settings.lr * min(1.0, (step + 1) / 20))
            losses.append(tally.nats / tally.predictions)
        found[name] = torch.stack(losses).tolist()
    return found


def in_a_process(*arguments: str) -> dict[str, Any]:
    try:
        told = subprocess.run(
            [sys.executable, __file__, *arguments], capture_output=True, text=True, timeout=CHILD_SECONDS
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {CHILD_SECONDS} s"}
    if told.returncode:
        lines = told.stderr.strip().splitlines() or ["no message"]
        return {"error": lines[-1][:300]}
    *shown, last = told.stdout.strip().splitlines()
    print("\n".join(shown))
    found: dict[str, Any] = json.loads(last)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--ways", nargs="*")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", nargs=2)
    parser.add_argument("--curves", action="store_true")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(one(*arguments.one, arguments.steps, arguments.profile)))
        return
    if arguments.curves:
        print(json.dumps(curves()))
        return
    gpu = torch.cuda.is_available()
    some = bool(arguments.only or arguments.ways)
    values: dict[str, Any] = {"steps": arguments.steps, "shapes": {}, **(earlier(arguments.out) if some else {})}
    peak = product_flops() if gpu else None
    if gpu:
        values = {"product_flops": peak, "vendor_flops": VENDOR_FLOPS} | values
    more = ["--profile"] if arguments.profile else []
    ways = ON_GPU if gpu else ON_CPU
    for name in ways:
        spec, vocabulary, length, rows = SHAPES[name]
        shape = {"model": spec, "vocabulary": vocabulary, "length": length, "rows": rows, "ways": {}}
        values["shapes"].setdefault(name, shape)
    for way in ALL_WAYS:  # ours of all shapes first
        for name, shape in values["shapes"].items():
            left_out = (arguments.only and name not in arguments.only) or (arguments.ways and way not in arguments.ways)
            if way not in ways[name] or left_out:
                continue
            found = in_a_process("--one", name, way, "--steps", str(arguments.steps), *more)
            shape["ways"][way] = found
            if way == "ours" and gpu and "seconds" in found:
                shape["flops_per_token"] = found["flops_per_token"]
            if peak and "seconds" in found and "flops_per_token" in shape:
                rate = shape["flops_per_token"] * found["tokens_per_second"]
                found |= {"of_measured_peak": rate / peak, "of_vendor_peak": rate / VENDOR_FLOPS}
            if some:
                found |= {"commit": record.commit(), "date": time.strftime("%Y-%m-%d"), "product_flops": peak}
            print(name, way, json.dumps(found), flush=True)
            record.write("train", values, arguments.out)
        if way == "ours" and not some:
            values["curves"] = in_a_process("--curves")


def earlier(folder: Path | None) -> dict[str, Any]:
    """What is known of this machine, which some shapes or ways are added to: in `folder`, or else among the results."""
    name = describe_machine(pick_device()).device_name
    for place in (folder, record.ROOT / "results"):
        for file in place.glob("train-*.json") if place is not None else ():
            old = json.loads(file.read_text())
            if old["machine"]["device_name"] == name:
                return {key: old[key] for key in KEPT if key in old}
    return {}


if __name__ == "__main__":
    main()
