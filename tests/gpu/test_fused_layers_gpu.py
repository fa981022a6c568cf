"""Layers that are one pass on a GPU, beside float64."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from shoestring.models.layers.add_norm import add_norm
from shoestring.models.layers.blocks import RMSNorm
from shoestring.models.layers.embedding_lookup import embedding_lookup
from shoestring.models.layers.linear import linear, swiglu_linear
from shoestring.models.layers.rotary import frequencies, qkv_rope, rotate, turns

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
    made = swiglu_linear(pairs, weight)
    gradient = torch.randn(made.shape, device="cuda", generator=generator, dtype=torch.bfloat16)
    found = torch.autograd.grad(made, (pairs, weight), gradient)
    wide = [tensor.detach().double().requires_grad_() for tensor in (pairs, weight)]
    exact = F.linear(F.silu(wide[0][:, :f]) * wide[0][:, f:], wide[1])
    wanted = torch.autograd.grad(exact, wide, gradient.double())
    for one, two in zip((made, *found), (exact, *wanted), strict=True):
        assert off_by(one, two) < 0.01


@pytest.mark.parametrize(("heads", "shared", "channels"), [(12, 12, 64), (8, 2, 128), (3, 1, 16), (32, 8, 96)])
def test_turned_heads(heads: int, shared: int, channels: int) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    angles = turns(frequencies(channels, 10_000.0).cuda(), 129)
    shape = (3, 129, heads + 2 * shared, channels)
    qkv = torch.randn(shape, device="cuda", generator=generator, dtype=torch.bfloat16).requires_grad_()
    parts = qkv_rope(qkv, angles, heads)
    outer = [torch.randn(part.shape, device="cuda", generator=generator, dtype=torch.bfloat16) for part in parts]
    (found,) = torch.autograd.grad(parts, qkv, outer)
    wide, exact_angles = qkv.detach().double().requires_grad_(), (angles[0].double(), angles[1].double())
    q, k, v = wide.split((heads, shared, shared), dim=2)
    exact = (rotate(q, exact_angles, heads=2), rotate(k, exact_angles, heads=2), v)
    (wanted,) = torch.autograd.grad(exact, wide, [each.double() for each in outer])
    for one, two in zip((*parts, found), (*exact, wanted), strict=True):
        assert off_by(one, two) < 0.01


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("n", "v", "d"), [(1, 1, 64), (33, 500, 100), (5000, 200, 1024), (20_000, 50_304, 768)])
def test_rows_of_a_table(n: int, v: int, d: int, kind: torch.dtype) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    table = torch.nn.Embedding(v, d, device="cuda")
    ids = (torch.rand(1, n, device="cuda", generator=generator) ** 3 * v).long()
    found = embedding_lookup(table, ids, kind)
    assert torch.equal(found, table.weight[ids].to(kind))
    gradient = torch.randn(found.shape, device="cuda", generator=generator).to(kind)
    sums = [torch.autograd.grad(embedding_lookup(table, ids, kind), table.weight, gradient)[0] for _ in range(2)]
    exact = torch.zeros(v, d, dtype=torch.float64, device="cuda").index_add(0, ids[0], gradient[0].double())
    torch.testing.assert_close(sums[0].double(), exact, rtol=1e-5, atol=1e-4)
    assert torch.equal(*sums)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("n", "a", "b"), [(1, 16, 16), (37, 100, 64), (5000, 768, 2304)])
def test_a_product_with_weights_in_float32(n: int, a: int, b: int, bias: bool) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    layer = torch.nn.Linear(a, b, bias=bias, device="cuda")
    x = torch.randn(1, n, a, device="cuda", generator=generator, dtype=torch.bfloat16).requires_grad_()
    made = linear(x, layer)
    outer = torch.randn(made.shape, device="cuda", generator=generator, dtype=torch.bfloat16)
    inputs = [x, *layer.parameters()]
    found = torch.autograd.grad(made, inputs, outer)
    wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
    exact = F.linear(*wide)
    wanted = torch.autograd.grad(exact, wide, outer.double())
    for one, two in zip((made, *found), (exact, *wanted), strict=True):
        assert off_by(one, two) < 0.01
    assert off_by(found[1], wanted[1]) < 1e-5, "not rounded to half precision"
