"""On a GPU: the kernels for short rows give float64's numbers, as near as the steps of the plain form come to them."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from plain_attention import plain_short_attention
from torch import Tensor

from shoestring.models.layers.rotary import frequencies, turns
from shoestring.models.layers.short_attention import fits, short_attention

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    pytest.mark.filterwarnings("ignore:::torch"),  # the compiler's own
]

CUDA = torch.device("cuda")
SHAPES = [  # rows, positions, heads of queries, of keys, channels
    (512, 100, 8, 8, 128),
    (512, 100, 8, 8, 64),
    (64, 100, 12, 12, 64),
    (64, 100, 8, 2, 128),
    (64, 100, 12, 4, 64),
    (64, 128, 8, 8, 128),
    (64, 128, 8, 8, 32),
    (64, 65, 8, 8, 128),
    (64, 64, 8, 8, 128),
    (64, 64, 8, 4, 128),
    (300, 33, 4, 4, 16),
    (300, 32, 4, 4, 64),
    (300, 17, 4, 2, 128),
    (300, 16, 4, 4, 128),
    (300, 2, 4, 1, 32),
    (300, 1, 4, 4, 16),
]


def _inputs(rows: int, length: int, heads: int, groups: int, channels: int, kind: torch.dtype) -> tuple[Tensor, ...]:
    torch.manual_seed(length)
    qkv = 1.5 * torch.randn(rows, length, heads + 2 * groups, channels, device=CUDA)
    gradient = torch.randn(rows, length, heads, channels, device=CUDA)
    cos, sin = turns(frequencies(channels, 10_000.0).to(CUDA), length)
    return qkv.to(kind), gradient.to(kind), cos, sin


def _both(function: partial[Tensor], qkv: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    qkv = qkv.detach().requires_grad_()
    out = function(qkv)
    return out.detach(), torch.autograd.grad(out, qkv, gradient)[0]


def _distance(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES)
def test_attention_and_its_gradient_are_those_of_float64(shape: tuple[int, ...], kind: torch.dtype) -> None:
    rows, length, heads, groups, channels = shape
    qkv, gradient, cos, sin = _inputs(rows, length, heads, groups, channels, kind)
    assert fits(qkv, heads)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        form = partial(plain_short_attention, cos=cos.double(), sin=sin.double(), heads=heads)
        parts = [_both(form, q, g) for q, g in zip(qkv.double().split(64), gradient.double().split(64))]
        exact = [torch.cat(each) for each in zip(*parts)]
    plain = _both(partial(plain_short_attention, cos=cos, sin=sin, heads=heads), qkv, gradient)
    found = _both(partial(short_attention, cos=cos, sin=sin, heads=heads), qkv, gradient)
    for ours, theirs, reference in zip(found, plain, exact):
        assert ours.dtype == kind and ours.shape == reference.shape and ours.is_contiguous()
        assert _distance(ours, reference) < 1.2 * _distance(theirs, reference) + 1e-4


def test_the_same_bits_every_time_and_nothing_beyond_the_rows() -> None:
    qkv, gradient, cos, sin = _inputs(64, 100, 8, 8, 128, torch.bfloat16)
    form = partial(short_attention, cos=cos, sin=sin, heads=8)
    out, slope = _both(form, qkv, gradient)
    around = torch.full((66, *qkv.shape[1:]), torch.nan, dtype=qkv.dtype, device=CUDA)
    around[1:-1] = qkv
    for _ in range(3):
        found = _both(form, around[1:-1], gradient)
        assert torch.equal(found[0], out) and torch.equal(found[1], slope)


def test_a_compiled_layer_under_autocast_calls_the_kernels() -> None:
    qkv, gradient, cos, sin = _inputs(8, 100, 4, 2, 64, torch.bfloat16)
    weight = torch.eye(qkv.shape[2] * 64, device=CUDA)

    def layer(x: Tensor) -> Tensor:
        made = torch.nn.functional.linear(x, weight).view(qkv.shape)
        mixed: Tensor = torch.ops.shoestring.short_attention(made, cos, sin, 4)  # a checker of shapes is not compiled
        return mixed

    with torch.autocast("cuda", torch.bfloat16):
        compiled = torch.compile(layer, fullgraph=True)
        found = _both(partial(compiled), qkv.flatten(2).float(), gradient)
    expected = _both(partial(short_attention, cos=cos, sin=sin, heads=4), qkv, gradient)
    assert torch.equal(found[0], expected[0])
    assert _distance(found[1], expected[1].flatten(2).double()) < 1e-2
    with torch.no_grad():
        assert torch.equal(short_attention(qkv, cos, sin, 4), expected[0])


def test_what_the_kernels_cannot_do_does_not_fit() -> None:
    for length, heads, groups, channels, kind in [
        (129, 2, 2, 64, torch.bfloat16),
        (100, 2, 2, 96, torch.bfloat16),
        (100, 2, 2, 64, torch.float32),
    ]:
        assert not fits(_inputs(2, length, heads, groups, channels, kind)[0], heads)
