"""Attention over short rows: the plain form and, without a GPU, the kernels in Triton's interpreter and compiled ahead.

The oracle is written out in float64: turns as products of complex numbers, softmax over a mask. The interpreter gets
bf16 wrong, so numbers are float32 there; it runs in a process of its own, because it must be chosen before a kernel is
defined, and a wild load would end this one.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from plain_attention import plain_short_attention
from scripts import run_script
from torch import Tensor

from shoestring.models.layers.rotary import frequencies, rotate, turns
from shoestring.models.layers.short_attention import CHANNELS, CONFIGS, fits

HAS_TRITON = importlib.util.find_spec("triton") is not None
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")

Function = Callable[[Tensor], Tensor]


def inputs(rows: int, length: int, heads: int, groups: int, channels: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, angles, and the gradient of what attention gives."""
    generator = torch.Generator().manual_seed(length + channels)
    qkv = 2 * torch.randn(rows, length, heads + 2 * groups, channels, generator=generator, dtype=torch.float64)
    angles = torch.randn(length, channels // 2, generator=generator, dtype=torch.float64)
    gradient = torch.randn(rows, length, heads, channels, generator=generator, dtype=torch.float64)
    return qkv, angles, gradient


def turned(x: Tensor, angles: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)  # R T H C/2
    z = torch.complex(a, b) * torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.cat((z.real, z.imag), -1)


def oracle(qkv: Tensor, angles: Tensor, heads: int) -> Tensor:
    groups = (qkv.shape[2] - heads) // 2
    q, k, v = qkv.split((heads, groups, groups), 2)
    users = torch.arange(heads) // (heads // groups)
    k, v = turned(k, angles)[:, :, users], v[:, :, users]
    scores = torch.einsum("rihc,rjhc->rhij", turned(q, angles), k) / qkv.shape[3] ** 0.5
    future = torch.ones(scores.shape[-2:]).triu(1).bool()
    return torch.einsum("rhij,rjhc->rihc", scores.masked_fill(future, -torch.inf).softmax(-1), v)


def with_gradient(function: Function, qkv: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    qkv = qkv.detach().requires_grad_()
    out = function(qkv)
    return out.detach(), torch.autograd.grad(out, qkv, gradient.to(out.dtype))[0]


def near(found: Tensor, expected: Tensor, tolerance: float = 2e-6) -> bool:
    return ((found.double() - expected).abs().max() / expected.abs().max()).item() < tolerance


ORACLE = "from __future__ import annotations\nimport torch\n\n"
ORACLE += "\n".join(inspect.getsource(each) for each in (inputs, turned, oracle, with_gradient, near))

INTERPRETED = """
from shoestring.models.layers import short_attention as module
operator = torch.ops.shoestring.short_attention

def check(rows, length, heads, groups, channels):
    qkv, angles, gradient = inputs(rows, length, heads, groups, channels)
    expected = with_gradient(lambda x: oracle(x, angles, heads), qkv, gradient)
    tables = angles.cos().float(), angles.sin().float()
    found = with_gradient(lambda x: operator(x, *tables, heads), qkv.float(), gradient)
    for name, ours, reference in zip(("out", "gradient"), found, expected):
        assert ours.dtype == torch.float32 and ours.shape == reference.shape and ours.is_contiguous()
        assert near(ours, reference), (name, length, heads, groups, channels)
"""

SHAPES = """
for shape in [(2, 1, 2, 2, 16), (1, 2, 2, 1, 32), (2, 17, 2, 2, 64), (1, 17, 4, 2, 128), (1, 33, 1, 1, 16),
              (1, 64, 1, 1, 128), (1, 65, 2, 2, 32), (2, 100, 1, 1, 128), (1, 100, 3, 1, 64), (1, 100, 2, 1, 128),
              (1, 128, 1, 1, 16), (1, 128, 1, 1, 128), (1, 128, 2, 1, 32)]:
    check(*shape)
"""

TILES = """
whole, halves = module.Launch(128, 8), module.Launch(64, 4)
for tiles, shape in [((whole, whole, whole), (1, 100, 1, 1, 64)), ((halves, halves, halves), (1, 100, 4, 2, 32)),
                     ((halves, halves, halves), (1, 128, 2, 1, 16))]:
    module.CONFIGS[128, shape[-1]] = module.Config(*tiles)
    check(*shape)
"""

OPERATOR = """
from torch.utils.checkpoint import checkpoint
qkv, angles, gradient = inputs(2, 5, 2, 1, 16)
tables = angles.cos().float(), angles.sin().float()
expected, slope = with_gradient(lambda x: operator(x, *tables, 2), qkv.float(), gradient)
torch.library.opcheck(operator, (qkv.float().requires_grad_(), *tables, 2))
torch.library.opcheck(torch.ops.shoestring.short_attention_backward, (gradient.float(), qkv.float(), *tables, 2))

def layer(x):
    return operator(x * 1.0, *tables, 2) * 1.0

compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
for function in (compiled, lambda x: checkpoint(layer, x, use_reentrant=False),
                 lambda x: checkpoint(compiled, x, use_reentrant=False)):
    found = with_gradient(function, qkv.float(), gradient)
    assert torch.equal(found[0], expected) and torch.equal(found[1], slope)
with torch.no_grad():
    assert torch.equal(compiled(qkv.float()), expected)
with torch.autocast("cpu", torch.bfloat16):
    assert torch.equal(layer(qkv.float()), expected)
wide = torch.cat((qkv, qkv), -1).float()[..., :16]  # not contiguous, and neither is the gradient
found = with_gradient(lambda x: operator(x, *tables, 2), wide, gradient.transpose(0, 1).contiguous().transpose(0, 1))
assert torch.equal(found[0], expected) and torch.equal(found[1], slope)
assert operator(qkv.float()[:0], *tables, 2).shape == (0, 5, 2, 16)
"""

AHEAD = """
import json, sys
from ahead import compile_ahead
from triton.compiler import ASTSource
from shoestring.models.kernels import short_attention as kernels
from shoestring.models.layers.short_attention import CONFIGS

def used(kernel, launch, length, heads, groups, channels):
    constants = {"SCALE": channels**-0.5, "H": heads, "KV": groups, "C": channels, "HALF": max(16, channels // 2),
                 "BLOCK": launch.block, "TWO": length > launch.block}
    kinds = {"cos": "*fp32", "sin": "*fp32", "T": "i32"}
    signature = {n: "constexpr" if n in constants else kinds.get(n, "*bf16") for n in kernel.arg_names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(signature.values()) if kind.startswith("*")}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    made = compile_ahead(source, 90, num_warps=launch.warps, num_stages=1, maxnreg=launch.registers)
    assert made.has("wgmma") == (length > 32)
    together = min(65_536 // (made.registers * 32 * launch.warps), 228 * 1024 // (made.shared + 1024))
    return made.stack, together

wrong = []
for length, channels, groups, forward, backward in json.loads(sys.argv[1]):
    config = CONFIGS[max(16, 1 << (length - 1).bit_length()), channels]
    back = config.backward if groups == 8 else config.grouped
    for kernel, launch, (most, least) in ((kernels.forward_kernel, config.forward, forward),
                                          (kernels.backward_kernel, back, backward)):
        stack, together = used(kernel, launch, length, 8, groups, channels)
        if stack > most or together < least:
            wrong.append((length, channels, groups, kernel.__name__, stack, together))
assert not wrong, wrong
"""


@pytest.mark.parametrize(("length", "heads", "groups", "channels"), [(1, 2, 2, 16), (17, 4, 2, 6), (140, 3, 1, 64)])
def test_the_plain_form_is_attention_of_turned_queries_and_keys(
    length: int, heads: int, groups: int, channels: int
) -> None:
    qkv, angles, gradient = inputs(2, length, heads, groups, channels)
    expected = with_gradient(lambda x: oracle(x, angles, heads), qkv, gradient)
    for kind, tolerance in ((torch.float64, 1e-13), (torch.float32, 2e-6), (torch.bfloat16, 2e-2)):
        tables = [table.to(torch.promote_types(kind, torch.float32)) for table in (angles.cos(), angles.sin())]
        form = partial(plain_short_attention, cos=tables[0], sin=tables[1], heads=heads)
        found = with_gradient(form, qkv.to(kind), gradient)
        for ours, reference in zip(found, expected):
            assert ours.dtype == kind and near(ours, reference, tolerance)


def test_the_turn_of_the_oracle_is_that_of_the_models() -> None:
    x = torch.randn(2, 3, 9, 16)
    angles = torch.outer(torch.arange(9.0), frequencies(16, 10_000.0)).double()
    found = rotate(x, turns(frequencies(16, 10_000.0), 9)).transpose(1, 2)
    assert near(found, turned(x.transpose(1, 2).double(), angles), 1e-6)


def test_the_kernels_are_not_for_a_cpu() -> None:
    assert not fits(torch.zeros(1, 4, 6, 16, dtype=torch.bfloat16), 2)


def test_every_shape_has_its_launch() -> None:
    assert set(CONFIGS) == {(padded, channels) for padded in (16, 32, 64, 128) for channels in CHANNELS}
    for (padded, _), config in CONFIGS.items():
        assert all(launch.block <= padded <= 2 * launch.block for launch in config)


@needs_triton
def test_the_arithmetic_of_the_kernels_and_how_the_operator_compiles(tmp_path: Path) -> None:
    """In one process, as to load the compiler takes longer than most of it."""
    run_script(tmp_path, ORACLE + INTERPRETED + OPERATOR + SHAPES + TILES, interpret=True)


SPENT = [
    (100, 128, 8, (16, 3), (256, 2)),  # what is spilled are addresses
    (100, 64, 8, (0, 3), (0, 1)),
    (100, 64, 2, (0, 3), (64, 1)),
    (64, 128, 8, (0, 3), (0, 2)),
    (32, 64, 2, (0, 4), (0, 2)),
    (9, 16, 8, (0, 8), (0, 8)),
]
"""Positions, channels, groups; then, forward and backward, the most bytes of a thread's registers that spill, and the
fewest programs side by side."""


@needs_triton
def test_the_kernels_compile_for_the_chip(tmp_path: Path) -> None:
    run_script(tmp_path, AHEAD, json.dumps(SPENT))
