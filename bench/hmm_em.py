"""The E-step of a categorical HMM: ours beside the peers, on the same tokens, in one run.

    python bench/hmm_em.py [--peers FOLDER] [--cutlass FOLDER] [--only NAME …] [--shape N …] [--out FOLDER]
    python bench/hmm_em.py --merge RECORD … [--out FOLDER]

On a CPU the peer is hmmlearn (`implementation="scaling"`, float64, one thread; ours is float32, all threads). On a GPU
they are pomegranate and PyJuice, from the environment or unpacked in FOLDER. A peer that is missing is null.

PyJuice compiles its CUDA kernels with nvcc and the headers of CUTLASS: those of the package nvidia-cutlass, or of
--cutlass, a folder that holds include/cute. The record says for each shape whether they were used, and why not.

The batch of a peer is doubled until it gets slower twice or memory runs out, and its fastest one counts; ours takes all
sequences and chooses its own chunks. With --only and --shape a part is measured, and --merge joins the records of parts
that were measured on one machine. --most bounds the search where a peer crashes instead of raising an error.

Not all is equal. hmmlearn and pomegranate start from our tables; PyJuice draws its own, and runs with the next power of
two of states, so it does more work per token (1,024 states for our 600). Accuracy is ours against float64.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import record
import torch

from shoestring.hmm.engine import engine
from shoestring.hmm.expect import expect
from shoestring.hmm.parameters import Parameters, random_parameters
from shoestring.hmm.sampling import sample

CPU_SHAPES = ((100, 100, 100, 2000), (200, 100, 300, 400))
GPU_SHAPES = (
    (100, 100, 100, 67584),
    (200, 100, 300, 16896),
    (400, 100, 300, 16896),
    (500, 200, 100, 16896),
    (600, 100, 100, 16896),
)
"""States, symbols, length, sequences."""
FIRST_BATCH = {"hmmlearn": 4, "pomegranate": 128, "pyjuice": 256}
"""The batch that a search begins with."""
LONGEST = 5.0
"""Seconds of one E-step after which no larger batch is tried."""
GIB = 2**30


def median_seconds(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    def once() -> float:
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started

    once()  # compiling and first allocations are not what is measured
    return statistics.median(once() for _ in range(repeats))


def data_for(
    states: int, symbols: int, length: int, sequences: int, device: torch.device
) -> tuple[Parameters, torch.Tensor]:
    """A start, and sequences drawn from another model of the same size."""
    truth = random_parameters(states, symbols, seed=1, concentration=0.2)
    tokens = sample(truth, min(sequences, 4096), length, seed=2).tokens
    tokens = tokens.repeat(-(-sequences // len(tokens)), 1)[:sequences]
    start = random_parameters(states, symbols, seed=3, concentration=1.0).to(device=device, dtype=torch.float32)
    return start, tokens.to(device=device, dtype=torch.int32)


def accuracy(parameters: Parameters, tokens: torch.Tensor) -> dict[str, float]:
    """Relative difference of our fast E-step to float64: of the log-likelihood, and of each table as a whole."""
    fast = engine(parameters.device)(parameters, tokens)
    exact = expect(parameters.to(dtype=torch.float64), tokens)
    found = {"log_likelihood": abs(float(fast.log_likelihood / exact.log_likelihood) - 1)}
    for name in ("start", "transition", "emission"):
        ours, reference = getattr(fast, name), getattr(exact, name)
        found[name] = float((ours - reference).norm() / reference.norm())
    return found


def hmmlearn_seconds(parameters: Parameters, tokens: torch.Tensor) -> float:
    """One EM iteration; its M-step is a thousandth of it."""
    from hmmlearn.hmm import CategoricalHMM

    parameters = parameters.to(dtype=torch.float64)
    model = CategoricalHMM(
        parameters.states, implementation="scaling", n_iter=1, tol=0.0, init_params="", n_features=parameters.symbols
    )
    x = tokens.reshape(-1, 1).numpy().astype(np.int64)
    sizes = [tokens.shape[1]] * len(tokens)

    def work() -> None:
        model.startprob_, model.transmat_, model.emissionprob_ = (table.double().numpy() for table in parameters[:3])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(x, sizes)

    for table in parameters[:3]:
        table.copy_((table.double() / table.double().sum(-1, keepdim=True)).float())
    return median_seconds(work, torch.device("cpu"), 3)


def pomegranate_seconds(parameters: Parameters, tokens: torch.Tensor) -> float:
    from pomegranate.distributions import Categorical
    from pomegranate.hmm import DenseHMM

    emissions = [Categorical(parameters.emission[i : i + 1].tolist()) for i in range(parameters.states)]
    ends = [1.0 / parameters.states] * parameters.states
    model = DenseHMM(emissions, edges=parameters.transition.tolist(), starts=parameters.start.tolist(), ends=ends)
    model = model.to(tokens.device)
    x = tokens.long().unsqueeze(-1)
    return median_seconds(lambda: model.summarize(x), tokens.device, 2)


@cache
def circuit_of(states: int, symbols: int, length: int, device: torch.device) -> Any:
    """PyJuice's homogeneous HMM with the next power of two of states, compiled; the same for every batch."""
    import pyjuice

    size = 1 << (states - 1).bit_length()
    root = pyjuice.structures.HMM(seq_length=length, num_latents=size, num_emits=symbols, homogeneous=True)
    circuit = pyjuice.compile(root)
    circuit.to(device)
    return circuit


