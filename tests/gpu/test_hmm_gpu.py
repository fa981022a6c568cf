"""The fused E-step on a GPU: float64's numbers, the same bits every time, and no number out of range."""

from __future__ import annotations

import pytest
import torch

from shoestring.hmm.engine import engine, engine_of_updates
from shoestring.hmm.expect import Counts, expect
from shoestring.hmm.parameters import Parameters, random_parameters
from shoestring.hmm.sampling import sample

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]

CUDA = torch.device("cuda")


def _agree(fast: Counts, exact: Counts, tolerance: float = 1e-5) -> None:
    assert abs(float(fast.log_likelihood / exact.log_likelihood) - 1) < tolerance
    for name in ("start", "transition", "emission"):
        ours, reference = getattr(fast, name).cpu(), getattr(exact, name).cpu()
        assert float((ours - reference).norm() / reference.norm()) < tolerance, name
    for name in ("sequences", "tokens", "impossible"):
        assert float(getattr(fast, name)) == pytest.approx(float(getattr(exact, name))), name


@pytest.mark.parametrize("concentration", [0.05, 1.0])
@pytest.mark.parametrize(
    ("states", "symbols", "length"), [(3, 5, 7), (100, 100, 100), (200, 100, 40), (500, 200, 20), (600, 50, 9)]
)
def test_counts_are_those_of_float64(states: int, symbols: int, length: int, concentration: float) -> None:
    truth = random_parameters(states, symbols, seed=1, concentration=concentration)
    tokens = sample(truth, 700, length, seed=2).tokens
    lengths = torch.randint(1, length + 1, (700,), generator=torch.Generator().manual_seed(3))
    weights = torch.rand(700, generator=torch.Generator().manual_seed(4))
    start = random_parameters(states, symbols, seed=5)
    exact = expect(start.to(device=CUDA), tokens, lengths, weights)
    fast = engine(CUDA)(start.to(device=CUDA, dtype=torch.float32), tokens, lengths, weights, chunk=256)
    _agree(fast, exact)


@pytest.mark.parametrize(("rows", "block"), [(2000, 16), (3000, 32), (5000, 64), (20_000, 128)])
@pytest.mark.parametrize("states", [200, 300])
def test_counts_are_those_of_float64_in_blocks_of_all_sizes(states: int, rows: int, block: int) -> None:
    from shoestring.hmm.fused import tiles

    assert tiles(states, rows).rows == block
    start = random_parameters(states, 50, seed=5).to(device=CUDA)
    tokens = torch.randint(50, (rows, 9), generator=torch.Generator().manual_seed(0))
    _agree(engine(CUDA)(start.to(dtype=torch.float32), tokens), expect(start, tokens))


def test_the_same_bits_every_time() -> None:
    start = random_parameters(100, 50, seed=1).to(device=CUDA, dtype=torch.float32)
    tokens = torch.randint(50, (3000, 60), generator=torch.Generator().manual_seed(0))
    one, two = (engine(CUDA)(start, tokens) for _ in range(2))
    assert all(a.equal(b) for a, b in zip(one, two, strict=True) if a is not None)


@pytest.mark.parametrize("states", [20, 200])
def test_updates_that_are_replayed_have_the_bits_of_those_that_are_not(states: int) -> None:
    """With other parameters and rows every time, of two sizes at least; some have lengths, weights, or a row that
    cannot be."""
    replayed = engine_of_updates(CUDA, 256)
    generator = torch.Generator().manual_seed(0)
    for seed, rows in enumerate((250, 256, 250, 40, 256, 130, 250, 256)):
        start = random_parameters(states, 30, seed=seed).to(device=CUDA, dtype=torch.float32)
        if seed % 3 == 2:
            start.emission[:, 7] = 0.0
        tokens = torch.randint(30, (rows, 25), generator=generator, dtype=torch.uint8)
        lengths = torch.randint(1, 26, (rows,), generator=generator) if seed % 2 else None
        weights = torch.rand(rows, generator=generator) if seed % 4 == 3 else None
        found, plain = (count(start, tokens, lengths, weights) for count in (replayed, engine(CUDA)))
        assert all(a.equal(b) for a, b in zip(found, plain, strict=True) if a is not None), seed
    kept = replayed.keywords["count"]._recordings  # type: ignore[attr-defined]
    assert len(kept) == 2
    assert None not in kept.values()


def test_rows_out_of_float32_s_range_and_impossible_ones() -> None:
    emission = torch.full((4, 6), 1e-30, dtype=torch.float64)
    emission[:, 0] = 1 - emission[:, 1:].sum(1)
    emission[:, 5] = 0.0
    emission[:2, 1] = 1e-60
    transition = random_parameters(4, 6, seed=0).transition
    model = Parameters(
        torch.full((4,), 0.25, dtype=torch.float64), transition, emission / emission.sum(1, keepdim=True)
    )
    tokens = torch.zeros((200, 12), dtype=torch.long)
    tokens[10, 3:8] = 1
    tokens[20] = 1
    tokens[30, 5] = 5  # no state emits it
    exact = expect(model.to(device=CUDA), tokens)
    fast = engine(CUDA)(model.to(device=CUDA, dtype=torch.float32), tokens)
    assert float(exact.impossible) == 1
    assert all(bool(table.isfinite().all()) for table in fast if table is not None)
    assert float(fast.impossible) >= 1  # float32 has no 1e-60: those rows are judged by the tables as they are given


def test_tokens_may_lie_on_the_cpu_and_chunks_do_not_matter() -> None:
    start = random_parameters(64, 20, seed=1).to(device=CUDA, dtype=torch.float32)
    tokens = torch.randint(20, (1000, 30), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    _agree(engine(CUDA)(start, tokens, chunk=100), engine(CUDA)(start, tokens.to(CUDA)), tolerance=1e-6)
