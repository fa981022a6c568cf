"""The E-step of a categorical HMM: ours beside the peers, on the same tokens, in one run.

    python bench/hmm_em.py [--peers FOLDER] [--out FOLDER]

On a CPU the peer is hmmlearn (`implementation="scaling"`, float64, one thread; ours is float32, all threads). On a GPU
they are pomegranate and PyJuice, from the environment or unpacked in FOLDER. A peer that is missing is null.

Not all is equal. hmmlearn and pomegranate start from our tables; PyJuice draws its own, and runs with the next power of
two of states, so it does more work per token (1,024 states for our 600). Batches of the peers are fixed numbers that
fit, not searched for: a peer may be faster at another. Accuracy is ours against float64.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import record
import torch

from shoestring.hmm.engine import engine
from shoestring.hmm.expect import expect
from shoestring.hmm.parameters import Parameters, random_parameters
from shoestring.hmm.sampling import sample

CPU_SHAPES = ((100, 100, 100, 2000, 40), (200, 100, 300, 400, 4))
"""States, symbols, length, our sequences, hmmlearn's sequences."""
GPU_SHAPES = (
    (100, 100, 100, 67584, 1024, 8192),
    (200, 100, 300, 16896, 256, 4096),
    (400, 100, 300, 16896, 128, 2048),
    (500, 200, 100, 16896, 256, 4096),
    (600, 100, 100, 16896, 128, 2048),
)
"""States, symbols, length, our sequences, pomegranate's, PyJuice's."""
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


def hmmlearn_seconds(parameters: Parameters, tokens: torch.Tensor) -> float | None:
    """One EM iteration; its M-step is a thousandth of it."""
    try:
        from hmmlearn.hmm import CategoricalHMM
    except ImportError:
        return None
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


def pomegranate_seconds(parameters: Parameters, tokens: torch.Tensor) -> float | None:
    try:
        from pomegranate.distributions import Categorical
        from pomegranate.hmm import DenseHMM
    except ImportError:
        return None
    emissions = [Categorical(parameters.emission[i : i + 1].tolist()) for i in range(parameters.states)]
    ends = [1.0 / parameters.states] * parameters.states
    model = DenseHMM(emissions, edges=parameters.transition.tolist(), starts=parameters.start.tolist(), ends=ends)
    model = model.to(tokens.device)
    x = tokens.long().unsqueeze(-1)
    return median_seconds(lambda: model.summarize(x), tokens.device, 2)


def pyjuice_seconds(states: int, symbols: int, tokens: torch.Tensor) -> float | None:
    """Forward and backward of PyJuice's homogeneous HMM with the next power of two of states."""
    try:
        import pyjuice
    except ImportError:
        return None
    size = 1 << (states - 1).bit_length()
    root = pyjuice.structures.HMM(seq_length=tokens.shape[1], num_latents=size, num_emits=symbols, homogeneous=True)
    circuit = pyjuice.compile(root)
    circuit.to(tokens.device)
    x = tokens.long()

    def work() -> None:
        circuit(x, propagation_alg="LL")
        circuit.backward(x, flows_memory=1.0, allow_modify_flows=False, propagation_alg="LL", logspace_flows=True)

    return median_seconds(work, tokens.device, 3)


def attempt(work: Callable[[], float | None]) -> tuple[float | None, str | None]:
    try:
        return work(), None
    except Exception as cause:
        torch.cuda.empty_cache()
        return None, f"{type(cause).__name__}: {str(cause)[:160]}"


def on_gpu(device: torch.device) -> list[dict[str, Any]]:
    rows = []
    for states, symbols, length, ours, poms, juices in GPU_SHAPES:
        parameters, tokens = data_for(states, symbols, length, ours, device)
        count = engine(device)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        seconds = median_seconds(lambda: count(parameters, tokens), device, 5)
        peak = torch.cuda.max_memory_allocated() - before
        plain = median_seconds(lambda: expect(parameters, tokens), device, 3)
        pom, pom_error = attempt(lambda: pomegranate_seconds(parameters, tokens[:poms]))
        juice, juice_error = attempt(lambda: pyjuice_seconds(states, symbols, tokens[:juices]))
        rows.append(
            {
                "states": states, "symbols": symbols, "length": length, "sequences": ours,
                "ours_tokens_per_second": ours * length / seconds,
                "plain_tokens_per_second": ours * length / plain,
                "pomegranate_tokens_per_second": poms * length / pom if pom else None, "pomegranate_error": pom_error,
                "pyjuice_tokens_per_second": juices * length / juice if juice else None, "pyjuice_error": juice_error,
                "bytes_per_sequence": peak / ours,
                "accuracy": accuracy(parameters, tokens[:2048]),
            }
        )  # fmt: skip
        print(rows[-1], flush=True)
        torch.cuda.empty_cache()
    return rows


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


def on_cpu(device: torch.device) -> list[dict[str, Any]]:
    rows = []
    for states, symbols, length, ours, theirs in CPU_SHAPES:
        parameters, tokens = data_for(states, symbols, length, ours, device)
        peer = hmmlearn_seconds(parameters.to(dtype=torch.float64), tokens[:theirs])
        seconds = median_seconds(lambda: expect(parameters, tokens), device, 5)
        rows.append(
            {
                "states": states, "symbols": symbols, "length": length, "sequences": ours,
                "ours_tokens_per_second": ours * length / seconds,
                "hmmlearn_tokens_per_second": theirs * length / peer if peer else None,
                "accuracy": accuracy(parameters, tokens[:200]),
            }
        )  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=Path, default=None, help="a folder with unpacked packages of peers")
    parser.add_argument("--out", type=Path, default=None, help="write the record here instead of results/")
    options = parser.parse_args()
    if options.peers:
        sys.path.insert(0, str(options.peers.resolve()))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    values: dict[str, Any] = {"shapes": on_gpu(device) if device.type == "cuda" else on_cpu(device)}
    if device.type == "cuda":
        values["memory"] = gpu_memory(device)
    record.write("hmm_em", values, options.out)


if __name__ == "__main__":
    main()
