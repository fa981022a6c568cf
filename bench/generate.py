"""Tokens per second of texts: with what a network keeps of the tokens before, without, and by transformers.

python bench/generate.py [--only NAME …] [--repeats 3] [--out FOLDER]

The same network, its weights saved in the format of transformers, and the same likeliest tokens, which are compared.
The ways take turns, and the best of each counts. The limit is that of reading all weights once per token, at the speed
at which this device copies a large tensor.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import record
import torch
from torch import Tensor, nn

from shoestring.core.sections import Model
from shoestring.models.generate import Drawing, generate
from shoestring.models.language_model import build
from shoestring.models.transformers_format import save_transformers
from shoestring.probe.machine import pick_device

PROMPT, LIKELIEST = 32, Drawing(temperature=0.0)
CASES: dict[str, tuple[Model, int, int, int]] = {
    "Llama 256 × 6, one text": (Model(width=256, layers=6, heads=4), 256, 512, 1),
    "Llama 256 × 6, 16 texts": (Model(width=256, layers=6, heads=4), 256, 512, 16),
    "GPT-2 124 M, one text": (Model(family="gpt2", width=768, layers=12, heads=12), 50257, 1024, 1),
    "GPT-2 124 M, 16 texts": (Model(family="gpt2", width=768, layers=12, heads=12), 50257, 1024, 16),  # for a GPU
}
"""Network, vocabulary, length of rows, texts."""


def copied_per_second(device: torch.device) -> float:
    """Bytes that a copy of a large tensor reads and writes in a second."""
    size = 1 << (28 if device.type == "cuda" else 26)
    one, two = (torch.empty(size, device=device) for _ in range(2))
    return max(2 * 4 * size / timed(lambda: two.copy_(one), device)[0] for _ in range(5))


def timed(work: Callable[[], Tensor], device: torch.device) -> tuple[float, Tensor]:
    """How long it took, and what came of it."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    found = work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started, found


def measure(case: tuple[Model, int, int, int], tokens: int, repeats: int, device: torch.device) -> dict[str, Any]:
    from transformers import AutoModelForCausalLM

    model, vocabulary, length, texts = case
    kind = torch.bfloat16 if device.type == "cuda" else torch.float32
    network = build(model, vocabulary, length, 0)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "model"
        save_transformers(network, model, vocabulary, length, place)
        theirs: Any = AutoModelForCausalLM.from_pretrained(place, dtype=kind).to(device).eval()
    network = network.to(device, kind).eval()
    ids = torch.randint(vocabulary, (texts, PROMPT), generator=torch.Generator().manual_seed(0)).to(device)
    told = {"do_sample": False, "max_new_tokens": tokens, "min_new_tokens": tokens, "pad_token_id": 0}
    ways: dict[str, Callable[[], Tensor]] = {
        "kept": lambda: generate(network, ids, tokens, length=length, drawing=LIKELIEST),
        "whole rows": lambda: generate(network, ids, tokens, length=length, drawing=LIKELIEST, cached=False),
        "transformers": lambda: theirs.generate(ids, attention_mask=torch.ones_like(ids), **told),
    }
    written, best = dict[str, Tensor](), dict.fromkeys(ways, 0.0)
    for _ in range(repeats):
        for way, work in ways.items():
            seconds, written[way] = timed(work, device)
            best[way] = max(best[way], texts * tokens / seconds)
    same = {way: float((written[way] == written["kept"]).float().mean()) for way in ways}
    read = sum(p.numel() * p.element_size() for p in _read_weights(network))
    return {"tokens_per_second": best, "same_tokens": same, "weight_bytes": read, "tokens": tokens, "texts": texts}


def _read_weights(network: nn.Module) -> list[nn.Parameter]:
    """What is read as a whole for every token; of a table that is not the output product too, one row is."""
    tables = {id(m.weight) for m in network.modules() if isinstance(m, nn.Embedding)}
    products = {id(m.weight) for m in network.modules() if isinstance(m, nn.Linear)}
    return [p for p in network.parameters() if id(p) not in tables or id(p) in products]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES), metavar="NAME")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    device, found = pick_device(), {}
    speed = copied_per_second(device)
    for name in given.only:
        found[name] = measure(CASES[name], given.tokens, given.repeats, device)
        found[name]["limit"] = found[name]["texts"] * speed / found[name]["weight_bytes"]
        print(name, found[name], flush=True)
    record.write("generate", {"bytes_per_second": speed, "results": found}, given.out)


if __name__ == "__main__":
    main()
