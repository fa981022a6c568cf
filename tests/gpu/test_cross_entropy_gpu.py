"""On a GPU: the loss of chunks of rows by the kernel, against torch's own in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from shoestring.models.layers import cross_entropy
from shoestring.models.layers.cross_entropy import IGNORED, linear_cross_entropy, token_cross_entropy

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]

CUDA = torch.device("cuda")
SHAPES = [  # rows, channels, ids; of the last ones a program holds a part at a time
    *[(1, 16, 1), (5, 24, 2), (300, 64, 200), (1000, 128, 603), (0, 16, 50)],
    *[(257, 64, 8_192), (130, 64, 8_193), (300, 256, 50_257), (40, 32, 262_144)],
]
PRECISIONS = [(torch.float32, 1e-5), (torch.bfloat16, 1.5e-2)]
Inputs = tuple[Tensor, Tensor, Tensor | None, Tensor]


def inputs(n: int, d: int, v: int, biased: bool = True, ignored: float = 0.2) -> Inputs:
    """Logits of deviation 2 or so: neither flat nor certain."""
    generator = torch.Generator(CUDA).manual_seed(n + d + v)
    hidden = torch.randn(n, d, device=CUDA, generator=generator)
    weight = torch.randn(v, d, device=CUDA, generator=generator) * 2 / d**0.5
    bias = torch.randn(v, device=CUDA, generator=generator) if biased else None
    targets = torch.randint(v, (n,), device=CUDA, generator=generator)
    targets[torch.rand(n, device=CUDA, generator=generator) < ignored] = IGNORED
    return hidden, weight, bias, targets


def outcome(given: Inputs, half: torch.dtype, scale: float = 1.0) -> list[Tensor]:
    """The loss, that of tokens, and the gradients; in bf16 the stream is of that type, and the weights are not."""
    hidden, weight, bias, targets = given
    leaves = [hidden.to(half), weight.clone(), *([] if bias is None else [bias.clone()])]
    for leaf in leaves:
        leaf.requires_grad_()
    both = leaves[0], leaves[1], leaves[2] if bias is not None else None, targets
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=half == torch.bfloat16):
        loss, tokens = linear_cross_entropy(*both), token_cross_entropy(*both)
    gradients = torch.autograd.grad(loss * scale, leaves)
    assert loss.dtype == tokens.dtype == torch.float32
    assert [x.dtype for x in gradients] == [half, *[torch.float32] * (len(leaves) - 1)]
    return [loss.detach(), tokens, *gradients]


def exact_outcome(given: Inputs, scale: float = 1.0) -> list[Tensor]:
    hidden, weight, bias, targets = given
    leaves = [x.double().requires_grad_() for x in (hidden, weight, bias) if x is not None]
    logits = F.linear(leaves[0], leaves[1], leaves[2] if bias is not None else None)
    tokens = F.cross_entropy(logits, targets, reduction="none", ignore_index=IGNORED)
    return [tokens.sum().detach(), tokens.detach(), *torch.autograd.grad(tokens.sum() * scale, leaves)]


def agree(found: list[Tensor], exact: list[Tensor], tolerance: float) -> None:
    for ours, expected in zip(found, exact, strict=True):
        assert ours.shape == expected.shape
        distance = (ours.double() - expected).norm().item()
        assert distance <= tolerance * max(expected.norm().item(), 1e-2), (distance, expected.norm().item())


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("n", "d", "v"), SHAPES)
def test_loss_and_gradients_are_those_of_float64(
    n: int, d: int, v: int, biased: bool, dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = inputs(n, d, v, biased)
    exact = exact_outcome(given, scale=-0.25)
    agree(outcome(given, dtype, scale=-0.25), exact, tolerance)
    monkeypatch.setattr(cross_entropy, "LARGE_CHUNK_BYTES", dtype.itemsize * 128 * (v + 64))
    agree(outcome(given, dtype, scale=-0.25), exact, tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_are_ignored_give_nothing(dtype: torch.dtype) -> None:
    found = outcome(inputs(300, 32, 20_000, ignored=1.0), dtype)
    assert all((x == 0).all() for x in found)


@pytest.mark.parametrize("v", [603, 20_000])
@pytest.mark.parametrize("cap", [None, 15.0])
def test_the_kernel_is_the_plain_form(v: int, cap: float | None) -> None:
    scales = cross_entropy.LogitScales(cap=cap)
    hidden, weight, _, targets = inputs(200, 64, v)
    form = cross_entropy._form("cuda", torch.bfloat16)
    assert form.apply is not cross_entropy.plain
    columns = form.columns(v)
    logits = F.pad(hidden @ weight.T, (0, columns - v)).bfloat16()
    found, expected = logits.clone(), logits[:, :v].float()
    losses, others = (torch.empty(200, device=CUDA) for _ in range(2))
    form.apply(found, v, targets, losses, True, scales)
    cross_entropy.plain(expected, v, targets, others, True, scales)
    torch.testing.assert_close(losses, others, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[:, :v], expected.bfloat16(), rtol=2**-7, atol=1e-8)
    assert (found[:, v:] == 0).all()
    read = logits.clone()
    form.apply(read, v, targets, others, False, scales)
    assert torch.equal(read, logits) and torch.equal(losses, others)


@pytest.mark.parametrize("v", [50, 20_000])
def test_a_target_that_is_no_id_is_seen_in_the_loss(v: int) -> None:
    for wrong in (-1, v, v + 7, -101):
        hidden, weight, bias, targets = inputs(10, 16, v)
        targets[3] = wrong
        assert linear_cross_entropy(hidden.requires_grad_(), weight, bias, targets).isnan()


def test_float64_is_computed_in_float64() -> None:
    given = inputs(50, 16, 100)
    hidden, weight, bias, targets = given
    leaves = [x.double().requires_grad_() for x in (hidden, weight, bias) if x is not None]
    loss = linear_cross_entropy(leaves[0], leaves[1], leaves[2], targets)
    exact = exact_outcome(given)
    agree([loss.detach(), *torch.autograd.grad(loss, leaves)], [exact[0], *exact[2:]], 1e-12)


def test_memory_is_that_of_a_chunk_and_of_gradients() -> None:
    n, d, v = 32_768, 64, 50_000
    hidden, weight, _, targets = inputs(n, d, v, biased=False)
    hidden, weight = hidden.bfloat16().requires_grad_(), weight.requires_grad_()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        linear_cross_entropy(hidden, weight, None, targets).backward()
    peak = torch.cuda.max_memory_allocated() - before
    assert peak < 2 * cross_entropy.LARGE_CHUNK_BYTES < n * v * 2 / 3


def test_a_pass_does_not_wait_for_the_device() -> None:
    hidden, weight, bias, targets = inputs(500, 64, 603)
    leaves = [x.requires_grad_() for x in (hidden, weight, bias) if x is not None]
    linear_cross_entropy(leaves[0], leaves[1], leaves[2], targets).backward()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        linear_cross_entropy(leaves[0], leaves[1], leaves[2], targets).backward()
        token_cross_entropy(hidden, weight, bias, targets)
    finally:
        torch.cuda.set_sync_debug_mode("default")
