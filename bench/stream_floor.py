"""What a row of the deadline's stream can teach: the loss of one who knows the HMM, and not the row's permutation.

    python bench/stream_floor.py [--particles 10000 100000] [--rows 16] [--hmm RUN] [--out FOLDER]

The oracle of the stream knows each row's permutation of the symbols, so no network comes near it. Here a particle has
a symbol of the HMM for each token that the row has shown, and the HMM's filter for them. A token that is new gets one
of the symbols that are left, drawn from what the filter expects; particles are weighted by how likely the token was,
and drawn anew when few have most of the weight. The loss is that of their mixture, on the held-out rows that
`bench/deadline.py --task stream` scores. With ever more particles it goes down to the least that is possible.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import deadline
import record
import torch
from torch import Tensor

from shoestring.baselines.oracle import oracle_log_probs
from shoestring.baselines.streams import HmmBaselines, stream_baselines
from shoestring.core import recipe_file
from shoestring.core.records import Plan
from shoestring.datasets.corpus import StreamCorpus, open_corpus
from shoestring.hmm.parameters import Parameters
from shoestring.probe.machine import pick_device
from shoestring.streams.source import HELDOUT

TIME = 300.0
"""Of the runs beside which this is set."""


def losses(parameters: Parameters, row: list[int], particles: int) -> list[float]:
    """Nats of each token but the first, of the mixture of the particles."""
    start, transition, emission = (parameters[i].float() for i in range(3))
    states, symbols = emission.shape
    device, found, known = emission.device, list[float](), set[int]()
    filters = start.expand(particles, states)
    drawn = torch.zeros(particles, symbols, dtype=torch.int16, device=device)  # by token
    left = torch.ones(particles, symbols, device=device)
    logs = torch.zeros(particles, device=device)
    for token in row:
        if token not in known:
            expected = filters @ emission * left
            chance = expected.sum(1) / (symbols - len(known))
            sums = expected.cumsum(1)
            at = torch.rand(particles, 1, device=device) * sums[:, -1:]
            symbol = (sums < at).sum(1).clamp(max=symbols - 1)
            drawn[:, token] = symbol.short()
            left.scatter_(1, symbol[:, None], 0.0)
            known.add(token)
            filters = filters * emission.T[symbol]
        else:
            filters = filters * emission.T[drawn[:, token].long()]
            chance = filters.sum(1)
        found.append(-float((logs.softmax(0) * chance).sum().log()))
        logs = logs + chance.clamp_min(1e-30).log()
        filters = filters / filters.sum(1, keepdim=True).clamp_min(1e-30) @ transition
        weights = logs.softmax(0)
        if float(1 / weights.square().sum()) < particles / 2:
            kept = _systematic(weights)
            filters, drawn, left, logs = filters[kept], drawn[kept], left[kept], torch.zeros_like(logs)
    return found[1:]


def _systematic(weights: Tensor) -> Tensor:
    """As many particles as there are, each about as often as its weight says."""
    sums = weights.double().cumsum(0)
    marks = (torch.arange(len(weights), device=weights.device) + torch.rand(1, device=weights.device)) / len(weights)
    return torch.searchsorted(sums / sums[-1], marks.double()).clamp(max=len(weights) - 1)


def of_oracle(baselines: HmmBaselines, rows: Tensor) -> list[float]:
    """The loss of each row by the model and its permutation."""
    permutations = baselines.stream.permutations("symbols", HELDOUT, len(rows))
    found: list[float] = (-oracle_log_probs(baselines.parameters, rows, permutations)[:, 1:].mean(1)).tolist()
    return found


def measured(baselines: HmmBaselines, rows: Tensor, particles: int) -> dict[str, Any]:
    """The loss on the rows, and by how much it is above the oracle's on each of them."""
    device, begun = pick_device(), time.perf_counter()
    known = Parameters(*(None if each is None else each.to(device) for each in baselines.parameters))
    torch.manual_seed(0)
    found, oracle = (
        [statistics.mean(losses(known, row, particles)) for row in rows.tolist()],
        of_oracle(baselines, rows),
    )
    above = [loss - least for loss, least in zip(found, oracle, strict=True)]
    told = {"loss": statistics.mean(found), "oracle": statistics.mean(oracle), "above": statistics.mean(above)}
    error = statistics.stdev(above) / len(above) ** 0.5
    return {"particles": particles, "rows": len(found), "error": error, "seconds": time.perf_counter() - begun} | told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--particles", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--hmm", type=Path, help="the run of the stream's HMM")
    parser.add_argument("--out", type=Path, help="folder of the record; default: results")
    asked, results = parser.parse_args(), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as scratch:
        stream = argparse.Namespace(task="stream", time=TIME, hmm=asked.hmm, changes=[])
        recipe = recipe_file.load(deadline.write_ours(stream, 0, Path(scratch)))
        corpus = open_corpus(recipe, Plan(binding=""))
        assert isinstance(corpus, StreamCorpus)
        baselines = stream_baselines(corpus)
        assert isinstance(baselines, HmmBaselines)
        rows = corpus.heldout().ids[: asked.rows]
        for particles in asked.particles:
            results.append(measured(baselines, rows, particles))
            print(
                "{particles:,} particles: {above:.4f} ± {error:.4f} above the oracle".format(**results[-1]), flush=True
            )
            record.write("stream_floor", {"results": results}, asked.out)


if __name__ == "__main__":
    main()
