"""On a GPU: flex attention within documents gives what attention with a mask gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from shoestring.core.sections import Model
from shoestring.core.train_section import Train
from shoestring.models.batch import Batch
from shoestring.models.language_model import build
from shoestring.models.layers import attention
from shoestring.training.learner import Learner

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    pytest.mark.filterwarnings("ignore:::torch"),  # the compiler's own
]

VOCABULARY, CUDA = 500, torch.device("cuda")
PRECISIONS = [("fp32", 1e-5, 1e-4), ("bf16", 5e-2, 5e-2)]
"""Each with the largest relative difference of logits and of gradients."""


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()  # a function is compiled for so many shapes only, and each test has its own
    monkeypatch.setattr(attention, "_tried", {})


def _packed(rows: int, tokens: int) -> Batch:
    """Documents of 1 to 300 tokens, and padding in every other row."""
    random = np.random.default_rng(tokens)
    ids, segments = random.integers(0, VOCABULARY, (rows, tokens)), np.zeros((rows, tokens), np.int64)
    for row in range(rows):
        at, number, end = 0, 0, tokens - row % 2 * int(random.integers(tokens // 2))
        while at < end:
            number, size = number + 1, int(random.choice([1, 2, 20, 70, 300]))
            segments[row, at : min(at + size, end)] = number
            at += size
    return Batch(torch.from_numpy(ids), torch.from_numpy(segments), document_mask=True)


def _learner(precision: str, width: int = 128, heads: int = 4) -> Learner:
    """With larger weights than the first ones, so that attention attends to something."""
    model = build(Model(width=width, layers=3, heads=heads), VOCABULARY, 1024, seed=1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "qkv" in name:
                parameter.mul_(8)
    return Learner(model, Train(batch=1, lr=1e-3, precision=precision), CUDA)  # type: ignore[arg-type]


def _logits_and_gradient(learner: Learner, batch: Batch, per_device: int) -> tuple[Tensor, Tensor]:
    learner.accumulate(batch, per_device)
    gradient = torch.cat([p.grad.flatten() for p in learner.model.parameters() if p.grad is not None])
    learner.forget()
    return _logits(learner, batch, per_device), gradient


def _logits(learner: Learner, rows: Batch | Tensor, per_device: int) -> Tensor:
    """With a mean of zero, as a constant would make every difference look small."""
    log_probs = learner.log_probs(rows, per_device)
    return log_probs - log_probs.mean(-1, keepdim=True)


def _distance(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize(("tokens", "width", "heads"), [(129, 128, 4), (300, 96, 2), (513, 128, 2)])
@pytest.mark.parametrize(("precision", "logits", "gradient"), PRECISIONS)
def test_flex_attention_is_attention_with_a_mask(
    precision: str, logits: float, gradient: float, tokens: int, width: int, heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, batch = _learner(precision, width, heads), _packed(6, tokens)
    flex = _logits_and_gradient(learner, batch, 6)
    assert list(attention._tried.values()) == [True], "flex attention was used"
    monkeypatch.setattr(attention, "_flex_works", lambda *_: False)
    dense = _logits_and_gradient(learner, batch, 6)
    assert _distance(flex[0], dense[0]) < logits
    assert _distance(flex[1], dense[1]) < gradient
    across = _logits(learner, batch.ids, 6)
    assert _distance(across, dense[0]) > 5 * logits, "and attention across documents is another thing"


@pytest.mark.parametrize(("precision", "logits", "gradient"), PRECISIONS)
def test_batches_of_any_size_go_through_flex_attention(precision: str, logits: float, gradient: float) -> None:
    learner, batch = _learner(precision), _packed(11, 257)
    whole = _logits_and_gradient(learner, batch, 11)
    for per_device in (1, 2, 3, 4, 5, 8):
        parts = _logits_and_gradient(learner, batch, per_device)
        assert _distance(parts[0], whole[0]) < logits
        assert _distance(parts[1], whole[1]) < gradient
    assert list(attention._tried.values()) == [True]


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("bf16", 2e-3)])
def test_packed_losses_on_the_gpu_are_those_of_float64_on_the_cpu(precision: str, tolerance: float) -> None:
    learner, batch = _learner(precision), _packed(6, 300)
    found = learner.score(batch, 3)
    with torch.no_grad():
        exact = learner.model.cpu().double().token_losses(batch).double()
    assert torch.equal(found.isnan(), ~batch.predicted())
    assert _distance(found.nan_to_num(), exact) < tolerance


def test_heads_too_small_for_flex_attention_get_a_mask() -> None:
    learner, batch = _learner("fp32", width=32, heads=4), _packed(6, 300)
    found = learner.score(batch, 3)
    assert list(attention._tried.values()) == [False]
    with torch.no_grad():
        exact = learner.model.cpu().double().token_losses(batch).double()
    assert _distance(found.nan_to_num(), exact) < 1e-5


def test_a_pass_does_not_wait_for_the_device() -> None:
    learner, batch = _learner("bf16"), _packed(4, 300)
    learner.accumulate(batch, 4)
    moved = batch.to(CUDA)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with learner.precision():
            nats = learner.model(moved)
        nats.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