def pyjuice_seconds(parameters: Parameters, tokens: torch.Tensor) -> float:
    """Forward and backward."""
    circuit, x = circuit_of(parameters.states, parameters.symbols, tokens.shape[1], tokens.device), tokens.long()

    def work() -> None:
        circuit(x, propagation_alg="LL")
        circuit.backward(x, flows_memory=1.0, allow_modify_flows=False, propagation_alg="LL", logspace_flows=True)

    return median_seconds(work, tokens.device, 3)


SECONDS = {"hmmlearn": hmmlearn_seconds, "pomegranate": pomegranate_seconds, "pyjuice": pyjuice_seconds}


def search(work: Callable[[int], float], first: int, most: int) -> dict[str, Any]:
    """Double the batch from `first` until it gets slower twice in a row, takes too long, fails, or exceeds `most`.

    `work` takes a batch and returns its seconds. Returns the fastest batch, all rates (sequences per second),
    and the error that ended the search, if one did.
    """
    tried: dict[int, float] = {}
    error, batch = None, first
    while batch <= most:
        try:
            seconds = work(batch)
        except Exception as cause:  # memory, or whatever else a peer raises
            error = f"batch {batch}: {type(cause).__name__}: {str(cause)[:160]}"
            break
        tried[batch] = batch / seconds
        print(f"batch {batch:,}: {seconds:.3f} s", flush=True)
        rates = list(tried.values())
        if seconds > LONGEST or (len(rates) > 2 and max(rates[-2:]) < rates[-3]):
            break
        batch *= 2
    best = max(tried, key=lambda size: tried[size], default=None)
    return {"batch": best, "sequences_per_second": tried.get(best or 0), "tried": tried, "error": error}


def peer_values(name: str, parameters: Parameters, tokens: torch.Tensor, most: int | None) -> dict[str, Any]:
    """The fields of a peer in the record of a shape; `most`: its largest batch, else all sequences."""

    def work(batch: int) -> float:
        if tokens.device.type == "cuda":
            torch.cuda.empty_cache()
        return SECONDS[name](parameters, tokens[:batch])

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        found = search(work, FIRST_BATCH[name], min(len(tokens), most or len(tokens)))
    rate = found["sequences_per_second"]
    values = {
        f"{name}_tokens_per_second": rate * tokens.shape[1] if rate else None,
        f"{name}_batch": found["batch"],
        f"{name}_tried": found["tried"],
        f"{name}_error": found["error"],
    }
    if name == "pyjuice":
        values["pyjuice_cuda_kernels"] = pyjuice_kernels([str(one.message) for one in heard])
    return values


def pyjuice_kernels(heard: list[str]) -> str:
    """Whether PyJuice's CUDA kernels can be used, or the reason that it gave in a warning."""
    try:
        from pyjuice.layer.kernels import c as kernels

        usable = kernels.is_available()
    except Exception as cause:
        return f"unknown: {type(cause).__name__}: {cause}"
    reasons = [text for text in heard if "CUDA" in text]
    return "used" if usable else f"not used: {reasons[0][:300] if reasons else 'it gave no reason'}"


def find_cutlass(folders: list[Path | None]) -> Path | None:
    """The first folder whose include/, or the one of nvidia-cutlass in it, has the headers that PyJuice looks for."""
    for folder in filter(None, folders):
        for place in (folder, folder / "cutlass_library" / "source", folder / "cutlass"):
            if (place / "include" / "cute" / "tensor.hpp").is_file():
                return place.resolve()
    return None


def our_values(parameters: Parameters, tokens: torch.Tensor) -> dict[str, Any]:
    """Our fields in the record of a shape."""
    device, predictions = tokens.device, tokens.numel()
    if device.type == "cpu":
        seconds = median_seconds(lambda: expect(parameters, tokens), device, 5)
        return {"ours_tokens_per_second": predictions / seconds, "accuracy": accuracy(parameters, tokens[:200])}
    count = engine(device)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    seconds = median_seconds(lambda: count(parameters, tokens), device, 5)
    peak = torch.cuda.max_memory_allocated() - before
    plain = median_seconds(lambda: expect(parameters, tokens), device, 3)
    return {
        "ours_tokens_per_second": predictions / seconds,
        "plain_tokens_per_second": predictions / plain,
        "bytes_per_sequence": peak / len(tokens),
        "accuracy": accuracy(parameters, tokens[:2048]),
    }


