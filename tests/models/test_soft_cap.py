"""The soft cap in the loss without all logits, against torch's operations in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from shoestring.models.language_model import Output
from shoestring.models.layers import cross_entropy
from shoestring.models.layers.cross_entropy import IGNORED, linear_cross_entropy, soft_cap, token_cross_entropy

N, D, V = 13, 6, 17


def case(dtype: torch.dtype, size: float) -> tuple[list[Tensor], Tensor]:
    """Hidden states, matrix and bias with logits of about `size`, and targets of which some are ignored."""
    noise = torch.Generator().manual_seed(0)
    leaves = [torch.randn(shape, generator=noise, dtype=torch.float64) for shape in ((N, D), (V, D), (V,))]
    leaves[0] *= size / D**0.5
    targets = torch.randint(V, (N,), generator=noise)
    targets[::4] = IGNORED
    return [x.to(dtype).requires_grad_() for x in leaves], targets


def textbook(leaves: list[Tensor], targets: Tensor, cap: float) -> Tensor:
    z = (leaves[0] @ leaves[1].T + leaves[2]) / cap
    logits = cap * (z.exp() - (-z).exp()) / (z.exp() + (-z).exp())
    return F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")


@pytest.mark.parametrize("cap", [1.0, 5.0, 30.0])
@pytest.mark.parametrize("size", [1.0, 20.0])
def test_loss_and_gradients_are_those_of_the_definition(
    cap: float, size: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaves, targets = case(torch.float64, size)
    expected = textbook(leaves, targets, cap)
    wanted = torch.autograd.grad(expected, leaves)
    for rows in (1, 4, 100):  # chunks of the logits
        monkeypatch.setattr(cross_entropy, "_chunk_rows", lambda *_, rows=rows: rows)
        loss = linear_cross_entropy(leaves[0], leaves[1], leaves[2], targets, None, cap)
        torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
        for mine, theirs in zip(torch.autograd.grad(loss, leaves), wanted):
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)
        tokens = token_cross_entropy(leaves[0], leaves[1], leaves[2], targets, cap)
        torch.testing.assert_close(tokens.sum(), expected.detach(), rtol=1e-12, atol=1e-12)


def test_gradients_are_those_of_small_differences() -> None:
    leaves, targets = case(torch.float64, 3.0)

    def nats(*given: Tensor) -> Tensor:
        return linear_cross_entropy(given[0], given[1], given[2], targets, None, 4.0)

    assert torch.autograd.gradcheck(nats, leaves)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_numbers_are_close_to_wide_ones(dtype: torch.dtype) -> None:
    leaves, targets = case(dtype, 8.0)
    wide = [x.detach().double().requires_grad_() for x in leaves]
    loss, expected = (
        linear_cross_entropy(leaves[0], leaves[1], leaves[2], targets, None, 6.0),
        textbook(wide, targets, 6.0),
    )
    tolerance = 1e-5 if dtype == torch.float32 else 0.03
    assert loss.item() == pytest.approx(expected.item(), rel=tolerance)
    for mine, theirs in zip(torch.autograd.grad(loss, leaves), torch.autograd.grad(expected, wide)):
        torch.testing.assert_close(mine.double(), theirs, rtol=tolerance, atol=tolerance * float(theirs.abs().max()))


def test_a_scale_multiplies_the_gradient_alone() -> None:
    leaves, targets = case(torch.float64, 3.0)
    one, two = (
        linear_cross_entropy(leaves[0], leaves[1], leaves[2], targets, scale, 4.0)
        for scale in (None, torch.tensor(-2.5, dtype=torch.float64))
    )
    assert torch.equal(one, two)
    for mine, theirs in zip(torch.autograd.grad(two, leaves), torch.autograd.grad(one, leaves)):
        torch.testing.assert_close(mine, -2.5 * theirs)


def test_logits_are_capped_too() -> None:
    (hidden, weight, bias), targets = case(torch.float64, 20.0)
    output = Output(weight, bias, 5.0)
    logits = output.logits(hidden)
    assert logits.abs().max() < 5 and torch.equal(logits, soft_cap(F.linear(hidden, weight, bias), 5.0))
    expected = F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="none")
    torch.testing.assert_close(output.token_losses(hidden, targets), expected.detach())
    torch.testing.assert_close(output.loss(hidden, targets), expected.sum())
    assert torch.equal(soft_cap(logits, None), logits)
