"""A Swift's layers that are one pass on a GPU: float64's values and gradients, in the interpreter."""

import importlib.util
from pathlib import Path

import pytest
import torch
from scripts import run_script

from shoestring.models.layers.blocks import RMSNorm
from shoestring.models.layers.normed_heads import normed_heads
from shoestring.models.layers.rotary import frequencies, rotate, turns
from shoestring.models.layers.scaled_add_norm import scaled_add_norm

KERNELS = """
import itertools
import torch
import torch.nn.functional as F
from shoestring.models.layers import normed_heads as heads_of, scaled_add_norm as scaled
from shoestring.models.layers.rotary import frequencies, rotate, turns
def close(found, exact):
    for one, two in zip(found, exact, strict=True):
        torch.testing.assert_close(one.double(), two, rtol=1e-4, atol=2e-5)
torch.manual_seed(0)
for n, d in (*itertools.product((1, 3), (1, 16, 100, 257)), (37, 16), (37, 257)):
    x, change, first, to_total, to_normed = torch.randn(5, n, d)
    factors, weight = torch.tensor([0.8, -0.3]), torch.randn(d)
    total, normed, sums, scales = scaled._forward(x, change, first, factors, weight, 1e-5)
    found = scaled._backward(to_total, to_normed, sums, scales, first, factors, weight)
    inputs = [each.double().requires_grad_() for each in (x, change, first, factors, weight)]
    exact = inputs[3][0] * (inputs[0] + inputs[1]) + inputs[3][1] * inputs[2]
    outputs = (exact, F.rms_norm(exact, (d,), inputs[4], 1e-5))
    wanted = torch.autograd.grad(outputs, inputs, (to_total.double(), to_normed.double()))
    close((total, normed, found[0], *found), (*(o.detach() for o in outputs), *wanted))
heads_of.MOST_PROGRAMS = 4
for (heads, shared), channels, (rows, length), valued in (
    *itertools.product(((1, 1), (3, 3), (4, 2), (5, 1)), (2, 6, 16), ((1, 1), (2, 5)), (False, True)),
    ((12, 12), 64, (1, 3), True),
):
    qkv = torch.randn(rows, length, heads + 2 * shared, channels)
    angles = turns(frequencies(channels, 10_000.0), length)
    gains = torch.randn(2, channels)
    values = torch.randn(rows * length, 3 * shared * channels).chunk(3, dim=-1)[1] if valued else None
    gates = torch.randn(rows, length, shared) if valued else None
    *parts, scales = heads_of._forward(qkv, *angles, *gains, values, gates, heads, 1e-5)
    outer = [torch.randn_like(part) for part in parts]
    to_qkv, to_values, to_gates, to_gains = heads_of._backward(*outer, qkv, scales, *angles, *gains, values, gates)
    wide = [each.double().requires_grad_() for each in (qkv, gains, *((values, gates) if valued else ()))]
    q, k, v = wide[0].split((heads, shared, shared), dim=2)
    tables = [table.double() for table in angles]
    exact = [rotate(F.rms_norm(each, (channels,), gain, 1e-5), tables, heads=2) for each, gain in zip((q, k), wide[1])]
    exact.append(v if not valued else v + 2 * wide[3].sigmoid()[..., None] * wide[2].view(v.shape))
    wanted = torch.autograd.grad(exact, wide, [each.double() for each in outer])
    found = [to_qkv, to_gains, *((to_values, to_gates) if valued else ())]
    close((*parts, *found), (*(e.detach() for e in exact), *wanted))
half = {"dtype": torch.float16, "requires_grad": True}
x, rest = torch.randn(6, 16, **half), torch.randn(6, 16, **half)
angles = turns(frequencies(8, 10_000.0), 5)
factors, weight, gains = torch.randn(2, requires_grad=True), torch.randn(16, requires_grad=True), torch.randn(2, 8)
qkv, values, gates = torch.randn(2, 5, 6, 8, **half), torch.randn(10, 16, **half), torch.randn(2, 5, 2, **half)
g = [g.clone().requires_grad_() for g in gains]
for operator, inputs in (
    (torch.ops.shoestring.scaled_add_norm, (x, rest, rest, factors, weight, 1e-5)),
    (torch.ops.shoestring.normed_heads, (qkv, *angles, *g, values, gates, 2, 1e-5)),
    (torch.ops.shoestring.normed_heads, (qkv, *angles, *g, None, None, 2, 1e-5)),
):
    torch.library.opcheck(operator, inputs)
"""


@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")
def test_the_kernels_make_the_values_and_gradients_of_float64(tmp_path: Path) -> None:
    run_script(tmp_path, KERNELS, interpret=True)


def test_without_a_gpu_they_are_the_plain_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    x, change, first = torch.randn(3, 2, 5, 8, generator=generator)
    norm, factors = RMSNorm(8, eps=1e-5), torch.tensor([0.8, -0.3])
    total, normed = scaled_add_norm(x, change, first, factors, norm)
    assert torch.equal(total, factors[0] * (x + change) + factors[1] * first)
    assert torch.equal(normed, norm(total))
    qkv, angles = torch.randn(2, 5, 4, 8, generator=generator), turns(frequencies(8, 10_000.0), 5)
    values, gates = torch.randn(2, 5, 8, generator=generator), torch.randn(2, 5, 1, generator=generator)
    q, k, v = normed_heads(qkv, angles, (norm, norm), 2, values, gates)
    assert torch.equal(q, rotate(norm(qkv[:, :, :2]), angles, heads=2))
    assert torch.equal(k, rotate(norm(qkv[:, :, 2:3]), angles, heads=2))
    torch.testing.assert_close(v[:, :, 0], qkv[:, :, 3] + 2 * torch.sigmoid(gates) * values)
