"""Rows of a stream on a GPU: the bytes of the CPU, for every kind of permutation and both types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shoestring.streams import hmm, loops
from shoestring.streams.hmm import PLAIN, HmmStream
from shoestring.streams.philox import Purpose
from shoestring.streams.source import HELDOUT, TRAIN, StreamRows

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]

CUDA = torch.device("cuda")
GOLDEN = json.loads((Path(__file__).parents[1] / "streams" / "golden.json").read_text())
KINDS = [  # of symbols, of states
    *[("none", "none"), ("block:100", "none"), ("pool:50", "none"), ("sequence", "none")],
    *[("none", "block:100"), ("none", "pool:50"), ("none", "sequence")],
    *[("block:1", "pool:1"), ("pool:50", "block:100"), ("sequence", "sequence")],
]
FIRSTS = [0, 1, 65_536 - 150, 2**32 - 150, 2**62 - 150, 2**63 - 300]


def stream(h: int, e: int, length: int = 37, **kinds: str) -> HmmStream:
    """A random model of h states and e symbols."""
    rng = np.random.default_rng(h + e)
    start, transition, emission = (rng.dirichlet(np.full(n, 0.5), size=m) for n, m in ((h, 1), (h, h), (e, h)))
    return HmmStream(start[0], transition, emission, seed=1, length=length, **kinds)


def agree(made: HmmStream, first: int, count: int) -> None:
    on_gpu = made.rows(first, count, CUDA)
    assert on_gpu.device.type == "cuda" and on_gpu.dtype == made.dtype
    assert torch.equal(on_gpu.cpu(), made.rows(first, count))


@pytest.mark.parametrize(
    "case", GOLDEN["rows"], ids=lambda case: " ".join([case["model"], case["symbols"], case["states"]])
)
def test_known_rows(case: dict[str, Any]) -> None:
    tables = GOLDEN["models"][case["model"]]
    model = [np.array(tables[name]) / tables["of"] for name in ("start", "transition", "emission")]
    kinds = {"symbols": case["symbols"], "states": case["states"]}
    made = HmmStream(*model, seed=case["seed"], length=GOLDEN["length"], **kinds)
    digits = 2 * made.dtype.itemsize
    rows = made.rows(case["first"], len(case["rows"]), CUDA).tolist()
    assert ["".join(f"{token:0{digits}x}" for token in row) for row in rows] == case["rows"]


@pytest.mark.parametrize("symbols", [9, 300], ids=["uint8", "uint16"])
@pytest.mark.parametrize("kinds", KINDS, ids=" ".join)
def test_rows_are_those_of_the_cpu(kinds: tuple[str, str], symbols: int) -> None:
    agree(stream(6, symbols, symbols=kinds[0], states=kinds[1]), 2**32 - 150, 300)
    agree(stream(40, symbols + 100, symbols=kinds[0], states=kinds[1]), 2**32 - 150, 300)


@pytest.mark.parametrize("symbols", [9, 300], ids=["uint8", "uint16"])
def test_rows_of_any_number(symbols: int) -> None:
    for kinds in (("sequence", "block:100"), ("block:1", "pool:50")):
        made = stream(6, symbols, symbols=kinds[0], states=kinds[1])
        for first in FIRSTS:
            agree(made, first, 300)


@pytest.mark.parametrize(
    ("states", "symbols", "length"),
    [(1, 1, 1), (2, 2, 8), (3, 256, 5), (300, 256, 13), (300, 257, 4), (257, 2000, 3), (100, 100, 128)],
)
def test_rows_of_any_size(states: int, symbols: int, length: int) -> None:
    agree(stream(states, symbols, length, symbols="sequence", states="block:7"), 2**40 - 100, 777)


@pytest.mark.parametrize("symbols", [20, 300], ids=["uint8", "uint16"])
def test_many_rows(symbols: int) -> None:
    """More than a million, which other programs make."""
    made = stream(7, symbols, length=9, symbols="sequence", states="block:1000")
    agree(made, 2**32 - 2**19, 2**20 + 333)


def test_the_largest_alphabet() -> None:
    """So many tokens that hundreds of them fall on the last bits of a threshold."""
    agree(stream(3, 65_536, length=200), 2**50, 100_000)
    agree(stream(2, 65_536, length=20, symbols="block:100"), 2**50, 1000)


@pytest.mark.parametrize("size", [1, 2, 7, 256, 257, 5000])
def test_shuffles_are_those_of_the_cpu(size: int) -> None:
    kernels = pytest.importorskip("shoestring.streams.kernels", reason="Triton is not installed", exc_type=ImportError)
    for first, count in ((0, 1), (2**33 - 5, 300), (2**63 - 300, 300)):
        ours = kernels.shuffles(2**60 + 7, first, count, size, Purpose.STATES_SHUFFLE, CUDA)
        theirs = loops.shuffles(2**60 + 7, first, count, size, Purpose.STATES_SHUFFLE, torch.device("cpu"))
        assert ours.dtype == theirs.dtype and torch.equal(ours.cpu(), theirs)


@pytest.mark.parametrize("symbols", [9, 300], ids=["uint8", "uint16"])
def test_without_triton_the_rows_are_the_same(symbols: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {"symbols": "sequence", "states": "pool:5"}
    expected = [stream(4, symbols, **kinds).rows(first, 300) for first in FIRSTS]
    monkeypatch.setattr(hmm, "_form", lambda _: PLAIN)
    plain = stream(4, symbols, **kinds)
    for first, rows in zip(FIRSTS, expected):
        assert torch.equal(plain.rows(first, 300, CUDA).cpu(), rows)


def test_any_split_and_any_order_give_the_same_rows() -> None:
    made = stream(5, 11, symbols="sequence", states="block:3")
    whole = made.rows(2**32 - 500, 1000, CUDA)
    parts = [made.rows(2**32 - 500 + begin, 125, CUDA) for begin in range(875, -1, -125)]
    assert torch.equal(torch.cat(parts[::-1]), whole)
    assert made.rows(5, 0, CUDA).shape == (0, 37)


@pytest.mark.parametrize("symbols", [9, 300], ids=["uint8", "uint16"])
def test_a_source_on_the_gpu_gives_the_rows_of_one_on_the_cpu(symbols: int) -> None:
    for first in (TRAIN, HELDOUT):
        made = stream(4, symbols, symbols="sequence")
        on_gpu, on_cpu = StreamRows(made, first, CUDA), StreamRows(made, first, torch.device("cpu"))
        for step in range(3):
            ours, theirs = (rows.rows(rows.order(0, step, 64)) for rows in (on_gpu, on_cpu))
            assert ours.device.type == "cuda" and ours.dtype == torch.int64
            assert torch.equal(ours.cpu(), theirs)
