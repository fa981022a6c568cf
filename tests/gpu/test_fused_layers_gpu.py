"""Layers that are one pass on a GPU, beside float64."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from shoestring.models.add_norm import add_norm
from shoestring.models.blocks import RMSNorm
from shoestring.models.gated import gated_linear

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]

SHAPES = list(itertools.product((1, 37, 5000), (64, 100, 768, 1024, 4096)))


def off_by(found: Tensor, exact: Tensor) -> float:
    return float((found.detach().double() - exact.detach()).norm() / exact.detach().norm())


@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_adding_and_normalising(n: int, d: int) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    x, change, to_total, to_normed = torch.randn(
        4, 1, n, d, device="cuda", generator=generator, dtype=torch.bfloat16
    ).unbind()
    norm = RMSNorm(d, eps=1e-5).cuda()
    inputs = [x.requires_grad_(), change.requires_grad_(), norm.weight]
    outputs = add_norm(x, change, norm)
    found = torch.autograd.grad(outputs, inputs, (to_total, to_normed))
    wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
    total = wide[0] + wide[1]
    exact = (total, F.rms_norm(total, (d,), wide[2], 1e-5))
    wanted = torch.autograd.grad(exact, wide, (to_total.double(), to_normed.double()))
    for one, two in zip((*outputs, *found), (*exact, *wanted), strict=True):
        assert off_by(one, two) < 0.01


@pytest.mark.parametrize(("n", "f"), SHAPES)
def test_a_gate_and_its_product(n: int, f: int) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    pairs = torch.randn(n, 2 * f, device="cuda", generator=generator, dtype=torch.bfloat16).requires_grad_()
    weight = torch.randn(128, f, device="cuda", generator=generator).requires_grad_()
    made = gated_linear(pairs, weight)
    gradient = torch.randn(made.shape, device="cuda", generator=generator, dtype=torch.bfloat16)
    found = torch.autograd.grad(made, (pairs, weight), gradient)
    wide = [tensor.detach().double().requires_grad_() for tensor in (pairs, weight)]
    exact = F.linear(F.silu(wide[0][:, :f]) * wide[0][:, f:], wide[1])
    wanted = torch.autograd.grad(exact, wide, gradient.double())
    for one, two in zip((made, *found), (exact, *wanted), strict=True):
        assert off_by(one, two) < 0.01
