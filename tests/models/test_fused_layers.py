"""Layers that are one pass on a GPU: the same as torch's own, in the interpreter here and on a GPU in tests/gpu."""

import importlib.util
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from scripts import run_script

from shoestring.models.layers.add_norm import add_norm
from shoestring.models.layers.blocks import RMSNorm
from shoestring.models.layers.linear import swiglu_linear

KERNELS = """
import itertools
import torch
import torch.nn.functional as F
from shoestring.models.layers import add_norm
from shoestring.models.layers import embedding_lookup as embedding
from shoestring.models.layers import linear, rotary
from shoestring.models.layers.rotary import frequencies, rotate, turns

def close(found, exact):
    for one, two in zip(found, exact, strict=True):
        torch.testing.assert_close(one.double(), two, rtol=1e-4, atol=1e-5)

torch.manual_seed(0)
for n, d in (*itertools.product((1, 3), (1, 16, 100, 257)), (37, 16), (37, 257)):
    x, change, to_total, to_normed = torch.randn(4, n, d)
    weight = torch.randn(d)
    total, normed, scales = add_norm._forward(x, change, weight, 1e-5)
    changes, to_weight = add_norm._backward(to_total, to_normed, total, weight, scales)
    inputs = [tensor.double().requires_grad_() for tensor in (x, change, weight)]
    exact = inputs[0] + inputs[1]
    outputs = (exact, F.rms_norm(exact, (d,), inputs[2], 1e-5))
    wanted = torch.autograd.grad(outputs, inputs, (to_total.double(), to_normed.double()))
    close((total, normed, changes, changes, to_weight), (*(o.detach() for o in outputs), *wanted))
    f = d
    pairs, weight, gradient = torch.randn(n, 2 * f), torch.randn(5, f), torch.randn(n, 5)
    made, _ = linear._swiglu(pairs, weight)
    changes, to_weight = linear._swiglu_backward(gradient, pairs, weight)
    inputs = [tensor.double().requires_grad_() for tensor in (pairs, weight)]
    exact = F.linear(F.silu(inputs[0][:, :f]) * inputs[0][:, f:], inputs[1])
    close((made, changes, to_weight), (exact.detach(), *torch.autograd.grad(exact, inputs, gradient.double())))

rotary.PAIRS = 64
for (heads, shared), channels, (rows, length) in (
    *itertools.product(((1, 1),), (2, 6, 16, 96, 128), ((1, 1),)),  # a program has one position
    *itertools.product(((3, 3), (4, 2)), (6, 128), ((1, 1),)),
    *itertools.product(((3, 3), (4, 2)), (6, 16), ((2, 5),)),
    *itertools.product(((40, 8),), (6, 96, 128), ((1, 2),)),  # several passes, or one of all heads
):
    qkv = torch.randn(rows, length, heads + 2 * shared, channels)
    angles = turns(frequencies(channels, 10_000.0), length)
    parts = rotary._forward(qkv, *angles, heads)
    outer = [torch.randn_like(part) for part in parts]
    wide = qkv.double().requires_grad_()
    q, k, v = wide.split((heads, shared, shared), dim=2)
    exact = (*(rotate(each, [table.double() for table in angles], heads=2) for each in (q, k)), v)
    wanted = torch.autograd.grad(exact, wide, [each.double() for each in outer])
    close((*parts, rotary._backward(*outer, *angles)), (*(e.detach() for e in exact), *wanted))

for n, v, d in (
    *itertools.product((1, 31, 32, 33, 64), (7,), (33,)),
    *itertools.product((130,), (1, 2, 7, 500), (33,)),  # one run over all blocks, two, some, and hardly any
    *itertools.product((33, 130), (7,), (1, 300)),
):
    table = torch.randn(v, d)
    ids = (torch.rand(1, n) ** 4 * v).long()  # some often: runs over one block, two, and many
    few = ids[:, :33]  # a program has one
    assert torch.equal(embedding._gather(few, table, torch.float32), table[few])
    gradient = torch.randn(1, n, d)
    exact = torch.zeros(v, d, dtype=torch.float64).index_add(0, ids[0], gradient[0].double())
    close([embedding._sum_by_id(ids, gradient, v, d)], [exact])
ids = torch.tensor([[0, -1, 3, 4, 2]])  # two are outside the vocabulary
rows = embedding._gather(ids, torch.ones(4, 8), torch.float32)
assert rows.isnan().any(2).tolist() == [[False, True, False, True, False]]
assert embedding._sum_by_id(ids, torch.ones(1, 5, 8), 4, 8)[:, 0].tolist() == [1, 0, 1, 1]

half = {"dtype": torch.float16, "requires_grad": True}
x, pairs, weight = torch.randn(6, 16, **half), torch.randn(6, 32, **half), torch.randn(8, 16, requires_grad=True)
angles = turns(frequencies(8, 10_000.0), 5)
for operator, inputs in (  # as the compiler sees them: shapes, gradients, nothing changed in place
    (torch.ops.shoestring.linear, (x, weight)),
    (torch.ops.shoestring.swiglu_linear, (pairs, weight)),
    (torch.ops.shoestring.qkv_rope, (torch.randn(2, 5, 6, 8, **half), *angles, 2)),
    (torch.ops.shoestring.add_norm, (x, x.detach(), weight[0].detach(), 1e-5)),
):
    torch.library.opcheck(operator, inputs)
"""

needs_triton = pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")


@needs_triton
def test_the_kernels_make_the_values_and_gradients_of_float64(tmp_path: Path) -> None:
    run_script(tmp_path, KERNELS, interpret=True)


def test_without_a_gpu_they_are_the_plain_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    x, change = torch.randn(2, 2, 3, 8, generator=generator)
    norm = RMSNorm(8, eps=1e-5)
    total, normed = add_norm(x, change, norm)
    assert torch.equal(total, x + change)
    assert torch.equal(normed, norm(x + change))
    weight, bias = torch.randn(4, 4, generator=generator), torch.randn(4, generator=generator)
    expected = F.linear(F.silu(x[..., :4]) * x[..., 4:], weight, bias)
    torch.testing.assert_close(swiglu_linear(x, weight, bias), expected)
