"""Short convolutions: torch's own in float64, documents as rows of their own, further tokens as whole rows."""

import importlib.util
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scripts import run_script
from torch import Tensor

from shoestring.models.layers.past import Inputs
from shoestring.models.layers.short_convolution import ShortConvolution, short_convolution


def by_torch(x: Tensor, factors: Tensor) -> Tensor:
    """The same by torch's convolution, whose kernel begins with the oldest position."""
    factors = F.pad(factors, (x.shape[2] - factors.shape[1], 0))
    kernel = torch.cat((factors.flip(0), torch.ones_like(factors[:1]))).t()[:, None]  # D 1 J+1
    padded = F.pad(x.transpose(1, 2), (len(factors), 0))
    return F.conv1d(padded, kernel, groups=x.shape[2]).transpose(1, 2)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(
    rows=st.integers(1, 3), length=st.integers(1, 9), others=st.integers(0, 3), channels=st.integers(1, 5),
    before=st.integers(1, 8),
)  # fmt: skip
@settings(max_examples=40)
def test_values_and_gradients_are_those_of_torch(
    rows: int, length: int, others: int, channels: int, before: int
) -> None:
    shape = rows, length, others + channels
    x, factors = drawn(*shape).requires_grad_(), drawn(before, channels, seed=1).requires_grad_()
    outer, outputs = drawn(*shape, seed=2), []
    for function in (short_convolution, by_torch):
        found = function(x, factors)
        outputs.append((found, *torch.autograd.grad(found, (x, factors), outer)))
    torch.testing.assert_close(*outputs)


@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5), before=st.integers(1, 4))
@settings(max_examples=40)
def test_a_document_is_a_row_of_its_own(sizes: list[int], before: int) -> None:
    x, factors = drawn(1, sum(sizes), 3).requires_grad_(), drawn(before, 3, seed=1).requires_grad_()
    positions = torch.cat([torch.arange(size) for size in sizes])[None]
    outer = drawn(1, sum(sizes), 3, seed=2)
    found = short_convolution(x, factors, positions)
    exact = torch.cat([short_convolution(part, factors) for part in x.split(sizes, dim=1)], dim=1)
    torch.testing.assert_close(found, exact)
    torch.testing.assert_close(
        torch.autograd.grad(found, (x, factors), outer), torch.autograd.grad(exact, (x, factors), outer)
    )


@given(parts=st.lists(st.integers(1, 5), min_size=1, max_size=6), before=st.integers(1, 4))
@settings(max_examples=40)
def test_further_tokens_have_what_whole_rows_have(parts: list[int], before: int) -> None:
    layer = ShortConvolution(before, 3).double()
    with torch.no_grad():
        layer.weight.copy_(drawn(3 * before, seed=1))
        x, kept = drawn(2, sum(parts), 5), Inputs(before)
        found = torch.cat([layer(part, kept=kept) for part in x.split(parts, dim=1)], dim=1)
        torch.testing.assert_close(found, layer(x))
        assert kept.count == sum(parts) and kept.tensor().shape == (2, before + 1, 3)


def test_it_changes_nothing_at_first_and_sums_in_float32() -> None:
    layer, x = ShortConvolution(3, 4), drawn(2, 6, 4)
    assert torch.equal(layer(x.float()), x.float()) and layer.weight.ndim == 1
    x, factors = drawn(2, 6, 4).bfloat16(), drawn(3, 4, seed=1).float()
    assert torch.equal(short_convolution(x, factors), by_torch(x.float(), factors).bfloat16())


KERNELS = """
import itertools
import torch
from shoestring.models.layers import short_convolution as layer
layer.MOST_PROGRAMS = 2
torch.manual_seed(0)
shapes = ((1, 1), (2, 5), (3, 40))
for (rows, length), d, before, documents in itertools.product(shapes, (5, 130), (1, 3, 8), (False, True)):
    x, outer, factors = *torch.randn(2, rows, length, d), torch.randn(before, d - (before == 3) * d // 2)
    positions = torch.randint(9, (rows, length)) % (1 + torch.arange(length)) if documents else None
    wide = [x.double().requires_grad_(), factors.double().requires_grad_()]
    exact = layer.short_convolution(*wide, positions)
    wanted = torch.autograd.grad(exact, wide, outer.double())
    found = layer._forward(x, factors, positions), *layer._backward(outer, x, factors, positions)
    for one, two in zip(found, (exact.detach(), *wanted), strict=True):
        torch.testing.assert_close(one.double(), two, rtol=1e-4, atol=2e-5)
x, factors = torch.randn(2, 5, 6, dtype=torch.float16, requires_grad=True), torch.randn(3, 4, requires_grad=True)
for positions in (None, torch.arange(5).repeat(2, 1)):
    torch.library.opcheck(torch.ops.shoestring.short_convolution, (x, factors, positions))
"""

AHEAD = """
import itertools
from ahead import compile_ahead
from triton.compiler import ASTSource
from shoestring.models.kernels import short_convolution as kernels
from shoestring.models.layers.short_convolution import BACKWARD, FORWARD
both = ((kernels.short_convolution_kernel, FORWARD), (kernels.short_convolution_backward_kernel, BACKWARD))
for (kernel, (rows, block, warps)), j in itertools.product(both, (3, 8)):
    for documents in (False, True):
        constants = {"J": j, "DOCUMENTS": documents, "ROWS": rows, "BLOCK": block}
        kinds = dict.fromkeys(("count", "length", "d", "first"), "i32") | {"factors": "*fp32", "sums": "*fp32"}
        kinds["positions"] = "*i64" if documents else "*bf16"
        signature = {n: "constexpr" if n in constants else kinds.get(n, "*bf16") for n in kernel.arg_names}
        aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(signature.values()) if kind != "constexpr"}
        source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
        made = compile_ahead(source, 90, num_warps=warps)
        assert not made.stack and made.has("ld.global.*v4"), (kernel.__name__, j, documents, made)
"""
needs_triton = pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")


@needs_triton
def test_the_kernels_make_the_values_and_gradients_of_float64(tmp_path: Path) -> None:
    run_script(tmp_path, KERNELS, interpret=True)


@needs_triton
def test_the_kernels_compile_for_the_chip(tmp_path: Path) -> None:
    run_script(tmp_path, AHEAD)
