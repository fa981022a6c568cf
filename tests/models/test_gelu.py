"""GELU and its gradient, against float64 and torch's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from shoestring.models.layers import gelu as layer
from shoestring.models.layers.gelu import Approximation, gelu


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_and_its_gradient_are_those_of_float64(
    approximate: Approximation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer, "_ARM", True)
    x = torch.cat((torch.linspace(-30, 30, 4001), torch.tensor([-1e4, -0.0, 0.0, 1e-30, 1e4]))).requires_grad_()
    exact = x.detach().double().requires_grad_()
    outer = torch.linspace(-2, 3, len(x))
    found, expected = gelu(x, approximate), F.gelu(exact, approximate=approximate)
    (own,), (theirs,) = torch.autograd.grad(found, x, outer), torch.autograd.grad(expected, exact, outer.double())
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(own.double(), theirs, rtol=1e-5, atol=3e-6)


def test_other_types_are_torch_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer, "_ARM", True)
    for dtype in (torch.float64, torch.bfloat16):
        x = torch.randn(5, 8, dtype=dtype, requires_grad=True)
        assert type(gelu(x).grad_fn).__name__ == type(F.gelu(x).grad_fn).__name__
