"""Tokens per second of texts, beside the limit of the memory: recorded, as before, without cache, by transformers.

    python bench/generate.py [--only NAME …] [--tokens 128] [--repeats 3] [--out FOLDER]

"recorded" replays a CUDA graph per token, "kept" launches every kernel from Python; both are timed from the fifth new
token on, when all is compiled, recorded and read. "whole rows" keeps nothing, and "transformers" has the same weights;
both are timed over a whole call, for some of the networks. The best of some repeats counts. All write the likeliest
tokens, which are compared with those of "kept"; once one differs, so do those after it.

The limit is that of reading all weights once per token, and the keys and values of every text, at the speed at which
this device copies a large tensor. A row of results is printed and kept as soon as it is there.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import record
import torch
from torch import Tensor, nn

from shoestring.core.family import family_of
from shoestring.core.sections import Model
from shoestring.models import decoding
from shoestring.models.generate import Drawing, RowReader, generate
from shoestring.models.language_model import LanguageModel, build
from shoestring.models.layers import next_token
from shoestring.models.transformers_format import save_transformers
from shoestring.probe.machine import pick_device

PROMPT, WARM, LIKELIEST = 32, 4, Drawing(temperature=0.0)
PATIENCE = 1.0
"""Seconds after which a way is not repeated."""


class Case(NamedTuple):
    model: Model
    vocabulary: int
    length: int
    texts: int
    peers: bool = False
    """Whether whole rows and transformers are timed too."""


_SMALL, _GPT2 = Model(width=256, layers=6, heads=4), Model(family="gpt2", width=768, layers=12, heads=12)
_SWIFT = Model(family="swift", width=512, layers=8, heads=8)
_LLAMA, _LARGE = Model(width=768, layers=12, heads=12), Model(width=1280, layers=24, heads=20)
_KINDS = {
    "Llama 256 × 6": (_SMALL, 256, 512, True),
    "Swift 25 M": (_SWIFT, 256, 1024, False),
    "GPT-2 124 M": (_GPT2, 50257, 1024, True),
    "Llama 124 M": (_LLAMA, 50257, 1024, False),
    "Llama 500 M": (_LARGE, 50257, 1024, False),
}
CASES = {
    f"{name}, {'one text' if texts == 1 else f'{texts} texts'}": Case(model, vocabulary, length, texts, peers)
    for name, (model, vocabulary, length, peers) in _KINDS.items()
    for texts in (1, 16)
}


def copied_per_second(device: torch.device) -> float:
    """Bytes that a copy of a large tensor reads and writes in a second."""
    size = 1 << (28 if device.type == "cuda" else 26)
    one, two = (torch.empty(size, device=device) for _ in range(2))
    return max(2 * 4 * size / timed(lambda: two.copy_(one), device)[0] for _ in range(5))


def timed(work: Callable[[], Tensor], device: torch.device) -> tuple[float, Tensor]:
    """How long it took, and what came of it."""
    wait(device)
    started = time.perf_counter()
    found = work()
    wait(device)
    return time.perf_counter() - started, found


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


@torch.no_grad()
def write(network: LanguageModel, ids: Tensor, tokens: int, length: int, recorded: bool) -> tuple[float, Tensor]:
    """Tokens per second after the first few, and the rows."""
    reader, begun = RowReader(network, ids, length), ids.shape[1]
    ids = torch.cat((ids, ids.new_zeros(len(ids), tokens)), dim=1)
    if recorded:
        reader.record(ids, LIKELIEST, None)
    started = 0.0
    for end in range(begun, begun + tokens):
        if end == begun + WARM:
            wait(ids.device)
            started = time.perf_counter()
        if not reader.write(end):
            ids[:, end] = LIKELIEST.draw(reader.logits(ids[:, :end]))
    wait(ids.device)
    assert not recorded or reader.reason is None, reader.reason
    return len(ids) * (tokens - WARM) / (time.perf_counter() - started), ids


def measure(case: Case, tokens: int, repeats: int, device: torch.device, speed: float) -> dict[str, Any]:
    model, vocabulary, length, texts, peers = case
    kind = torch.bfloat16 if device.type == "cuda" else torch.float32
    network, theirs = networks(model, vocabulary, length, peers, device, kind)
    ids = torch.randint(vocabulary, (texts, PROMPT), generator=torch.Generator().manual_seed(0)).to(device)
    ways: dict[str, Callable[[], tuple[float, Tensor]]] = {"kept": lambda: write(network, ids, tokens, length, False)}
    if device.type == "cuda":
        ways["recorded"] = lambda: write(network, ids, tokens, length, True)
    if peers:
        told = {"do_sample": False, "max_new_tokens": tokens, "min_new_tokens": tokens, "pad_token_id": 0}

        def whole(work: Callable[[], Tensor]) -> tuple[float, Tensor]:
            seconds, found = timed(work, device)
            return texts * tokens / seconds, found

        ways["whole rows"] = lambda: whole(
            lambda: generate(network, ids, tokens, length=length, drawing=LIKELIEST, cached=False)
        )
        ways["transformers"] = lambda: whole(lambda: theirs.generate(ids, attention_mask=torch.ones_like(ids), **told))
    written, best = dict[str, Tensor](), dict.fromkeys(ways, 0.0)
    for way, work in ways.items():
        started = time.perf_counter()
        for _ in range(repeats):
            found, written[way] = work()
            best[way] = max(best[way], found)
            if time.perf_counter() - started > PATIENCE:
                break
    same = {way: float((written[way] == written["kept"]).float().mean()) for way in ways}
    weights = sum(p.numel() * p.element_size() for p in read_weights(network))
    kept = kept_bytes(model, kind.itemsize, min(PROMPT + (WARM + tokens) // 2, length))
    limit = texts * speed / (weights + texts * kept)
    return {
        "tokens_per_second": best, "share_of_limit": {way: rate / limit for way, rate in best.items()}, "limit": limit,
        "same_tokens": same, "weight_bytes": weights, "kept_bytes": kept, "tokens": tokens, "texts": texts,
    }  # fmt: skip


def profile(case: Case) -> str:
    """The time on the device by kernel, of the recorded tokens of a call; where they overlap, both count."""
    device = pick_device()
    network = build(case.model, case.vocabulary, case.length, 0).to(device, torch.bfloat16).eval()
    ids = torch.zeros(case.texts, PROMPT, dtype=torch.int64, device=device)
    write(network, ids, 2 * WARM, case.length, True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        write(network, ids, 64, case.length, True)
    return str(found.key_averages().table(sort_by="cuda_time_total", row_limit=15, max_name_column_width=40))


@lru_cache(maxsize=1)
def networks(
    model: Model, vocabulary: int, length: int, peers: bool, device: torch.device, kind: torch.dtype
) -> tuple[LanguageModel, Any]:
    """Ours and, for peers, that of transformers with the same weights."""
    network, theirs = build(model, vocabulary, length, 0), None
    if peers:
        from transformers import AutoModelForCausalLM

        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "model"
            save_transformers(network, model, vocabulary, length, place)
            theirs = AutoModelForCausalLM.from_pretrained(place, dtype=kind).to(device).eval()
    return network.to(device, kind).eval(), theirs


def read_weights(network: nn.Module) -> list[nn.Parameter]:
    """What is read as a whole for every token; of a table that is not the output product too, one row is."""
    tables = {id(m.weight) for m in network.modules() if isinstance(m, nn.Embedding)}
    products = {id(m.weight) for m in network.modules() if isinstance(m, nn.Linear)}
    return [p for p in network.parameters() if id(p) not in tables or id(p) in products]


def kept_bytes(model: Model, size: int, positions: int) -> int:
    """Keys and values that a token of one text reads after so many positions."""
    family: Any = family_of(model)
    windows = [family.window(model, i) if hasattr(family, "window") else None for i in range(model.layers)]
    channels = (model.kv_heads or model.heads) * (model.width // model.heads)
    return sum(2 * channels * size * min(window or positions, positions) for window in windows)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES), metavar="NAME")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--launch", nargs="*", default=[], metavar="NAME=INTEGER", help="other constants of next_token.py"
    )
    parser.add_argument("--profile", action="store_true", help="print the kernels of some recorded tokens, and end")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    for name, value in (each.split("=") for each in given.launch):
        module = decoding if name == "EARLY_FROM" else next_token  # EARLY_FROM=99: no kernel begins early
        assert hasattr(module, name), f"no constant {name}"
        setattr(module, name, int(value))
    if given.profile:
        for name in given.only:
            print(name, profile(CASES[name]), sep="\n", flush=True)
        return
    device, results = pick_device(), dict[str, Any]()
    speed = copied_per_second(device)
    for name in given.only:
        found = results[name] = measure(CASES[name], given.tokens, given.repeats, device, speed)
        rates = ", ".join(
            f"{way} {rate:,.0f} ({found['share_of_limit'][way]:.0%})"
            for way, rate in found["tokens_per_second"].items()
        )
        print(f"{name}: {rates}; limit {found['limit']:,.0f} tokens/s; same tokens {found['same_tokens']}", flush=True)
        record.write("generate", {"bytes_per_second": speed, "results": results}, given.out)


if __name__ == "__main__":
    main()