def measure(device: torch.device, only: list[str], chosen: list[int], most: int | None) -> list[dict[str, Any]]:
    """A record for each shape of `chosen`, with ours and the peers in `only`; `most`: the largest batch of a peer."""
    shapes, rows = GPU_SHAPES if device.type == "cuda" else CPU_SHAPES, []
    for number in chosen or range(len(shapes)):
        states, symbols, length, sequences = shapes[number]
        parameters, tokens = data_for(states, symbols, length, sequences, device)
        row: dict[str, Any] = {"states": states, "symbols": symbols, "length": length, "sequences": sequences}
        for name in only:
            row |= our_values(parameters, tokens) if name == "ours" else peer_values(name, parameters, tokens, most)
            if device.type == "cuda":
                torch.cuda.empty_cache()
        rows.append(row)
        print(row, flush=True)
    return rows


def merge(records: list[dict[str, Any]]) -> dict[str, Any]:
    """One record of several parts, each with its command and commit; SystemExit where their machines differ."""
    for name in ("schema", "machine"):
        if any(one[name] != records[0][name] for one in records):
            raise SystemExit(f"the records differ in {name}: {', '.join(str(one[name]) for one in records)}")
    shapes: dict[tuple[int, ...], dict[str, Any]] = {}
    memory: dict[str, Any] = {}
    for one in records:
        for row in one["shapes"]:
            key = tuple(row[field] for field in ("states", "symbols", "length", "sequences"))
            shapes[key] = shapes.get(key, {}) | row
        memory |= one.get("memory", {})
    head = {name: records[0][name] for name in ("schema", "machine", "commit")}
    command = {"command": "python bench/hmm_em.py --peers PEERS", "date": max(one["date"] for one in records)}
    parts = [{"command": one["command"], "commit": one["commit"]} for one in records]
    return head | command | {"parts": parts, "shapes": list(shapes.values())} | ({"memory": memory} if memory else {})


def gpu_memory(device: torch.device) -> dict[str, Any]:
    """The seed's epoch, and very long sequences, each within 8 GiB."""
    found = {}
    for name, (states, symbols, length, sequences) in {
        "65,930 rows of 100, 100 states": (100, 100, 100, 65930),
        "256 rows of 10,000, 500 states": (500, 200, 10000, 256),
    }.items():
        parameters, tokens = data_for(states, symbols, length, sequences, device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        seconds = median_seconds(lambda: engine(device)(parameters, tokens, limit_bytes=7 * GIB), device, 1)
        found[name] = {"peak_bytes": torch.cuda.max_memory_allocated(), "seconds": seconds}
        print(name, found[name], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, default=None, help="a folder with unpacked packages of peers")
    parser.add_argument("--cutlass", type=Path, default=None, help="a folder that holds include/cute; see above")
    parser.add_argument("--only", nargs="+", choices=["ours", "memory", *SECONDS], default=None)
    parser.add_argument("--shape", nargs="+", type=int, default=[], help="numbers of shapes, from 0")
    parser.add_argument("--most", type=int, default=None, help="a peer's largest batch, where a larger one crashes it")
    parser.add_argument("--merge", nargs="+", type=Path, default=None, help="records of parts, to join")
    parser.add_argument("--out", type=Path, default=None, help="write the record here instead of results/")
    options = parser.parse_args()
    if options.merge:
        merged = merge([json.loads(path.read_text()) for path in options.merge])
        place = (options.out or record.ROOT / "results") / options.merge[0].name
        place.write_text(json.dumps(merged, indent=2) + "\n")
        return
    if options.peers:
        sys.path.insert(0, str(options.peers.resolve()))
    headers = find_cutlass([options.cutlass, options.peers])
    if headers is not None:
        os.environ["PYJUICE_CUTLASS_PATH"] = str(headers)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    peers = ["pomegranate", "pyjuice"] if device.type == "cuda" else ["hmmlearn"]
    only = options.only or ["ours", *peers, *(["memory"] if device.type == "cuda" else [])]
    shaped = [name for name in only if name != "memory"]
    values: dict[str, Any] = {"shapes": measure(device, shaped, options.shape, options.most) if shaped else []}
    if "memory" in only:
        values["memory"] = gpu_memory(device)
    record.write("hmm_em", values, options.out)


if __name__ == "__main__":
    main()
